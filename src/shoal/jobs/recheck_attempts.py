"""Rechecks of a run's attempts: which one every metric is of, and by what right.

Of several lines of a step the highest attempt's counts, so whoever may append a line may say
anything of a step: an attempt must have gone on from a checkpoint on record, or from the start.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.core.record import EVENTS, METRICS, read_events, read_metrics
from shoal.jobs.findings import Check
from shoal.train.config import Config

# Steps after a resumption that are compared with the attempt before; a loss may differ by so much
# (docs/verify.md).
COMPARED_STEPS, ALLOWED = 64, 1e-2


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of the metrics, in the order of writing."""
    path = folder / METRICS
    if not path.exists():
        return
    with path.open("rb") as file:
        for raw in file:
            if raw.endswith(b"\n"):
                yield json.loads(raw)


def recheck_attempts(folder: Path, config: Config, check: Check) -> None:
    """Recheck where each attempt began, that its steps go up, and what it repeats of others."""
    events, steps, losses = read_events(folder), dict[int, list[int]](), dict[int, dict[int, Any]]()
    last = 0
    for line in lines_of(folder):
        attempt, step = line["attempt"], line["step"]
        if attempt < last:
            check.fails(f"step {step} of attempt {attempt} stands after attempt {last}")
        last = max(last, attempt)
        if steps.get(attempt) and step <= steps[attempt][-1]:
            check.fails(f"step {step} of attempt {attempt} stands after {steps[attempt][-1]}")
        steps.setdefault(attempt, []).append(step)
        losses.setdefault(step, {})[attempt] = line.get("loss")
    changed = any(event["kind"] == "change" for event in events)
    begun = {
        attempt: _begun(attempt, found[0], config, events, check, changed=changed)
        for attempt, found in steps.items()
    }
    repeated = 0 if changed else _repeated(losses, begun, check)
    stale = _course(folder, events, last, check)
    check.says = f"{len(steps)}, each from the start or a checkpoint on record"
    if repeated:
        check.says += f"; {repeated} steps stand twice, with losses that agree"
    if stale:
        check.says += f"; the last attempt has not come to steps {stale[0]} to {stale[-1]} again"


def _begun(
    attempt: int,
    first: int,
    config: Config,
    events: Sequence[Mapping[str, Any]],
    check: Check,
    *,
    changed: bool,
) -> int:
    """The step from which an attempt went on, by its `resume` event; 0 without one."""
    saved, begun, resumes = set[int](), 0, False
    for event in events:
        if event["kind"] == "checkpoint":
            saved.add(event["step"])
        if event["kind"] == "resume" and event["attempt"] == attempt:
            begun, resumes = event["step"], True
            if begun not in saved:
                spelled = f"attempt {attempt} resumed {begun}, and no checkpoint is on record there"
                check.fails(spelled, where=EVENTS)
    if not resumes and any(e["kind"] == "checkpoint" and e["attempt"] < attempt for e in events):
        check.fails(
            f"step {first} is of attempt {attempt}, and no event says that it went on from one of"
            " the checkpoints before it"
        )
    every = max(config.train.log_every_steps, 1)
    if not (begun < first and (changed or first <= begun + every)):
        spelled = f"first step of attempt {attempt}, which went on from {begun}"
        check.fails(spelled, expected=begun + every, found=first)
    return begun


def _repeated(
    losses: Mapping[int, Mapping[int, Any]], begun: Mapping[int, int], check: Check
) -> int:
    """Compare what several attempts say of one step; how many there are."""
    number = 0
    for step, found in losses.items():
        attempts = sorted(found)
        for one, other in pairwise(attempts):
            values = found[one], found[other]
            if step > begun[other] + COMPARED_STEPS or not all(
                isinstance(value, float) for value in values
            ):
                continue
            number += 1
            if not abs(values[0] - values[1]) <= ALLOWED * abs(values[0]):
                spelled = f"loss of step {step} in attempt {other}, by attempt {one}"
                check.fails(spelled, expected=values[0], found=values[1])
    return number


def _course(
    folder: Path, events: Sequence[Mapping[str, Any]], last: int, check: Check
) -> list[int]:
    """Steps of an earlier attempt above those of the last; none may be in a finished run."""
    lines = read_metrics(folder)
    own = [line["step"] for line in lines if line["attempt"] == last]
    stale = [line["step"] for line in lines if line["attempt"] < last and line["step"] > own[-1]]
    finished = max((e["attempt"] for e in events if e["kind"] == "finish"), default=0)
    if stale and finished >= last:
        check.fails(
            f"steps {own[0]} to {own[-1]} are of attempt {last}, the steps after them of an earlier"
            " one, and the run is finished"
        )
    return stale
