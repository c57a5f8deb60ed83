"""Job `train`: corpus, order, state, loop and record brought together; new or resumed."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shoal.core.config import fingerprint
from shoal.core.files import folder_lock, home, sha256_file
from shoal.core.progress import Progress, Silent, progress_for
from shoal.core.record import Record, Spectator, read_events, verify_link
from shoal.data.load import TokenStore, batch_at
from shoal.data.mix import Mix, Shape, mixture, simulated
from shoal.data.order import Order, Phase
from shoal.jobs.devices import Devices, devices_of
from shoal.jobs.evaluate import EVALS, evaluator
from shoal.jobs.prepare import Prepared, prepare, prepared_for
from shoal.jobs.processes import Processes, start_processes
from shoal.jobs.resolve import resolve
from shoal.jobs.runs import RUN, begin, new_environment, run_folder
from shoal.jobs.runtime import start_jax
from shoal.jobs.sealed import find_seal
from shoal.scaling.seal import Seal
from shoal.train.config import Config
from shoal.train.derive import peak_rates
from shoal.train.together import agree

_PATIENCE_S = 7 * 24 * 3600.0
_SPEED = ("first_loss_s", "seconds", "tokens_per_s")


def train(
    recipe: str,
    overrides: Sequence[str] = (),
    run: str | None = None,
    change: str | None = None,
    *,
    forecast: str | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> dict[str, Any]:
    """Train a recipe from the beginning, or from its newest complete checkpoint.

    Args:
        run: name or folder; the recipe's own name by default.
        change: why numerics differ from those that the run had before.
        forecast: name or path of the seal that a new run puts first into its record.
        coordinator: HOST:PORT of process 0, with `num_processes` and `process_id`, where this is
            one of several processes and the cluster does not say so.
    """
    config = resolve(recipe, overrides)
    seal = None if forecast is None else find_seal(forecast)
    if seal is not None:
        seal.check_target(fingerprint(config))
    start_jax(home())
    processes = start_processes(coordinator, num_processes, process_id)
    progress = progress_for() if processes.leader else Silent()
    if processes.count > 1:
        progress.note(processes.origin)
    processes.agree(config)
    prepared = _prepared(config, processes, progress)
    folder = run_folder(run or config.name)
    try:
        done = train_config(
            config,
            folder,
            prepared,
            progress,
            change=change,
            processes=processes,
            seal=seal,
            scored=lambda: _written_anew(folder, progress),
        )
    except KeyboardInterrupt:
        processes.barrier("stopped", _PATIENCE_S)  # the leader has more to do before it ends
        raise
    processes.barrier("end", _PATIENCE_S)
    return done if processes.leader else {}


def _written_anew(folder: Path, progress: Progress) -> None:
    """Write the pages of a run and of its forecast; a page is not worth a run."""
    from shoal.jobs.report import write_pages

    try:
        write_pages(folder)
    except (ValueError, OSError) as error:
        progress.note(f"warning: the report of this run was not written: {error}")


def _prepared(config: Config, processes: Processes, progress: Progress) -> Prepared:
    """Prepare the corpus in one process; the others find it made."""
    made: list[Prepared] = []
    processes.from_leader(lambda: made.append(prepared_for(config, progress)), _PATIENCE_S)
    return made[0] if made else prepare(config.data.corpus, home(), progress)


def store_of(config: Config, folder: Path) -> TokenStore:
    """Open the token store of a run, with the units that it may read.

    Raises:
        ValueError: as `TokenStore.open`, or the run is larger than the one that it simulates.
    """
    store, target = TokenStore.open(folder), config.data.simulated_tokens
    if not target:
        return store
    held = {cell: units * store.unit_tokens for cell, units in store.units.items()}
    budget = config.train.num_steps * config.train.tokens_per_step
    limits = simulated(held, budget, target, store.unit_tokens)
    return store.thinned({cell: tokens // store.unit_tokens for cell, tokens in limits.items()})


def mix_of(config: Config, store: TokenStore) -> Mix:
    """Return the mixture of a run, and how often each cell is read."""
    shape = Shape(
        num_steps=config.train.num_steps,
        batch_sequences=config.train.batch_sequences,
        sequence_tokens=config.train.sequence_tokens,
        unit_tokens=store.unit_tokens,
        table_lanes=config.data.table_lanes,
    )
    return mixture(config.data.mix, store.units, shape)


def order_of(config: Config, store: TokenStore) -> Order:
    """Return the order of a run's data, in the phases of its mixture."""
    phases = tuple(
        Phase(
            start_step=start,
            batch_sequences=config.train.batch_sequences,
            sequence_tokens=config.train.sequence_tokens,
            weights=weights,
        )
        for start, weights in mix_of(config, store).phases
    )
    return Order(
        phases=phases,
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
    processes: Processes | None = None,
    seal: Seal | None = None,
    scored: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train a config in a run folder; says what happened, and whether it was done already.

    The caller has called `runtime.start_jax`, before anything that starts threads.

    Args:
        processes: of this run, all of which call this; None is this one alone.
        seal: of this run's forecast (`runs.begin`).
        scored: called after each evaluation on the way, where nothing waits for this process.
    """
    together = Processes(0, 1, "one process") if processes is None else processes
    devices = devices_of(config)
    store = store_of(config, prepared.store)
    order = order_of(config, store)
    with ExitStack() as stack:
        opened: list[Record] = []

        def start() -> str:
            stack.enter_context(folder_lock(folder))
            opened.append(stack.enter_context(Record.open(folder)))
            begin(folder, config, prepared, opened[0], change=change, seal=seal)
            return sha256_file(folder / RUN)

        agree(together, _not_shared(folder, together.from_leader(start)))
        record = opened[0] if opened else Spectator(folder)
        for line in devices.lines:
            progress.note(line)
        told = scored if together.count == 1 else lambda: None
        return _run(
            config, folder, store, order, prepared, record, progress, devices, together, told
        )


def _not_shared(folder: Path, written: str, within_s: float = 60.0) -> str | None:
    """Say what is wrong where this process does not find what the leader has just written."""
    path, until = folder / RUN, time.monotonic() + within_s
    while not path.is_file() or sha256_file(path) != written:
        if time.monotonic() > until:
            return (
                f"a process of this run does not see {path} as process 0 has written it; give"
                " all of them the same --run and a SHOAL_HOME on a file system that they share"
            )
        time.sleep(0.2)
    return None


def _run(
    config: Config,
    folder: Path,
    store: TokenStore,
    order: Order,
    prepared: Prepared,
    record: Record,
    progress: Progress,
    devices: Devices,
    together: Processes,
    scored: Callable[[], None],
) -> dict[str, Any]:
    from shoal.train import loop
    from shoal.train.state import global_batch, shardings
    from shoal.train.step import make_step

    peak, mesh = peak_rates(config), devices.mesh
    done = together.from_leader(lambda: _standing(folder))
    if done is not None:
        _tell_saved(folder, done, record)
    if done is not None and done >= config.train.num_steps:
        if not _finishes(folder):  # killed between the last checkpoint and this event
            record.event("finish", step=done)
        progress.note(f"run {folder.name}: finished before at step {done}, reused")
        return {"run": str(folder), "step": done, "reused": True, **finish_of(folder)}
    state = _state(config, folder, done, mesh, record, progress, together)
    evaluate = evaluator(config, folder, prepared, record, progress, mesh, together)
    if done is not None and together.from_leader(lambda: _lacks_scores(config, folder, done)):
        evaluate(state)

    def score(state: Any) -> None:
        evaluate(state)
        scored()

    num_rows, length = config.train.batch_sequences, config.train.sequence_tokens
    outcome = loop.train(
        config,
        make_step(config, peak, mesh),
        state,
        lambda index: global_batch(
            mesh, num_rows, length, lambda rows: batch_at(store, order, index, rows)
        ),
        folder=folder,
        record=record,
        progress=progress,
        facts={"fingerprint": fingerprint(config), "tokens_per_step": config.train.tokens_per_step},
        every={config.eval.every_steps: score},
        places=shardings(config, peak, mesh),
        together=together,
    )
    facts = {name: getattr(outcome, name) for name in ("num_steps", *_SPEED)}
    record.event("finish", step=config.train.num_steps, **facts)
    return {"run": str(folder), "step": config.train.num_steps, "reused": False, **facts}


def _tell_saved(folder: Path, step: int, record: Record) -> None:
    """Put a checkpoint on record of which a kill has kept the event from being written."""
    from shoal.train import checkpoint

    digest = checkpoint.manifest_of(folder, step)["digest"]
    told = {event["step"] for event in read_events(folder) if event["kind"] == "checkpoint"}
    if step not in told:
        record.event("checkpoint", step=step, digest=digest)


def _standing(folder: Path) -> int | None:
    """Return the newest complete step of a run, None if it has not come to one.

    Raises:
        ValueError: it had one, says its record, and has none now.
    """
    from shoal.train import checkpoint

    checkpoint.remove_unfinished(folder)
    done = checkpoint.steps(folder)
    reached = [e["step"] for e in read_events(folder) if e["kind"] == "checkpoint"]
    if reached and not done:
        raise ValueError(
            f"run {folder.name} had a checkpoint at step {reached[-1]} and has none now;"
            f" restore {folder / checkpoint.CHECKPOINTS}, or remove {folder} to begin anew"
        )
    return done[-1] if done else None


def _state(
    config: Config,
    folder: Path,
    done: int | None,
    mesh: Any,
    record: Record,
    progress: Progress,
    together: Processes,
) -> Any:
    """Return the state to go on from: of a checkpoint, or of step 0."""
    from shoal.train import checkpoint
    from shoal.train.state import abstract_state, initial_state

    peak = peak_rates(config)
    if done is None:
        return initial_state(config, peak, mesh)
    state = checkpoint.restore(folder, done, abstract_state(config, peak, mesh), together)
    if together.leader:
        record.event("resume", step=done, **new_environment(folder))
        _compare_record(folder, done, record, progress)
    progress.note(f"run {folder.name}: goes on from step {done}")
    return state


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
