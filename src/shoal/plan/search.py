"""Layouts that fit, ranked by the bound of their step.

Tried: every way to write the chips as replica x data x expert (x context, only where no layout
without it fits), microbatches, where the state rests, remat. Layouts of one bound (many are bound
by the same operations) are ranked by the time without any overlap, then by bytes.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.plan.budget import bound_s, phase_times, serial_s
from shoal.plan.chips import Chip
from shoal.plan.layout import MEMORY_MODES, Layout, Workload, divisors, misfits
from shoal.plan.memory import chip_memory
from shoal.plan.traffic import moves

_MOST_MICROBATCHES = 16
_NO_ROOM = "exceeds the chip's memory"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One layout that fits: its bound and serial time in seconds, and its peak bytes a chip."""

    layout: Layout
    step_s_bound: float
    step_s_serial: float
    bytes_per_chip: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """Layouts that fit, best first, how many were tried, and why the others were thrown out."""

    ranked: tuple[Ranked, ...]
    tried: int
    thrown_out: dict[str, int]


def search(work: Workload, chip: Chip, num_chips: int) -> Found:
    """Rank every layout of a workload on a number of chips."""
    ranked: list[Ranked] = []
    thrown_out: Counter[str] = Counter()
    tried = 0
    contexts = [1, *(c for c in divisors(num_chips) if c > 1 and work.sequence_tokens % c == 0)]
    for context in contexts:
        for layout in _layouts(work, num_chips, context):
            tried += 1
            reason, found = _judged(work, layout, chip)
            if found is None:
                thrown_out[reason] += 1
            else:
                ranked.append(found)
        if ranked:
            break
    ranked.sort(key=_rank)
    return Found(ranked=tuple(ranked), tried=tried, thrown_out=dict(thrown_out.most_common()))


def judged(work: Workload, layout: Layout, chip: Chip) -> Ranked:
    """Return a layout with its figures, whether or not it fits the memory."""
    times = phase_times(work, layout, chip, moves(work, layout, chip))
    return Ranked(
        layout=layout,
        step_s_bound=bound_s(times),
        step_s_serial=serial_s(times),
        bytes_per_chip=chip_memory(work, layout, chip)["bytes_per_chip"],
    )


def _rank(found: Ranked) -> tuple[float, float, int]:
    # Bounds within a ten-thousandth are the same: they differ by what padding adds.
    return (float(f"{found.step_s_bound:.4g}"), found.step_s_serial, found.bytes_per_chip)


def _judged(work: Workload, layout: Layout, chip: Chip) -> tuple[str, Ranked | None]:
    for misfit in misfits(work, layout):
        return misfit.reason, None
    if not chip_memory(work, layout, chip)["fits"]:
        return _NO_ROOM, None
    return "", judged(work, layout, chip)


def _layouts(work: Workload, num_chips: int, context: int) -> Iterator[Layout]:
    """Yield layouts; where the mesh itself does not divide, only one for each mesh."""
    rest = num_chips // context
    for expert in divisors(rest):
        for data in divisors(rest // expert):
            mesh = Layout(replica=rest // expert // data, data=data, expert=expert, context=context)
            if any(True for _ in misfits(work, mesh)):
                yield mesh
                continue
            sequences = work.batch_sequences // mesh.batch_shards
            for parts in divisors(sequences):
                if parts > _MOST_MICROBATCHES:
                    break
                for memory in MEMORY_MODES:
                    for remat in (False, True):
                        yield dataclasses.replace(
                            mesh, accumulation=parts, memory=memory, remat=remat
                        )
