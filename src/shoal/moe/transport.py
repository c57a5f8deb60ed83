"""Transports by name, and the simplest: every device computes its own tokens.

`local`   every expert on the device: uncapped, dropless; what an evaluator uses
`pooled`  a fixed all-to-all in waves, with a gate at the sender and one at the receiver
`ragged`  a ragged all-to-all, with room only limited at the receiver

With nothing dropped all of them give the same numbers. `carry.py` says what a transport must do.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.mesh import from_all
from shoal.moe.carry import Capacity, Carry, Tally, capacity_of
from shoal.moe.dispatch import combine, gather_rows, sort_by_expert
from shoal.moe.experts import Compute, ExpertWeights
from shoal.moe.pooled import pooled
from shoal.moe.ragged import ragged

__all__ = ["Capacity", "Carry", "Tally", "capacity_of", "local", "transport"]


def transport(name: str) -> Carry:
    """Return the transport of a name.

    Raises:
        ValueError: no such transport.
    """
    known: dict[str, Carry] = {"local": local, "pooled": pooled, "ragged": ragged}
    if name not in known:
        raise ValueError(f"moe.transport={name!r} is unknown; use {', '.join(known)}")
    return known[name]


def local(
    x: Float[Array, "T L"],
    expert_ids: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    params: ExpertWeights,
    compute: Compute,
    *,
    axis: str | None = None,
    capacity: Capacity | None = None,
) -> tuple[Float[Array, "T L"], Tally]:
    """All experts on this device, gathered over the axis if they are spread; nothing is dropped.

    The gather's transpose is a reduce-scatter: each device ends with its own experts' gradients.
    Banks travel in the dtype of x, gradients in that of the banks, which is what sums want.
    """
    del capacity
    if axis is not None:
        params = jax.tree.map(lambda w: from_all(w, axis, x.dtype), params)
    order = sort_by_expert(expert_ids, params.gate.shape[0])
    rows = gather_rows(x, order.tokens, order.rows)
    rows = compute(params, rows, order.group_sizes)
    y = combine(rows, order.rows, order.sorted_ids, weights)
    nothing = jnp.zeros((), jnp.int32)
    delivered = jnp.sum(order.group_sizes, dtype=jnp.int32)
    return y.astype(x.dtype), Tally(nothing, nothing, delivered)
