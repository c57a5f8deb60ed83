"""The training loop: steps, the record, checkpoints. It decides nothing about the numbers.

The batch is a function of the step and the state is whole, so a run that was stopped anywhere goes
on from its last checkpoint and ends with the same bits.
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
from shoal.train import checkpoint
from shoal.train.config import Config, TrainConfig
from shoal.train.step import Batch, State, Step

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
) -> Outcome:
    """Run from the state's step to the end of the config.

    Args:
        facts: further entries of every checkpoint's manifest.
        every: cadence in steps -> hook, called with the state after such a step (evaluation).

    Raises:
        KeyboardInterrupt: asked to stop, after the running step is finished and saved.
        ValueError: too many steps in a row were not finite.
    """
    settings, first = config.train, int(state.step)
    jitted = jax.jit(step, donate_argnums=0)
    began = saved = time.perf_counter()
    first_loss_s: float | None = None
    skipped = 0
    with _interrupts() as asked, progress.task("train", settings.num_steps, "steps") as task:
        task.advance(first)
        for now in range(first + 1, settings.num_steps + 1):
            at = time.perf_counter()
            state, metrics = jitted(state, batch_at(now - 1))
            seen = jax.device_get(metrics)
            end = time.perf_counter()
            first_loss_s = end - began if first_loss_s is None else first_loss_s
            _log(record, settings, now, seen, end - at)
            _show(task, settings.tokens_per_step, seen, end - at)
            skipped = _count_skipped(record, settings, now, seen, skipped, folder)
            last, stop = now == settings.num_steps, bool(asked)
            due = not skipped and _is_due(settings, now, end - saved)
            if last or stop or due:
                save(folder, state, record, facts, keep=settings.keep_checkpoints)
                saved = time.perf_counter()
            if stop and not last:
                record.event("stop", step=now)
                raise KeyboardInterrupt(f"stopped at step {now}")
            for cadence, hook in every.items():
                if _at(now, cadence) and not last:
                    hook(state)
    seconds, num_steps = time.perf_counter() - began, settings.num_steps - first
    rate = None
    if num_steps > 1 and first_loss_s is not None:
        rate = (num_steps - 1) * settings.tokens_per_step / (seconds - first_loss_s)
    return Outcome(
        state=state,
        num_steps=num_steps,
        first_loss_s=first_loss_s,
        seconds=seconds,
        tokens_per_s=rate,
    )


def _is_due(settings: TrainConfig, step: int, since_s: float) -> bool:
    return _at(step, settings.checkpoint_every_steps) or since_s > settings.checkpoint_every_s


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


def save(folder: Path, state: State, record: Record, facts: dict[str, Any], *, keep: int) -> None:
    """Write a checkpoint, put its digest on record and delete older ones."""
    path = checkpoint.save(folder, state, link=record.link(), facts=facts)
    step = int(path.name)
    digest = checkpoint.manifest_of(folder, step)["digest"]
    record.event("checkpoint", step=step, digest=digest)
    checkpoint.prune(folder, keep)


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


def _show(task: Task, tokens: int, seen: dict[str, Any], seconds: float) -> None:
    task.say(f"loss {float(seen['loss']):.3f}  {tokens / seconds:,.0f} tokens/s")
    task.advance()


@contextmanager
def _interrupts() -> Generator[list[int]]:
    """Collect the first interrupt to stop between steps; a second one stops at once."""
    asked: list[int] = []
    try:
        before = signal.getsignal(signal.SIGINT)

        def ask(number: int, frame: Any) -> None:
            del frame
            if asked:
                raise KeyboardInterrupt
            asked.append(number)

        signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread: no handler can be set, nothing to put back
        yield asked
        return
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
