"""What a transport moves and holds on one chip, in rows; the sizes are those of `moe.room`.

N  assignments of a chip in one microbatch    S  chips of the expert axis    e  experts of a chip
"""

from dataclasses import dataclass

from shoal.moe.room import chunk_bounds, chunk_rows, receiver_rows, sender_rows
from shoal.plan.layout import Layout, Workload

# Waves are computed anew in the backward pass, whether their layer is or not.
_COMPUTED_ANEW = ("pooled",)


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """The static sizes of the pooled transport, in one microbatch.

    `header_rows` go with each destination's rows and hold one expert id per element.
    """

    assignments_per_shard: int
    sender_rows_per_wave: int
    receiver_rows_per_expert: int
    header_rows: int
    waves: int


def pooled_sizes(work: Workload, layout: Layout) -> Pooled:
    """Return what `pooled` allocates, whether or not the run uses it."""
    moe, count = work.moe, layout.assignments(work)
    experts = work.model.num_experts // layout.expert
    sent = sender_rows(count, layout.expert, moe.waves, moe.capacity_sender)
    sent = min(sent, -(-count // moe.waves))
    return Pooled(
        assignments_per_shard=count,
        sender_rows_per_wave=sent,
        receiver_rows_per_expert=receiver_rows(count, experts, moe.waves, moe.capacity_receiver),
        header_rows=-(-sent // work.model.routed_dim),
        waves=moe.waves,
    )


def pooled_fill(work: Workload, layout: Layout) -> float:
    """Return the rows that experts compute for each assignment: 1 unless buffers are padded."""
    if work.moe.transport != "pooled":
        return 1.0
    _, laid_out = live_rows(work, layout)
    return work.moe.waves * laid_out / layout.assignments(work)


def recomputed_pieces(work: Workload) -> int:
    """Return how often a transport's own pieces are computed again in the backward pass."""
    return int(work.moe.transport in _COMPUTED_ANEW)


def sent_rows(work: Workload, layout: Layout) -> float:
    """Return the rows that one pass one way takes out of a chip's buffers, its own part included.

    `pooled` sends whole buffers, `ragged` the rows that there are.
    """
    if work.moe.transport == "local":
        return 0.0
    if work.moe.transport == "ragged":
        return layout.assignments(work)
    sizes = pooled_sizes(work, layout)
    rows = sizes.sender_rows_per_wave + sizes.header_rows / 2  # ids travel one way only
    return layout.expert * sizes.waves * rows


def live_rows(work: Workload, layout: Layout) -> tuple[int, int]:
    """Return rows that a layer's backward pass holds: that travel, and laid out for experts.

    One wave of `pooled`, which computes them one by one; all chunks of `ragged`; all of `local`.
    """
    count = layout.assignments(work)
    experts = work.model.num_experts // layout.expert
    moe = work.moe
    if moe.transport == "local":
        return 0, count
    if moe.transport == "pooled":
        sizes = pooled_sizes(work, layout)
        each = sizes.sender_rows_per_wave + sizes.header_rows
        received = layout.expert * sizes.sender_rows_per_wave
        return layout.expert * each, min(experts * sizes.receiver_rows_per_expert, received)
    taken = sum(
        chunk_rows(count, layout.expert, experts, end - start, moe.capacity_receiver)
        for start, end in chunk_bounds(experts, moe.chunks)
    )
    return count, taken
