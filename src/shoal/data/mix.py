"""The mixture of a run: how many lanes of each cell, in two phases, under a cap on repetition.

A run reads its data in two phases, by default 80 % and 20 % of its steps; the second is the
cooldown. `mixture` turns a rule into whole numbers of lanes per table (`data.order`), so that what
is asked for is what is read, and says how often each cell is then read.

Caps: let T[p] be the lanes of phase p, w[p, c] the wanted shares and L[c] = max_epochs x units[c].
The shares are those closest to the wanted ones, by sum of T[p] x KL(x[p] | w[p]), with
sum over p of T[p] x[p, c] <= L[c]. So a cell below its cap keeps its proportion to the others in
the phase, a cell at its cap gives up the same factor in both phases, and what it gives up goes to
the others as they stand. In one phase this is filling with water.

Heuristic weights: units ** size_exponent x ratio ** level, with `quality_ratio` before the cooldown
and `cooldown_ratio` in it; the level is that of the cell's name (`t07-q3`), and cells without one,
such as sources, weigh by their size.
"""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from shoal.core.files import read_limited
from shoal.data.settings import MixConfig

PHASES = ("pretrain", "cooldown")
LIMIT_BYTES = 16 * 2**20
TABLE_SHIFT = 0.02
_LEVEL = re.compile(r"-q(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What of a run decides its mixture; names as in `data.order`."""

    num_steps: int
    batch_sequences: int
    sequence_tokens: int
    unit_tokens: int
    table_lanes: int

    def __post_init__(self) -> None:
        if self.unit_tokens % self.sequence_tokens:
            raise ValueError(
                f"unit_tokens={self.unit_tokens} is not divisible by sequence_tokens="
                f"{self.sequence_tokens}; use a divisor, such as "
                f"{math.gcd(self.unit_tokens, self.sequence_tokens)}"
            )

    @property
    def window_steps(self) -> int:
        """A mixture changes only between windows."""
        return self.unit_tokens // self.sequence_tokens

    @property
    def table_steps(self) -> int:
        """After so many steps a whole number of tables and of windows has been read."""
        lanes = math.lcm(self.table_lanes, self.batch_sequences)
        return lanes // self.batch_sequences * self.window_steps

    def lanes(self, steps: int) -> float:
        """Lanes, which are units, that so many steps read."""
        return steps / self.window_steps * self.batch_sequences


@dataclass(frozen=True, kw_only=True)
class Mix:
    """A mixture, ready for `data.order.Phase`.

    Attributes:
        phases: (start step, lanes of each cell in a table).
        epochs: cell -> how often each phase reads it, on average over tables.
        left_out: cell -> why it is not read at all.
        capped: cells that the cap has held down.
    """

    phases: tuple[tuple[int, tuple[tuple[str, float], ...]], ...]
    epochs: Mapping[str, tuple[float, ...]]
    left_out: Mapping[str, str]
    capped: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """For a record: start steps, shares and epochs per cell and phase."""
        totals = [sum(lanes for _, lanes in weights) for _, weights in self.phases]
        shares = [
            {cell: lanes / total for cell, lanes in weights}
            for (_, weights), total in zip(self.phases, totals, strict=True)
        ]
        return {
            "start_steps": [start for start, _ in self.phases],
            "cells": {
                cell: {
                    "shares": [share.get(cell, 0.0) for share in shares],
                    "epochs": list(epochs),
                    "capped": cell in self.capped,
                }
                for cell, epochs in self.epochs.items()
            },
            "left_out": dict(self.left_out),
        }


def mixture(config: MixConfig, units: Mapping[str, int], shape: Shape) -> Mix:
    """The mixture of a run over cells of so many units.

    Raises:
        ValueError: the table names no cell of the corpus, the run is too short for two phases, or
            the cells hold too little for the run under the cap.
    """
    left_out = {cell: "holds less than one unit" for cell, held in units.items() if held < 1}
    cells = sorted(set(units) - set(left_out))
    if not cells:
        raise ValueError("no cell holds one unit; give more text or a smaller unit_tokens")
    starts = phase_starts(config.cooldown_share, shape)
    steps = [end - start for start, end in zip(starts, [*starts[1:], shape.num_steps], strict=True)]
    lanes = np.array([shape.lanes(number) for number in steps])
    sizes = np.array([units[cell] for cell in cells], np.float64)
    wanted = _wanted(config, cells, sizes, units)[: len(steps)]
    limits = config.max_epochs * sizes if config.max_epochs else np.full(len(cells), np.inf)
    counts = _without_crumbs(wanted, lanes, limits, shape.table_lanes)
    read = counts * (lanes / shape.table_lanes)[:, None]
    left_out |= {
        cell: "its weight is 0" if not wanted[:, place].any() else "its share is below half a lane"
        for place, cell in enumerate(cells)
        if not counts[:, place].any()
    }
    uncapped = (wanted * lanes[:, None]).sum(0)
    return Mix(
        phases=tuple(
            (start, tuple((cell, float(n)) for cell, n in zip(cells, row, strict=True) if n))
            for start, row in zip(starts, counts.tolist(), strict=True)
        ),
        epochs={
            cell: tuple((read[:, place] / sizes[place]).tolist())
            for place, cell in enumerate(cells)
            if cell not in left_out
        },
        left_out=left_out,
        capped=tuple(
            cell for place, cell in enumerate(cells) if uncapped[place] > limits[place] * (1 + 1e-9)
        ),
    )


def phase_starts(cooldown_share: float, shape: Shape) -> list[int]:
    """Start steps of the phases: the cooldown's at a whole table if one is near, else a window's.

    Raises:
        ValueError: the run has no step between its windows where a cooldown could start.
    """
    if cooldown_share == 0:
        return [0]
    target = (1 - cooldown_share) * shape.num_steps
    whole = round(target / shape.table_steps) * shape.table_steps
    if 0 < whole < shape.num_steps and abs(whole - target) <= TABLE_SHIFT * shape.num_steps:
        return [0, whole]
    last = (shape.num_steps - 1) // shape.window_steps
    if last < 1:
        raise ValueError(
            f"num_steps={shape.num_steps} is one window of {shape.window_steps} steps: no cooldown "
            "can start in it; use more steps, or cooldown_share=0"
        )
    window = min(max(1, round(target / shape.window_steps)), last)
    return [0, window * shape.window_steps]


def capped(
    wanted: Float[np.ndarray, "P C"],
    lanes: Float[np.ndarray, " P"],
    limits: Float[np.ndarray, " C"],
) -> Float[np.ndarray, "P C"]:
    """Shares closest to the wanted ones of which no cell is read more than its limit.

    Args:
        wanted: shares of each phase, on any scale.
        lanes: of each phase.
        limits: lanes of each cell over all phases; infinite for no limit.

    Raises:
        ValueError: the wanted cells cannot fill the phases within their limits.
    """
    scale = lanes.sum()
    share, cap = lanes / scale, limits / scale
    base = np.where(cap > 0, wanted, 0.0)
    for number in range(1, len(share) + 1):
        for group in map(list, combinations(range(len(share)), number)):
            room = cap[base[group].any(0)].sum()
            if room < share[group].sum() * (1 - 1e-12):
                raise ValueError(
                    f"the run reads {share[group].sum() * scale:,.0f} units in phase "
                    f"{' and '.join(str(p) for p in group)}, its cells allow {room * scale:,.0f} "
                    "within max_epochs; raise max_epochs, shorten the run, or give weight to more "
                    "cells"
                )
    base = base / base.sum(1, keepdims=True)
    logs = _multipliers(base, share, cap)
    taken = share[:, None] * np.exp(logs)[:, None] * base
    total = taken.sum(0)
    held = taken * np.minimum(1.0, np.divide(cap, total, where=total > 0, out=np.ones_like(cap)))
    return held / held.sum(1, keepdims=True)


def lanes_within(
    shares: Float[np.ndarray, "P C"],
    lanes: Float[np.ndarray, " P"],
    limits: Float[np.ndarray, " C"],
    table_lanes: int,
) -> Int[np.ndarray, "P C"]:
    """Whole lanes per table: largest remainder first, but none that would break a cell's limit.

    Raises:
        ValueError: the limits leave no room for whole lanes.
    """
    exact = shares * table_lanes
    counts = np.floor(exact + 1e-9).astype(np.int64)
    tables = lanes / table_lanes
    slack = limits * (1 + 1e-9)
    for phase in reversed(range(len(shares))):
        order = np.argsort(counts[phase] - exact[phase], kind="stable")
        missing = table_lanes - int(counts[phase].sum())
        while missing:
            room = tables @ counts + tables[phase] <= slack
            free = [c for c in order if room[c] and shares[phase, c] > 0][:missing]
            if not free:
                raise ValueError(
                    f"{missing} of table_lanes={table_lanes} lanes find no cell that may be read "
                    "more often; raise table_lanes or max_epochs"
                )
            counts[phase, free] += 1
            missing -= len(free)
    return counts


def simulated(
    tokens: Mapping[str, int], budget_tokens: int, target_tokens: int, unit_tokens: int
) -> dict[str, int]:
    """Tokens of each cell that a small run may read, so that it repeats them as the large one does.

    Whole units, rounded down and at least one of every cell that has one: under one mixture a
    cell's epochs are then those of the target, or a little more.

    Raises:
        ValueError: the budget is larger than the target, or one is not positive.
    """
    if not 0 < budget_tokens <= target_tokens:
        raise ValueError(
            f"budget_tokens={budget_tokens}, target_tokens={target_tokens}: simulate a run that is "
            "at least as long as this one"
        )
    limits: dict[str, int] = {}
    for cell, held in sorted(tokens.items()):
        units = held // unit_tokens
        kept = units * budget_tokens // target_tokens
        limits[cell] = unit_tokens * max(min(units, 1), kept)
    return limits


def spread(kept: int, units: int) -> Int[np.ndarray, " kept"]:
    """Which units of a cell the sliced one keeps: evenly, since a cell stands source by source."""
    assert 0 <= kept <= units, (kept, units)
    return np.arange(kept, dtype=np.int64) * units // max(1, kept)


def read_weights(path: Path) -> tuple[tuple[str, float, float], ...]:
    """A table of weights: CSV with the columns cell, pretrain, cooldown, or JSON of the same.

    JSON is `{CELL: {"pretrain": W, "cooldown": W}}` or `{CELL: W}`; one weight stands for both.

    Raises:
        ValueError: the file cannot be read as such a table; the message names the cell.
    """
    text = read_limited(path, LIMIT_BYTES).decode("utf-8-sig")
    try:
        rows = _json_rows(json.loads(text)) if path.suffix == ".json" else _csv_rows(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not rows:
        raise ValueError(f"{path} has no row; give cell, {', '.join(PHASES)}")
    found: dict[str, tuple[float, float]] = {}
    for cell, given in rows:
        if cell in found:
            raise ValueError(f"{path}: cell {cell!r} has two rows; keep one")
        try:
            first, second = (float(value) for value in given)
        except (TypeError, ValueError):
            raise ValueError(
                f"{path}: cell {cell!r} has weights {list(given)}; give {' and '.join(PHASES)}"
            ) from None
        if not (first >= 0 and second >= 0 and math.isfinite(first + second)):
            raise ValueError(f"{path}: cell {cell!r} has weights {first}, {second}; use 0 or more")
        found[cell] = (first, second)
    return tuple((cell, *found[cell]) for cell in sorted(found))


def _json_rows(tree: Any) -> list[tuple[str, Sequence[Any]]]:
    if not isinstance(tree, dict):
        return []
    return [
        (cell, [value.get(phase) for phase in PHASES] if isinstance(value, dict) else [value] * 2)
        for cell, value in tree.items()
    ]


def _csv_rows(text: str) -> list[tuple[str, Sequence[Any]]]:
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in ("cell", PHASES[0]) if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"a table of weights lacks the column {missing[0]!r}")
    both = PHASES[1] in (rows.fieldnames or ())
    return [(row["cell"], [row[PHASES[0]], row[PHASES[both]]]) for row in rows]


def _wanted(
    config: MixConfig, cells: list[str], sizes: Float[np.ndarray, " C"], units: Mapping[str, int]
) -> Float[np.ndarray, "2 C"]:
    """Shares of both phases as the rule has them, before any cap."""
    if config.rule == "natural":
        weights = np.stack([sizes, sizes])
    elif config.rule == "heuristic":
        levels = [int(found[1]) if (found := _LEVEL.search(cell)) else 0 for cell in cells]
        ratios = np.array([[config.quality_ratio], [config.cooldown_ratio]])
        weights = sizes**config.size_exponent * ratios ** np.array(levels)
    else:
        table = {cell: given for cell, *given in config.table}
        unknown = sorted(set(table) - set(units))
        if unknown:
            raise ValueError(
                f"the mixture names {len(unknown)} cells that the corpus lacks, such as "
                f"{unknown[0]!r}; it has {', '.join(cells[:6])}{' ...' if len(cells) > 6 else ''}"
            )
        weights = np.array([table.get(cell, (0.0, 0.0)) for cell in cells]).T
    for phase, row in zip(PHASES, weights, strict=True):
        if not row.any():
            raise ValueError(f"no cell that holds a unit has a weight in phase {phase}; give one")
    return weights / weights.sum(1, keepdims=True)


def _without_crumbs(
    wanted: Float[np.ndarray, "P C"],
    lanes: Float[np.ndarray, " P"],
    limits: Float[np.ndarray, " C"],
    table_lanes: int,
) -> Int[np.ndarray, "P C"]:
    """Lanes under the caps, without shares of less than half a lane of a table."""
    while True:
        shares = capped(wanted, lanes, limits)
        crumbs = (shares > 0) & (shares * table_lanes < 0.5)
        if not crumbs.any():
            return lanes_within(shares, lanes, limits, table_lanes)
        wanted = np.where(crumbs, 0.0, wanted)
        if not wanted.any(1).all():
            raise ValueError(
                f"every cell's share is below half of one of table_lanes={table_lanes} lanes; "
                "raise table_lanes"
            )


def _multipliers(
    base: Float[np.ndarray, "P C"], share: Float[np.ndarray, " P"], cap: Float[np.ndarray, " C"]
) -> Float[np.ndarray, " P"]:
    """Logarithms of what the phases' shares are raised by: the minimum of the convex dual."""

    def dual(logs: Float[np.ndarray, " P"]) -> float:
        total = (share * np.exp(logs)) @ base
        ratio = np.divide(total, cap, where=total > cap, out=np.ones_like(total))
        return float(np.where(total > cap, cap, total) @ (1 + np.log(ratio)) - share @ logs)

    logs = np.zeros(len(share))
    for _ in range(500):
        taken = (share * np.exp(logs))[:, None] * base
        total = taken.sum(0)
        full = total > cap
        held = taken * np.where(full, cap / np.where(full, total, 1.0), 1.0)
        slope = held.sum(1) - share
        if np.abs(slope / share).max() < 1e-13:
            break
        bend = np.diag(held.sum(1)) - (held[:, full] / cap[full]) @ held[:, full].T
        step = np.linalg.lstsq(bend + 1e-15 * np.eye(len(share)), -slope, rcond=None)[0]
        step *= min(1.0, 4.0 / np.abs(step).max())
        size, before = 1.0, dual(logs)
        while dual(logs + size * step) > before + 1e-15 and size > 1e-6:
            size /= 2
        logs = logs + size * step
    return logs
