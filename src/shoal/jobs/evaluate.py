"""Job `eval`: score a run's held-out sets, and write samples, at a checkpoint."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core.files import folder_lock, home, sha256_file, write_atomic
from shoal.core.progress import Progress, progress_for
from shoal.core.record import Record, read_events
from shoal.data.tokenize import EOS_ID
from shoal.eval.domains import compressors, evaluate, limit_bytes
from shoal.jobs.devices import mesh_or_none
from shoal.jobs.prepare import Prepared, prepare
from shoal.jobs.runs import check_corpus, find_run, read_config, restored
from shoal.jobs.runtime import start_jax
from shoal.jobs.sampler import Sampler, sampler
from shoal.train.config import Config
from shoal.train.together import ALONE, Together, begin_together

EVALS, SAMPLES = "evals", "samples"


def evaluate_run(run: str, step: int | None = None) -> dict[str, Any]:
    """Evaluate a checkpoint, the newest by default; returns what `evals/STEP.json` says."""
    folder = find_run(run)
    config, progress = read_config(folder), progress_for()
    start_jax(home())
    prepared = prepare(config.data.corpus, home(), progress)
    check_corpus(folder, prepared)
    return evaluate_at(config, folder, prepared, step, progress)


def evaluate_at(
    config: Config, folder: Path, prepared: Prepared, step: int | None, progress: Progress
) -> dict[str, Any]:
    """Evaluate a checkpoint, the newest if None; it is on record as part of the last attempt."""
    mesh = mesh_or_none(config, progress)
    state = restored(folder, config, step, mesh)
    attempt = max((event["attempt"] for event in read_events(folder)), default=1)
    with folder_lock(folder), Record.open(folder, attempt=attempt) as record:
        evaluator(config, folder, prepared, record, progress, mesh)(state)
    return json.loads((folder / EVALS / f"{int(state.step)}.json").read_text())


def evaluator(
    config: Config,
    folder: Path,
    prepared: Prepared,
    record: Record,
    progress: Progress,
    mesh: Any = None,
    together: Together = ALONE,
) -> Callable[[Any], None]:
    """Return a function of the state that writes `samples/STEP.json` and `evals/STEP.json`.

    A set of which nothing is held out is left out of the file; so may be all of them. The scores
    are written last: where they are, the evaluation was whole. Of several processes all compute,
    and the first writes.

    Args:
        mesh: where the state stands.
        together: the processes of the run.
    """
    tokenizer = prepared.tokenizer()
    nats, following = scorer(config, mesh, together), sampler(config, mesh, together)
    compressed: dict[str, dict[str, dict[str, float]]] = {}
    scored = scored_texts(config, prepared)

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def run(state: Any) -> None:
        step, sets = int(state.step), {}
        with progress.task("evaluate", len(scored), "sets") as task:
            for name, texts in scored.items():
                if not texts:
                    continue
                kinds = prepared.kinds[name]
                packed = compressed[name] = compressed.get(name) or _compressed(texts)
                sets[name] = evaluate(
                    texts,
                    encode,
                    partial(nats, state.params),
                    eos=EOS_ID,
                    sequence_tokens=config.eval.sequence_tokens,
                    rows=config.eval.batch_sequences,
                    kinds=kinds,
                    code={domain for domain, kind in kinds.items() if kind == "code"},
                    compressed=packed,
                )
                task.say(f"{name}: macro {sets[name]['macro']['bpb']:.3f} bits per byte")
                task.advance()
        if not sets:
            progress.note("nothing is held out of this corpus, so nothing is scored")
        texts = samples(state, config, tokenizer, following)
        if not together.leader:
            return
        found = {"step": step, "tokens": step * config.train.tokens_per_step, "sets": sets}
        hashes = _written(folder, step, {SAMPLES: texts, EVALS: found})
        macro = {name: one["macro"] for name, one in sets.items()}
        record.event("evaluate", step=step, macro=macro, files=hashes)

    return run


def _written(folder: Path, step: int, contents: Mapping[str, Any]) -> dict[str, str]:
    """Write FOLDER/STEP.json of each; returns file -> SHA-256, for the record."""
    hashes: dict[str, str] = {}
    for name, content in contents.items():
        write_atomic(folder / name / f"{step}.json", json.dumps(content, indent=1))
        hashes[f"{name}/{step}.json"] = sha256_file(folder / name / f"{step}.json")
    return hashes


def _compressed(texts: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    return {domain: compressors(limit_bytes(found)) for domain, found in texts.items()}


def scored_texts(config: Config, prepared: Prepared) -> dict[str, dict[str, list[str]]]:
    """Return set -> domain -> the held-out texts that a config scores."""
    limit = config.eval.limit_bytes
    if not limit:
        return prepared.heldout
    return {
        name: {domain: limit_bytes(texts, limit) for domain, texts in domains.items()}
        for name, domains in prepared.heldout.items()
    }


def scorer(
    config: Config, mesh: Any = None, together: Together = ALONE
) -> Callable[[Any, Any, Any, Any], Any]:
    """Return (params, inputs, targets, segments) -> nats per target, compiled once.

    Rows travel by `local`, whatever the run trains with: an evaluation drops nothing.
    """
    import jax
    import jax.numpy as jnp

    from shoal.arrays.mesh import on_device, over_rows, whole
    from shoal.model.lm import On, losses

    model, context, on = config.model, config.train.sequence_tokens, On(mesh=mesh)
    gives: dict[str, Any] = {} if mesh is None else {"out_shardings": whole(mesh)}

    def score(params: Any, inputs: Any, targets: Any, segments: Any) -> Any:
        here = on_device(params, mesh)
        found, _ = losses(here, inputs, targets, segments, model, context=context, on=on)
        return found.nats.astype(jnp.float32)

    begun = begin_together(jax.jit(score, **gives), together, "scorer")

    def nats(params: Any, *rows: Any) -> Any:
        return jax.device_get(begun(params, *(over_rows(array, mesh) for array in rows)))

    return nats


def samples(state: Any, config: Config, tokenizer: Any, following: Sampler) -> list[dict[str, Any]]:
    """Continue the config's prompts, in one batch."""
    prompts = list(config.eval.sample_prompts)
    if not prompts or not config.eval.sample_tokens:
        return []
    columns = following(
        state.params,
        [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts],
        config.eval.sample_tokens,
        config.eval.sample_temperature,
        config.train.seed,
    )
    drawn = [list(map(int, row)) for row in zip(*columns, strict=True)]
    return [
        {
            "prompt": prompt,
            "text": tokenizer.decode(row[: row.index(EOS_ID)] if EOS_ID in row else row),
            "temperature": config.eval.sample_temperature,
            "seed": config.train.seed,
        }
        for prompt, row in zip(prompts, drawn, strict=True)
    ]
