"""Ragged: every device sends each expert exactly what it has for it; only receivers have limits.

    N  assignments of a device, T * K, padding included     S  devices on the axis
    E  experts in all            e  experts of a device      M  rows that a chunk takes

Assignments are sorted by expert, so a device's rows for one expert are one slice, and each slice
is one update of the ragged exchange. The counts [S, E] are gathered once; from them every device
computes alike what every receiver takes. A device's experts are worked through in `chunks` of
consecutive ones; the forward pass holds one chunk's rows at a time, the backward pass all.

A chunk of e' experts takes M = ceil(capacity.receiver * N * e' / e) rows, or everything that can
come, S * N, when the factor is S or more: then nothing is ever dropped. The sources have their
turn one after the other, from the receiver's own index on, each with its experts in order; of the
slice in which the room ends a prefix is taken, of later ones nothing. What is not taken is
a drop of the receiver: it never travels, but it is the receiver's room that it lacked.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.moe.carry import Capacity, Tally, axis_index, axis_size
from shoal.moe.dispatch import combine, gather_rows, sort_by_expert
from shoal.moe.exchange import ragged_exchange
from shoal.moe.experts import Compute, ExpertWeights
from shoal.moe.room import chunk_bounds, chunk_rows


class Route(NamedTuple):
    """One chunk's slices as this device sends them and as it receives them, S * e' each.

    Offsets are those of the ragged exchange: `*_there` in the sender's sorted rows and in the
    receiver's buffer, for what this device sends; `*_back` for what it received and returns.
    """

    sent_offsets: Int[Array, " n"]
    sent_sizes: Int[Array, " n"]
    placed_offsets: Int[Array, " n"]
    came_offsets: Int[Array, " n"]
    came_sizes: Int[Array, " n"]
    home_offsets: Int[Array, " n"]
    group_sizes: Int[Array, " c"]


def ragged(
    x: Float[Array, "T L"],
    expert_ids: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    params: ExpertWeights,
    compute: Compute,
    *,
    axis: str | None,
    capacity: Capacity,
) -> tuple[Float[Array, "T L"], Tally]:
    """Carry rows by ragged exchanges; see the module, and `carry.py` for the arguments."""
    shards, experts, own = axis_size(axis), params.gate.shape[0], axis_index(axis)
    order = sort_by_expert(expert_ids, shards * experts)
    rows = gather_rows(x, order.tokens, order.rows)
    sizes = order.group_sizes
    counts = sizes[None] if axis is None else jax.lax.all_gather(sizes, axis)
    counts = counts.reshape(shards, shards, experts)

    bounds = chunk_bounds(experts, capacity.chunks)
    banks = zip(*(_split(w, bounds) for w in jax.tree.leaves(params)), strict=True)
    returned = jnp.zeros_like(rows)
    delivered = jnp.zeros((), jnp.int32)
    for (first, last), bank in zip(bounds, banks, strict=True):
        room = chunk_rows(expert_ids.size, shards, experts, last - first, capacity.receiver)
        taken = accepted(counts[:, :, first:last], room)
        route = slices(counts, taken, own, first, last)
        inbox = ragged_exchange(
            rows,
            jnp.zeros((room, rows.shape[1]), rows.dtype),
            *(route.sent_offsets, route.sent_sizes, route.placed_offsets, route.came_sizes),
            axis=axis,
        )
        results = compute(ExpertWeights(*bank), inbox, route.group_sizes)
        returned = ragged_exchange(
            results,
            returned,
            *(route.came_offsets, route.came_sizes, route.home_offsets, route.sent_sizes),
            axis=axis,
        )
        delivered = delivered + jnp.sum(route.group_sizes, dtype=jnp.int32)
    y = combine(returned, order.rows, order.sorted_ids, weights)
    came = jnp.sum(counts[:, own], dtype=jnp.int32)
    tally = Tally(jnp.zeros((), jnp.int32), came - delivered, delivered)
    return y.astype(x.dtype), tally


def accepted(counts: Int[Array, "S D c"], room: int) -> Int[Array, "S D c"]:
    """Return how many rows of each slice the receivers take.

    Args:
        counts: what source s has for expert x of the chunk on receiver d.
        room: M, the rows of one receiver.
    """
    shards = counts.shape[1]
    place = jnp.arange(shards, dtype=jnp.int32)
    source = (place[:, None] + place[None, :]) % shards
    turned = counts[source, place[None, :]]
    flat = turned.transpose(1, 0, 2).reshape(shards, -1)
    before = jnp.cumsum(flat, axis=1, dtype=jnp.int32) - flat
    taken = jnp.clip(room - before, 0, flat).reshape(shards, shards, -1).transpose(1, 0, 2)
    turn = (place[:, None] - place[None, :]) % shards
    return taken[turn, place[None, :]]


def slices(
    counts: Int[Array, "S D e"],
    taken: Int[Array, "S D c"],
    own: Int[Array, ""] | int,
    first: int,
    last: int,
) -> Route:
    """Lay out one chunk: rows in the receiver's buffer stand by expert, and by source within."""
    shards = counts.shape[0]
    flat = counts.reshape(shards, -1)
    home = (jnp.cumsum(flat, axis=1, dtype=jnp.int32) - flat).reshape(counts.shape)[
        :, :, first:last
    ]
    sizes = jnp.sum(taken, axis=0, dtype=jnp.int32)
    starts = jnp.cumsum(sizes, axis=1, dtype=jnp.int32) - sizes
    placed = starts[None] + jnp.cumsum(taken, axis=0, dtype=jnp.int32) - taken
    return Route(
        sent_offsets=home[own].reshape(-1),
        sent_sizes=taken[own].reshape(-1),
        placed_offsets=placed[own].reshape(-1),
        came_offsets=placed[:, own].reshape(-1),
        came_sizes=taken[:, own].reshape(-1),
        home_offsets=home[:, own].reshape(-1),
        group_sizes=sizes[own],
    )


def _split(bank: Float[Array, "e I O"], bounds: list[tuple[int, int]]) -> list[Array]:
    return list(jax.lax.split(bank, [last - first for first, last in bounds], axis=0))
