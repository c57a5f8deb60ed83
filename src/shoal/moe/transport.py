"""Transport: carrying rows to their experts and the results back. Routing decides what goes.

Every transport has one signature:

    carry(x[T, L], expert_ids[T, K], weights[T, K], params, compute, *, axis, capacity)
        -> (y[T, L], Dropped)

Expert parameters are an argument, never closed over: closures over sharded arrays fail in
`shard_map`. With nothing dropped all transports give the same numbers.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.moe.dispatch import gather_rows, sort_by_expert
from shoal.moe.experts import Compute, ExpertWeights


class Dropped(NamedTuple):
    """Assignments of real tokens that no expert computed; a dropped one contributes nothing."""

    sender: Int[Array, ""]
    receiver: Int[Array, ""]


@runtime_checkable
class Carry(Protocol):
    """The signature above; the specification of a transport."""

    def __call__(
        self,
        x: Float[Array, "T L"],
        expert_ids: Int[Array, "T K"],
        weights: Float[Array, "T K"],
        params: ExpertWeights,
        compute: Compute,
        *,
        axis: str | None,
        capacity: float | None,
    ) -> tuple[Float[Array, "T L"], Dropped]: ...


def local(
    x: Float[Array, "T L"],
    expert_ids: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    params: ExpertWeights,
    compute: Compute,
    *,
    axis: str | None = None,
    capacity: float | None = None,
) -> tuple[Float[Array, "T L"], Dropped]:
    """All experts on this device, nothing dropped; `axis` and `capacity` have no meaning here."""
    del axis, capacity
    tokens, top_k = expert_ids.shape
    order = sort_by_expert(expert_ids, params.gate.shape[0])
    rows = gather_rows(x, order.tokens, order.rows)
    rows = compute(params, rows, order.group_sizes)
    back = gather_rows(rows, order.rows.reshape(-1), order.sorted_ids[:, None])
    y = jnp.einsum("tkl,tk->tl", back.reshape(tokens, top_k, -1), weights.astype(x.dtype))
    nothing = jnp.zeros((), jnp.int32)
    return y, Dropped(sender=nothing, receiver=nothing)
