"""Where every token of a run stands: a pure function of the step, in token units.

A cell's documents form one stream that is cut into units of U tokens. A run consumes lanes; a lane
is one unit. Tables of M lanes hold an exact count of lanes per cell, each table shuffled by its own
key. A cell's lanes take its units in a permutation that is keyed by (seed, cell name, epoch).
B rows read B lanes side by side, S tokens a step, so U/S steps (a window) finish B lanes: row r of
step t reads slice (t - t0) mod (U/S) of lane n0 + r + B * ((t - t0) div (U/S)).

Context and mixture change only between windows, with B * S constant: nothing is repeated and
nothing is skipped. A new context goes on in the same tables; a new mixture starts new tables in
which every cell goes on from what it has consumed. A cell of weight zero changes nothing at all.
"""

import dataclasses
import difflib
import functools
import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from shoal.core.config import identity
from shoal.core.files import canonical_json

NUM_ROUNDS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """From `start_step` on: the batch, the context and the mixture (cell -> weight, any scale)."""

    start_step: int = identity()
    batch_sequences: int = identity()
    sequence_tokens: int = identity()
    weights: tuple[tuple[str, float], ...] = identity()

    def __post_init__(self) -> None:
        for name in ("batch_sequences", "sequence_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.start_step < 0:
            raise ValueError(f"start_step={self.start_step} must not be negative")
        names = [cell for cell, _ in self.weights]
        for cell, weight in self.weights:
            if names.count(cell) > 1:
                raise ValueError(f"cell {cell!r} has two weights; give one")
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(
                    f"weight {weight} of cell {cell!r} must be finite and not negative"
                )
        if not any(weight for _, weight in self.weights):
            raise ValueError("no cell has a positive weight; give at least one")


class Location(NamedTuple):
    """One row of one step: tokens [slice * S, (slice + 1) * S) of a cell's unit."""

    cell: str
    epoch: int
    unit: int
    slice: int


class Locations(NamedTuple):
    """All rows of one step; `cell` indexes `cells`, the slice is the same for all rows."""

    cells: tuple[str, ...]
    cell: Int[np.ndarray, "B"]
    epoch: Int[np.ndarray, "B"]
    unit: Int[np.ndarray, "B"]
    slice: int


class _Mixture(NamedTuple):
    """Tables of one kind: what starts anew when the mixture changes."""

    start_lane: int
    counts: tuple[tuple[str, int], ...]
    offsets: Mapping[str, int]


class _Span(NamedTuple):
    """A phase, and where it stands in lanes."""

    phase: Phase
    start_lane: int
    window_steps: int
    mixture: _Mixture

    def lane(self, step: int) -> tuple[int, int]:
        """The lane of row 0, and the slice of it that the step reads."""
        window, part = divmod(step - self.phase.start_step, self.window_steps)
        return self.start_lane + window * self.phase.batch_sequences, part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a run's data.

    Args:
        phases: ascending by start step, the first at 0.
        units: cell -> number of units; more cells than have weights do no harm.
        unit_tokens: U, a multiple of every phase's sequence length.
        seed: of all permutations.
        table_lanes: M, the grain of the mixture: weights are rounded to multiples of 1/M.

    Raises:
        ValueError: the phases do not fit each other or the cells; the message says what would.
    """

    phases: tuple[Phase, ...]
    units: Mapping[str, int]
    unit_tokens: int
    seed: int
    table_lanes: int

    def __post_init__(self) -> None:
        assert self._spans  # lays out and checks the phases now, not at the first batch

    @functools.cached_property
    def _spans(self) -> tuple[_Span, ...]:
        spans: list[_Span] = []
        for phase in self.phases:
            window_steps = _window_steps(phase, self.unit_tokens)
            counts = lane_counts(phase.weights, self.table_lanes)
            _check_units(counts, self.units, self.unit_tokens)
            if not spans:
                if phase.start_step:
                    raise ValueError(f"the first phase starts at {phase.start_step}; set it to 0")
                spans.append(_Span(phase, 0, window_steps, _Mixture(0, counts, {})))
                continue
            before = spans[-1]
            _check_change(before, phase)
            lane, _ = before.lane(phase.start_step)
            mixture = before.mixture
            if mixture.counts != counts:
                mixture = _Mixture(lane, counts, self._units_before(mixture, lane))
            spans.append(_Span(phase, lane, window_steps, mixture))
        if not spans:
            raise ValueError("there is no phase; give one that starts at step 0")
        return tuple(spans)

    def phase(self, step: int) -> Phase:
        """The phase that a step belongs to."""
        return self._span(step).phase

    def locate(self, step: int, row: int) -> Location:
        """Where one row of one step stands."""
        found = self.locate_step(step)
        cell = found.cells[int(found.cell[row])]
        return Location(cell, int(found.epoch[row]), int(found.unit[row]), found.slice)

    def locate_step(self, step: int) -> Locations:
        """Where all rows of one step stand."""
        span = self._span(step)
        lane, part = span.lane(step)
        cells = tuple(cell for cell, _ in span.mixture.counts)
        cell, index = _find(span.mixture, lane, span.phase.batch_sequences, self.seed)
        sizes = np.array([self.units[name] for name in cells], np.int64)[cell]
        epoch = index // sizes
        unit = _visit(cells, cell, epoch, index % sizes, sizes, self.seed)
        return Locations(cells, cell, epoch, unit, part)

    def consumed(self, step: int) -> dict[str, int]:
        """Units of every cell that were begun before a step."""
        span = self._span(step)
        lane, part = span.lane(step)
        return self._units_before(span.mixture, lane + span.phase.batch_sequences * (part > 0))

    def consumed_tokens(self, step: int) -> dict[str, int]:
        """Tokens of every cell that were read before a step; over units * U, that is its epochs."""
        span = self._span(step)
        lane, part = span.lane(step)
        done = self._units_before(span.mixture, lane)
        begun = self._units_before(span.mixture, lane + span.phase.batch_sequences)
        read = part * span.phase.sequence_tokens
        return {
            cell: done[cell] * self.unit_tokens + (begun[cell] - done[cell]) * read for cell in done
        }

    def _span(self, step: int) -> _Span:
        assert step >= 0, f"step {step}"
        starts = [phase.start_step for phase in self.phases]
        return self._spans[bisect_right(starts, step) - 1]

    def _units_before(self, mixture: _Mixture, lane: int) -> dict[str, int]:
        number, position = divmod(lane - mixture.start_lane, self.table_lanes)
        table = _table(self.seed, mixture.start_lane, number, mixture.counts)
        begun = np.bincount(table.cell[:position], minlength=len(mixture.counts))
        units = {cell: mixture.offsets.get(cell, 0) for cell in self.units}
        for (cell, count), extra in zip(mixture.counts, begun, strict=True):
            units[cell] += number * count + int(extra)
        return units


def lane_counts(
    weights: tuple[tuple[str, float], ...], table_lanes: int
) -> tuple[tuple[str, int], ...]:
    """Lanes of each cell in a table, by name: largest remainder, ties by name, exact arithmetic.

    Raises:
        ValueError: a positive weight would get no lane.
    """
    if table_lanes < 1:
        raise ValueError(f"table_lanes={table_lanes} must be at least 1")
    shares = {cell: Fraction(weight) for cell, weight in sorted(weights) if weight > 0}
    total = sum(shares.values())
    exact = {cell: share * table_lanes / total for cell, share in shares.items()}
    counts = {cell: math.floor(lanes) for cell, lanes in exact.items()}
    by_remainder = sorted(exact, key=lambda cell: (counts[cell] - exact[cell], cell))
    for cell in by_remainder[: table_lanes - sum(counts.values())]:
        counts[cell] += 1
    for cell, count in counts.items():
        if count == 0:
            needed = math.ceil(total / shares[cell])
            raise ValueError(
                f"cell {cell!r} has weight share {float(shares[cell] / total):.3g}, less than one "
                f"of table_lanes={table_lanes} lanes; raise table_lanes to {needed}, or set its "
                "weight to 0"
            )
    return tuple(counts.items())


def permute(
    index: Int[np.ndarray, "N"],
    size: Int[np.ndarray, "#N"],
    keys: UInt64[np.ndarray, "R #N"],
) -> Int[np.ndarray, "N"]:
    """Maps [0, size) onto itself, one keyed bijection per key column.

    A Feistel network on a grid of ceil(sqrt(size)) by as many rows as are needed; an index that
    lands in the grid's last few cells, beyond `size`, walks on until it is back.
    """
    sides = np.sqrt(size).astype(np.int64)
    sides += sides * sides < size
    limit, sides, rows = (
        np.broadcast_to(a, index.shape).astype(np.uint64) for a in (size, sides, -(-size // sides))
    )
    keys = np.broadcast_to(keys, (len(keys), *index.shape))
    result = index.astype(np.uint64)
    walking = np.arange(len(index))
    while len(walking):
        a, b = sides[walking], rows[walking]
        left, right = np.divmod(result[walking], b)
        for number, key in enumerate(keys[:, walking]):
            if number % 2:
                right = (right + _mix(left + key)) % b
            else:
                left = (left + _mix(right + key)) % a
        result[walking] = left * b + right
        walking = walking[result[walking] >= limit[walking]]
    return result.astype(np.int64)


def _mix(value: UInt64[np.ndarray, "N"]) -> UInt64[np.ndarray, "N"]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    # 63 bits, so that adding a grid coordinate never wraps.
    return (value ^ (value >> np.uint64(31))) >> np.uint64(1)


@functools.lru_cache(maxsize=256)
def _keys(*parts: str | int) -> UInt64[np.ndarray, "R 1"]:
    """Round keys from a seed and a purpose, the same on every machine."""
    text = canonical_json(parts).encode()
    digest = hashlib.blake2b(text, digest_size=8 * NUM_ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64).reshape(NUM_ROUNDS, 1)


class _Table(NamedTuple):
    """One table of M lanes; `rank` counts a cell's lanes in the order in which they are read."""

    cell: Int[np.ndarray, "M"]
    rank: Int[np.ndarray, "M"]


@functools.lru_cache(maxsize=64)
def _table(seed: int, start_lane: int, number: int, counts: tuple[tuple[str, int], ...]) -> _Table:
    lanes = np.array([count for _, count in counts], np.int64)
    size = int(lanes.sum())
    places = permute(np.arange(size), np.array([size]), _keys("table", seed, start_lane, number))
    cell = np.repeat(np.arange(len(lanes)), lanes)[places]
    rank = np.empty(size, np.int64)
    # A stable sort by cell keeps the order of reading inside each cell.
    rank[np.argsort(cell, kind="stable")] = np.arange(size) - np.repeat(
        np.cumsum(lanes) - lanes, lanes
    )
    return _Table(cell, rank)


def _find(
    mixture: _Mixture, lane: int, num_lanes: int, seed: int
) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "B"]]:
    """Cell of each lane, and how many units of that cell come before it in the whole run."""
    counts = np.array([count for _, count in mixture.counts], np.int64)
    offsets = np.array([mixture.offsets.get(cell, 0) for cell, _ in mixture.counts], np.int64)
    numbers, places = np.divmod(lane - mixture.start_lane + np.arange(num_lanes), counts.sum())
    cell, index = np.empty(num_lanes, np.int64), np.empty(num_lanes, np.int64)
    for number in range(int(numbers[0]), int(numbers[-1]) + 1):
        rows = numbers == number
        table = _table(seed, mixture.start_lane, number, mixture.counts)
        cell[rows] = table.cell[places[rows]]
        index[rows] = table.rank[places[rows]]
    return cell, index + numbers * counts[cell] + offsets[cell]


def _visit(
    cells: tuple[str, ...],
    cell: Int[np.ndarray, "B"],
    epoch: Int[np.ndarray, "B"],
    index: Int[np.ndarray, "B"],
    sizes: Int[np.ndarray, "B"],
    seed: int,
) -> Int[np.ndarray, "B"]:
    """The unit that each cell visits at an index of an epoch."""
    kinds, which = np.unique(epoch * len(cells) + cell, return_inverse=True)
    pairs = [divmod(int(kind), len(cells)) for kind in kinds]
    keys = np.hstack([_keys("unit", seed, cells[number], past) for past, number in pairs])
    return permute(index, sizes, keys[:, which])


def _window_steps(phase: Phase, unit_tokens: int) -> int:
    if unit_tokens % phase.sequence_tokens:
        raise ValueError(
            f"unit_tokens={unit_tokens} is not divisible by sequence_tokens="
            f"{phase.sequence_tokens}; use a divisor, such as "
            f"{math.gcd(unit_tokens, phase.sequence_tokens)}"
        )
    return unit_tokens // phase.sequence_tokens


def _check_units(
    counts: tuple[tuple[str, int], ...], units: Mapping[str, int], unit_tokens: int
) -> None:
    for cell, _ in counts:
        if cell not in units:
            near = difflib.get_close_matches(cell, units, n=1, cutoff=0) or ["none"]
            raise ValueError(f"the corpus has no cell {cell!r}; the nearest is {near[0]!r}")
        if units[cell] < 1:
            raise ValueError(
                f"cell {cell!r} has a weight but less than one unit of {unit_tokens} tokens; "
                "give it more text, lower unit_tokens, or set its weight to 0"
            )


def _check_change(before: _Span, phase: Phase) -> None:
    old = before.phase
    if phase.start_step <= old.start_step:
        raise ValueError(
            f"a phase starts at step {phase.start_step}, not after the one before it at "
            f"{old.start_step}; put phases in ascending order"
        )
    tokens = old.batch_sequences * old.sequence_tokens
    if phase.batch_sequences * phase.sequence_tokens != tokens:
        exact = tokens % phase.sequence_tokens == 0
        remedy = (
            f"batch_sequences={tokens // phase.sequence_tokens}"
            if exact
            else f"a sequence_tokens that divides {tokens}"
        )
        raise ValueError(
            f"the phase at step {phase.start_step} has {phase.batch_sequences} x "
            f"{phase.sequence_tokens} tokens a step, not {tokens} as before; use {remedy}"
        )
    past = (phase.start_step - old.start_step) % before.window_steps
    if past:
        lower = phase.start_step - past
        nearest = [step for step in (lower, lower + before.window_steps) if step > old.start_step]
        raise ValueError(
            f"a phase cannot start at step {phase.start_step}: units of the one before are half "
            f"read; the nearest steps are {' and '.join(map(str, nearest))}"
        )
