"""Job `generate`: text from a run's newest checkpoint."""

from typing import Any

from shoal.core.files import home
from shoal.core.progress import progress_for
from shoal.data.tokenize import EOS_ID
from shoal.jobs.prepare import prepare
from shoal.jobs.runs import check_corpus, find_run, read_config
from shoal.jobs.runtime import start_jax
from shoal.train.derive import peak_rates


def generate(
    run: str, prompt: str, tokens: int = 128, temperature: float = 0.8, seed: int = 0
) -> dict[str, Any]:
    """Continue a prompt by at most `tokens` tokens; an end of text ends it."""
    from shoal.model.sample import sample
    from shoal.train import checkpoint
    from shoal.train.step import abstract_state

    folder = find_run(run)
    config = read_config(folder)
    start_jax(home())
    prepared = prepare(config.data.corpus, home(), progress_for())
    check_corpus(folder, prepared)
    tokenizer = prepared.tokenizer()
    step = checkpoint.newest(folder)
    state = checkpoint.restore(folder, step, abstract_state(config, peak_rates(config)))
    drawn: list[int] = []
    columns = sample(
        state.params,
        [tokenizer.encode(prompt, add_special_tokens=False).ids],
        config.model,
        context=config.train.sequence_tokens,
        num_tokens=tokens,
        temperature=temperature,
        seed=seed,
        eos=EOS_ID,
    )
    for column in columns:
        if column[0] == EOS_ID:
            break
        drawn.append(int(column[0]))
    return {
        "run": str(folder),
        "step": step,
        "prompt": prompt,
        "text": tokenizer.decode(drawn),
        "tokens": len(drawn),
        "temperature": temperature,
        "seed": seed,
    }
