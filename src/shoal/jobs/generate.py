"""Job `generate`: text from a run's newest checkpoint."""

from typing import Any

from shoal.core.files import home
from shoal.core.progress import progress_for
from shoal.data.tokenize import EOS_ID
from shoal.jobs.devices import mesh_or_none
from shoal.jobs.prepare import prepare
from shoal.jobs.runs import check_corpus, find_run, read_config, restored
from shoal.jobs.runtime import start_jax
from shoal.jobs.sampler import sampler


def generate(
    run: str, prompt: str, tokens: int = 128, temperature: float = 0.8, seed: int = 0
) -> dict[str, Any]:
    """Continue a prompt by at most `tokens` tokens; an end of text ends it."""
    folder = find_run(run)
    config = read_config(folder)
    start_jax(home())
    progress = progress_for()
    prepared = prepare(config.data.corpus, home(), progress)
    check_corpus(folder, prepared)
    tokenizer = prepared.tokenizer()
    mesh = mesh_or_none(config, progress)
    state = restored(folder, config, mesh=mesh)
    drawn: list[int] = []
    prompts = [tokenizer.encode(prompt, add_special_tokens=False).ids]
    columns = sampler(config, mesh)(state.params, prompts, tokens, temperature, seed)
    for column in columns:
        if column[0] == EOS_ID:
            break
        drawn.append(int(column[0]))
    return {
        "run": str(folder),
        "step": int(state.step),
        "prompt": prompt,
        "text": tokenizer.decode(drawn),
        "tokens": len(drawn),
        "temperature": temperature,
        "seed": seed,
    }
