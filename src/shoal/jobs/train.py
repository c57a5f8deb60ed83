"""Job `train`: corpus, order, state, loop and record brought together; new or resumed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.config import fingerprint
from shoal.core.files import folder_lock, home
from shoal.core.progress import Progress, progress_for
from shoal.core.record import Record, read_events, verify_link
from shoal.data.load import TokenStore, batch_at
from shoal.data.order import Order, Phase
from shoal.jobs.evaluate import EVALS, evaluator
from shoal.jobs.prepare import Prepared, prepare
from shoal.jobs.resolve import resolve
from shoal.jobs.runs import begin, new_environment, run_folder
from shoal.jobs.runtime import start_jax
from shoal.train.config import Config
from shoal.train.derive import peak_rates

_SPEED = ("first_loss_s", "seconds", "tokens_per_s")


def train(
    recipe: str, overrides: Sequence[str] = (), run: str | None = None, change: str | None = None
) -> dict[str, Any]:
    """Train a recipe from the beginning, or from its newest complete checkpoint.

    Args:
        run: name or folder; the recipe's own name by default.
        change: why numerics differ from those that the run had before.
    """
    config = resolve(recipe, overrides)
    start_jax(home())
    progress = progress_for()
    prepared = prepare(config.data.corpus, home(), progress)
    return train_config(config, run_folder(run or config.name), prepared, progress, change=change)


def order_of(config: Config, store: TokenStore) -> Order:
    """Return the order of a run's data; without a mixture cells weigh what they hold."""
    mixture = config.data.mixture or tuple(
        (cell, float(units)) for cell, units in sorted(store.units.items()) if units
    )
    phase = Phase(
        start_step=0,
        batch_sequences=config.train.batch_sequences,
        sequence_tokens=config.train.sequence_tokens,
        weights=mixture,
    )
    return Order(
        phases=(phase,),
        units=store.units,
        unit_tokens=store.unit_tokens,
        seed=config.data.seed,
        table_lanes=config.data.table_lanes,
    )


def train_config(
    config: Config,
    folder: Path,
    prepared: Prepared,
    progress: Progress,
    *,
    change: str | None = None,
) -> dict[str, Any]:
    """Train a config in a run folder; says what happened, and whether it was done already.

    The caller has called `runtime.start_jax`, before anything that starts threads.
    """
    store = TokenStore.open(prepared.store)
    order = order_of(config, store)
    with folder_lock(folder), Record.open(folder) as record:
        begin(folder, config, prepared, record, change=change)
        return _run(config, folder, store, order, prepared, record, progress)


def _run(
    config: Config,
    folder: Path,
    store: TokenStore,
    order: Order,
    prepared: Prepared,
    record: Record,
    progress: Progress,
) -> dict[str, Any]:
    from shoal.train import checkpoint, loop
    from shoal.train.step import abstract_state, as_batch, initial_state, make_step

    peak = peak_rates(config)
    checkpoint.remove_unfinished(folder)
    done = checkpoint.steps(folder)
    if done and done[-1] >= config.train.num_steps:
        checkpoint.manifest_of(folder, done[-1])
        if not _finishes(folder):  # killed between the last checkpoint and this event
            record.event("finish", step=done[-1])
        progress.note(f"run {folder.name}: finished before at step {done[-1]}, reused")
        return {"run": str(folder), "step": done[-1], "reused": True, **finish_of(folder)}
    if done:
        state = checkpoint.restore(folder, done[-1], abstract_state(config, peak))
        record.event("resume", step=done[-1], **new_environment(folder))
        _compare_record(folder, done[-1], record, progress)
        progress.note(f"run {folder.name}: goes on from step {done[-1]}")
    else:
        reached = [e["step"] for e in read_events(folder) if e["kind"] == "checkpoint"]
        if reached:
            raise ValueError(
                f"run {folder.name} had a checkpoint at step {reached[-1]} and has none now;"
                f" restore {folder / checkpoint.CHECKPOINTS}, or remove {folder} to begin anew"
            )
        state = initial_state(config, peak)
    evaluate = evaluator(config, folder, prepared, record, progress)
    if done and _lacks_scores(config, folder, done[-1]):
        evaluate(state)
    outcome = loop.train(
        config,
        make_step(config, peak),
        state,
        lambda index: as_batch(batch_at(store, order, index)),
        folder=folder,
        record=record,
        progress=progress,
        facts={"fingerprint": fingerprint(config), "tokens_per_step": config.train.tokens_per_step},
        every={config.eval.every_steps: evaluate},
    )
    facts = {name: getattr(outcome, name) for name in ("num_steps", *_SPEED)}
    record.event("finish", step=config.train.num_steps, **facts)
    return {"run": str(folder), "step": config.train.num_steps, "reused": False, **facts}


def _compare_record(folder: Path, step: int, record: Record, progress: Progress) -> None:
    """Put loudly on record that metrics or events are not those that the checkpoint was made with.

    The state is whole all the same, so training goes on; the chain keeps showing the break.
    """
    from shoal.train import checkpoint

    problems = verify_link(folder, checkpoint.manifest_of(folder, step)["link"])
    if problems:
        record.event("mismatch", step=step, problems=problems)
        progress.note(f"warning: the record differs from what checkpoint {step} saw: {problems[0]}")


def finish_of(folder: Path) -> dict[str, Any]:
    """Return what the last finished stretch of a run recorded of its speed."""
    last = _finishes(folder)[-1:] or [{}]
    return {name: last[0].get(name) for name in _SPEED}


def _finishes(folder: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(folder) if event["kind"] == "finish"]


def _lacks_scores(config: Config, folder: Path, step: int) -> bool:
    """Whether a run was stopped between the checkpoint of a step and its evaluation."""
    every = config.eval.every_steps
    due = every > 0 and step % every == 0
    return due and not (folder / EVALS / f"{step}.json").is_file()
