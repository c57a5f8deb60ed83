"""The training loop: steps, the record, checkpoints. It decides nothing about the numbers.

The batch is a function of the step and the state is complete, so a run that was stopped anywhere
goes on from its last checkpoint and ends with the same bits.
"""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.core.progress import Progress, Task
from shoal.core.record import Record
from shoal.core.watchdog import Watchdog
from shoal.train import checkpoint
from shoal.train.config import Config, TrainConfig
from shoal.train.step import Batch, State, Step
from shoal.train.together import ALONE, Together, begin_together

type BatchAt = Callable[[int], Batch]
type Hook = Callable[[State], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a stretch of training came to; seconds count from its beginning.

    Attributes:
        first_loss_s: until the first loss was known, compilation included; None without a step.
        tokens_per_s: over the steps after the first.
    """

    state: State
    num_steps: int
    first_loss_s: float | None
    seconds: float
    tokens_per_s: float | None


def train(
    config: Config,
    step: Step,
    state: State,
    batch_at: BatchAt,
    *,
    folder: Path,
    record: Record,
    progress: Progress,
    facts: dict[str, Any],
    every: dict[int, Hook],
    places: State | None = None,
    together: Together = ALONE,
) -> Outcome:
    """Run from the state's step to the end of the config.

    Args:
        facts: further entries of every checkpoint's manifest.
        every: cadence in steps -> hook, called with the state after such a step (evaluation).
        places: where the leaves of the state rest (`state.shardings`).
        together: the processes of the run; only the leader's record and progress are seen.

    Raises:
        KeyboardInterrupt: asked to stop, after the running step is finished and saved.
        ValueError: too many steps in a row were not finite, or one dropped what must not be.
    """
    settings, first = config.train, int(state.step)
    advance = begin_together(jitted_step(step, places), together, "step")
    skipped, num_saves, first_loss_s = 0, 0, None
    began = saved = time.perf_counter()
    with (
        _interrupts() as asked,
        progress.task("train", settings.num_steps, "steps") as task,
        Watchdog(settings.watchdog_s, folder / stacks_file()) as watchdog,
    ):
        task.advance(first)
        watchdog.feed(settings.watchdog_first_s)
        for now in range(first + 1, settings.num_steps + 1):
            at = time.perf_counter()
            state, metrics = advance(state, batch_at(now - 1))
            seen = jax.device_get(metrics)
            end = time.perf_counter()
            first_loss_s = end - began if first_loss_s is None else first_loss_s
            _tell(record, task, settings, now, seen, end - at)
            _refuse_drops(config, record, now, seen)
            skipped = _count_skipped(record, settings, now, seen, skipped, folder)
            last, stop = now == settings.num_steps, together.stops(bool(asked), now)
            waited = not skipped and end - saved > settings.checkpoint_every_s
            late = together.stops(waited, now, f"save-{num_saves}")
            due = not skipped and (late or _at(now, settings.checkpoint_every_steps))
            if last or stop or due:
                with watchdog.pause():
                    save(folder, state, record, facts, settings.keep_checkpoints, together)
                saved, num_saves = time.perf_counter(), num_saves + 1
            if stop and not last:
                record.event("stop", step=now)
                raise KeyboardInterrupt(f"stopped at step {now}")
            with watchdog.pause():
                _call_hooks(every, now, last, state)
    return _outcome(settings, state, first, time.perf_counter() - began, first_loss_s)


def _call_hooks(every: dict[int, Hook], now: int, last: bool, state: State) -> None:
    """After the last step they are called by whoever comes after the loop."""
    for cadence, hook in every.items():
        if _at(now, cadence) and not last:
            hook(state)


def jitted_step(step: Step, places: State | None) -> Any:
    """Return the step compiled at its first call; it takes the memory of the state it is given."""
    resting: dict[str, Any] = {} if places is None else {"out_shardings": (places, None)}
    return jax.jit(step, donate_argnums=0, **resting)


def stacks_file() -> str:
    """Return the name of the file for the stacks of a process that stood still."""
    index = jax.process_index()
    return f"stacks-{index}.txt" if index else "stacks.txt"


def _outcome(
    settings: TrainConfig, state: State, first: int, seconds: float, first_loss_s: float | None
) -> Outcome:
    num_steps, rate = settings.num_steps - first, None
    if num_steps > 1 and first_loss_s is not None:
        rate = (num_steps - 1) * settings.tokens_per_step / (seconds - first_loss_s)
    return Outcome(
        state=state,
        num_steps=num_steps,
        first_loss_s=first_loss_s,
        seconds=seconds,
        tokens_per_s=rate,
    )


def _at(step: int, cadence: int) -> bool:
    """Whether a cadence in steps falls on this one; 0 or less is never."""
    return cadence > 0 and step % cadence == 0


def _count_skipped(
    record: Record,
    settings: TrainConfig,
    step: int,
    seen: dict[str, Any],
    before: int,
    folder: Path,
) -> int:
    if seen["applied"]:
        return 0
    skipped = before + 1
    record.event("nonfinite", step=step, loss=float(seen["loss"]), in_a_row=skipped)
    if skipped >= settings.stop_after_skipped:
        raise ValueError(
            f"the loss or gradient was not finite in {skipped} steps in a row, up to step {step};"
            f" the last good state is kept in {folder / checkpoint.CHECKPOINTS}: lower the rates,"
            " or look at the batches of these steps"
        )
    return skipped


def _refuse_drops(config: Config, record: Record, step: int, seen: dict[str, Any]) -> None:
    """Stop a dropless run at its first drop; the step has not been applied."""
    dropped = seen["dropped/sender"] + seen["dropped/receiver"]
    if not config.moe.dropless or not dropped.any():
        return
    layer = int(dropped.argmax())
    record.event("dropped", step=step, layer=layer, assignments=int(dropped[layer]))
    sides = [side for side in ("sender", "receiver") if seen[f"dropped/{side}"].any()]
    rooms = [f"moe.capacity_{side}={getattr(config.moe, f'capacity_{side}')}" for side in sides]
    raise ValueError(
        f"moe.dropless: step {step} would drop {int(dropped.sum())} assignments, most in layer"
        f" {layer} ({int(dropped[layer])}); it was not applied. Raise {' and '.join(rooms)}"
        " (with `ragged`, a factor as large as the expert axis never drops), or allow drops"
    )


def save(
    folder: Path,
    state: State,
    record: Record,
    facts: dict[str, Any],
    keep: int,
    together: Together = ALONE,
) -> None:
    """Write a checkpoint, put its digest on record and delete older ones."""
    path = checkpoint.save(folder, state, link=record.link(), facts=facts, together=together)
    if not together.leader:
        return
    step = int(path.name)
    digest = checkpoint.manifest_of(folder, step)["digest"]
    record.event("checkpoint", step=step, digest=digest)
    checkpoint.prune(folder, keep)


def _tell(
    record: Record,
    task: Task,
    settings: TrainConfig,
    step: int,
    seen: dict[str, Any],
    seconds: float,
) -> None:
    tokens_per_s = settings.tokens_per_step / seconds
    _log(record, settings, step, seen, seconds)
    task.say(f"loss {float(seen['loss']):.3f}  {tokens_per_s:,.0f} tokens/s")
    task.advance()


def _log(
    record: Record, settings: TrainConfig, step: int, seen: dict[str, Any], seconds: float
) -> None:
    if seen["applied"] and not _at(step, settings.log_every_steps):
        return
    detailed = step == 1 or _at(step, settings.detail_every_steps)
    values = {
        name: np.asarray(value).tolist()
        for name, value in seen.items()
        if detailed or name != "router/load"
    }
    values["tokens"] = step * settings.tokens_per_step
    values["seconds"] = seconds
    values["tokens_per_s"] = settings.tokens_per_step / seconds
    record.metric(step, values)


@contextmanager
def _interrupts() -> Generator[list[int]]:
    """Collect the first signal to stop, between steps; a second interrupt stops at once.

    What a cluster sends before it takes a machine away (SIGTERM, SIGUSR1) counts like Ctrl-C.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        del frame
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    try:
        before = {kind: signal.signal(kind, ask) for kind in kinds}
    except ValueError:  # not the main thread: no handler can be set, nothing to put back
        yield asked
        return
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
