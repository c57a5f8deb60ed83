"""Pooled waves: a fixed all-to-all with a gate at the sender and one at the receiver.

    N  assignments of a device, T * K, padding included     S  devices on the axis
    e  experts of a device        W  waves                  H  header rows
    P  rows sent to each device in a wave        R  rows taken by each expert in a wave

Every shape is static and no counts travel. A sender ranks its assignments for a device in order of
arrival; rank r goes in wave r mod W as row r div W, and is dropped if that is P or more. The first
H rows of what is sent hold each row's local expert + 1, or 0 where the row is empty, as numbers of
the rows' own dtype. A receiver ranks what came for each of its experts, source by source from
its own index on, so that what overflows is not always of the last sources; rank R or more is
dropped. Waves run one after the other and are computed anew in the backward pass.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from shoal.arrays.ops import at_least_float32
from shoal.moe.carry import Capacity, Tally, axis_index, axis_size
from shoal.moe.dispatch import combine, gather_rows, sort_by_expert
from shoal.moe.experts import Compute, ExpertWeights
from shoal.moe.room import receiver_rows, sender_rows

# Row numbers are small; sorting them once more in the backward pass is not.
_KEPT = "inbox"


class Outbox(NamedTuple):
    """Where each assignment goes: to whom, in which wave and row; and the way back.

    `slot_ids` holds the assignment of each row of each wave, N where the row is empty. `slots`
    holds the row of each assignment in its wave, S * P where it is dropped or padding.
    """

    slot_ids: Int[Array, "W Q"]
    slots: Int[Array, "T K"]
    waves: Int[Array, "T K"]
    dropped: Int[Array, ""]


class Inbox(NamedTuple):
    """How received rows are laid out for the experts: sorted, with true group sizes.

    `sources` holds the received row of each row of the layout, Q where there is none; `rows` the
    inverse, C where a received row is empty or not taken.
    """

    sources: Int[Array, " C"]
    rows: Int[Array, " Q"]
    group_sizes: Int[Array, " e"]
    dropped: Int[Array, ""]


def pooled(
    x: Float[Array, "T L"],
    expert_ids: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    params: ExpertWeights,
    compute: Compute,
    *,
    axis: str | None,
    capacity: Capacity,
) -> tuple[Float[Array, "T L"], Tally]:
    """Carry rows in fixed waves; see the module, and `carry.py` for the arguments."""
    shards, experts, waves = axis_size(axis), params.gate.shape[0], capacity.waves
    count = expert_ids.size
    sent = min(sender_rows(count, shards, waves, capacity.sender), -(-count // waves))
    taken = receiver_rows(count, experts, waves, capacity.receiver)
    _check_header(experts, x.dtype)
    out = address(expert_ids, shards=shards, experts=experts, waves=waves, rows=sent)

    body = partial(_wave, x, expert_ids, weights, params, compute, out, axis, sent, taken)
    nothing = jnp.zeros((), jnp.int32)
    start = (jnp.zeros(x.shape, at_least_float32(x.dtype)), nothing, nothing)
    keep = jax.checkpoint_policies.save_only_these_names(_KEPT)
    body = jax.checkpoint(body, policy=keep, prevent_cse=False)
    (y, dropped, delivered), _ = jax.lax.scan(body, start, jnp.arange(waves, dtype=jnp.int32))
    return y.astype(x.dtype), Tally(out.dropped, dropped, delivered)


def _wave(
    x: Float[Array, "T L"],
    expert_ids: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    params: ExpertWeights,
    compute: Compute,
    out: Outbox,
    axis: str | None,
    sent: int,
    taken: int,
    carried: tuple[Float[Array, "T L"], Int[Array, ""], Int[Array, ""]],
    wave: Int[Array, ""],
) -> tuple[tuple[Float[Array, "T L"], Int[Array, ""], Int[Array, ""]], None]:
    """One wave there and back, its results added to what earlier ones carried."""
    y, dropped, delivered = carried
    shards, experts = axis_size(axis), params.gate.shape[0]
    owners = out.slot_ids[wave]
    slots = jnp.where(out.waves == wave, out.slots, shards * sent)
    numbers = expert_ids.reshape(-1).astype(jnp.int32) % experts + 1
    local_ids = jnp.take(numbers, owners, mode="fill", fill_value=0)
    rows = gather_rows(x, owners // expert_ids.shape[1], slots)
    rows, local_ids = _exchanged(rows, local_ids, shards, axis)
    box = arrange(local_ids, start=axis_index(axis), experts=experts, rows=taken)
    box = checkpoint_name(box, _KEPT)
    rows = gather_rows(rows, box.sources, box.rows[:, None])
    rows = compute(params, rows, box.group_sizes)
    rows = gather_rows(rows, box.rows, box.sources[:, None])
    rows = _swap(rows.reshape(shards, sent, -1), axis).reshape(shards * sent, -1)
    y = y + combine(rows, slots, owners, weights)
    return (y, dropped + box.dropped, delivered + jnp.sum(box.group_sizes, dtype=jnp.int32)), None


def address(
    expert_ids: Int[Array, "T K"], *, shards: int, experts: int, waves: int, rows: int
) -> Outbox:
    """Give every assignment its device, wave and row, in order of arrival."""
    count = expert_ids.size
    order = sort_by_expert(expert_ids // experts, shards)
    starts = jnp.cumsum(order.group_sizes, dtype=jnp.int32) - order.group_sizes

    wave, shard, row = (jnp.arange(n, dtype=jnp.int32) for n in (waves, shards, rows))
    rank = row[None, None, :] * waves + wave[:, None, None]
    place = jnp.where(
        rank < order.group_sizes[shard][None, :, None], rank + starts[None, :, None], count
    )
    slot_ids = jnp.take(order.sorted_ids, place.reshape(waves, -1), mode="fill", fill_value=count)

    real = order.rows < count
    shard_of = jnp.minimum(expert_ids.astype(jnp.int32) // experts, shards - 1)
    rank_of = order.rows - starts[shard_of]
    kept = real & (rank_of // waves < rows)
    slots = jnp.where(kept, shard_of * rows + rank_of // waves, shards * rows)
    return Outbox(slot_ids, slots, rank_of % waves, jnp.sum(real & ~kept, dtype=jnp.int32))


def arrange(
    local_ids: Int[Array, "S P"], *, start: Int[Array, ""] | int, experts: int, rows: int
) -> Inbox:
    """Give each expert the first rows that came for it, source by source from `start` on.

    Args:
        local_ids: the local expert + 1 of each received row, 0 where it is empty.
        rows: R, what one expert takes.
    """
    shards, sent = local_ids.shape
    count = shards * sent
    # Position j of the turned order is row (start * P + j) mod Q as received.
    turn = start * sent
    turned = (jnp.arange(count, dtype=jnp.int32) + turn) % count
    wanted = jnp.where(local_ids > 0, local_ids - 1, experts).reshape(-1)
    order = sort_by_expert(wanted[turned][:, None], experts)
    first = jnp.cumsum(order.group_sizes, dtype=jnp.int32) - order.group_sizes

    sizes = jnp.minimum(order.group_sizes, rows)
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    row = jnp.arange(min(experts * rows, count), dtype=jnp.int32)
    owner = jnp.minimum(jnp.searchsorted(ends, row, side="right"), experts - 1)
    rank = row - (ends - sizes)[owner]
    place = jnp.where(row < ends[-1], first[owner] + rank, count)
    position = jnp.take(order.sorted_ids, place, mode="fill", fill_value=count)
    sources = jnp.where(position < count, (position + turn) % count, count)

    back = order.rows[:, 0][(jnp.arange(count, dtype=jnp.int32) - turn) % count]
    owner = jnp.minimum(wanted, experts - 1)
    rank = back - first[owner]
    kept = (wanted < experts) & (rank < rows)
    to_row = jnp.where(kept, (ends - sizes)[owner] + rank, row.shape[0])
    dropped = jnp.sum(order.group_sizes - sizes, dtype=jnp.int32)
    return Inbox(sources, to_row, sizes, dropped)


def _exchanged(
    rows: Float[Array, "Q L"], local_ids: Int[Array, " Q"], shards: int, axis: str | None
) -> tuple[Float[Array, "Q L"], Int[Array, "S P"]]:
    """Send rows and the header in one exchange; return what came."""
    sent, width = rows.shape[0] // shards, rows.shape[1]
    num_headers = -(-sent // width)
    header = local_ids.reshape(shards, sent).astype(rows.dtype)
    header = jnp.pad(header, ((0, 0), (0, num_headers * width - sent)))
    parcel = [header.reshape(shards, num_headers, width), rows.reshape(shards, sent, width)]
    came = _swap(jnp.concatenate(parcel, axis=1), axis)
    header = jax.lax.stop_gradient(came[:, :num_headers]).reshape(shards, -1)[:, :sent]
    return came[:, num_headers:].reshape(shards * sent, width), header.astype(jnp.int32)


def _swap(parcels: Float[Array, "S n L"], axis: str | None) -> Float[Array, "S n L"]:
    """Give parcel s to device s and return what each device gave."""
    return parcels if axis is None else jax.lax.all_to_all(parcels, axis, 0, 0, tiled=True)


def _check_header(experts: int, dtype: jnp.dtype) -> None:
    """Refuse experts whose number the rows' dtype does not hold exactly."""
    largest = 2 ** (jnp.finfo(dtype).nmant + 1)
    if experts > largest:
        raise ValueError(
            f"{experts} experts per device cannot be numbered in {jnp.dtype(dtype).name} headers, "
            f"which are exact to {largest}; use a larger mesh.expert or moe.transport=ragged"
        )
