"""Moving rows between token order and expert order, forward and backward by gathers alone.

A scatter-add is slow everywhere and unordered on a GPU. Where the inverse of an index is known,
the transpose of a gather is a gather too.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.ops import at_least_float32


class Order(NamedTuple):
    """Assignments sorted by expert; row r of the sorted rows is assignment `sorted_ids[r]`.

    Padding comes last and is nobody's: its rows have the token T and the assignment T * K, its
    assignments the row T * K.
    """

    tokens: Int[Array, " R"]
    sorted_ids: Int[Array, " R"]
    rows: Int[Array, "T K"]
    group_sizes: Int[Array, " E"]


def sort_by_expert(expert_ids: Int[Array, "T K"], num_experts: int) -> Order:
    """Sort the T * K assignments by expert, stable in token order; the id E is padding.

    Indices are int32 whatever `expert_ids` are.
    """
    tokens, top_k = expert_ids.shape
    flat = expert_ids.reshape(-1).astype(jnp.int32)
    none = flat.shape[0]
    by_expert = jnp.argsort(flat, stable=True).astype(jnp.int32)
    rows = jnp.argsort(by_expert, stable=True).astype(jnp.int32).reshape(tokens, top_k)
    rows = jnp.where(expert_ids < num_experts, rows, none)
    sizes = jnp.bincount(flat, length=num_experts).astype(jnp.int32)
    owners = jnp.where(jnp.arange(none) < jnp.sum(sizes), by_expert, none)
    return Order(owners // top_k, owners, rows, sizes)


@jax.custom_vjp
def gather_rows(
    x: Float[Array, "R L"], index: Int[Array, " Q"], inverse: Int[Array, "R m"]
) -> Float[Array, "Q L"]:
    """Return x[index]; an index of R gives a zero row.

    Args:
        inverse: the positions of `index` that hold each row; Q where there are fewer than m.
    """
    del inverse
    return jnp.take(x, index, axis=0, mode="fill", fill_value=0)


def _gather_forward(
    x: Float[Array, "R L"], index: Int[Array, " Q"], inverse: Int[Array, "R m"]
) -> tuple[Float[Array, "Q L"], Int[Array, "R m"]]:
    return gather_rows(x, index, inverse), inverse


def _gather_backward(
    inverse: Int[Array, "R m"], gradient: Float[Array, "Q L"]
) -> tuple[Float[Array, "R L"], None, None]:
    parts = jnp.take(gradient, inverse, axis=0, mode="fill", fill_value=0)
    return jnp.sum(parts, axis=1), None, None


gather_rows.defvjp(_gather_forward, _gather_backward)


def combine(
    rows: Float[Array, "R L"],
    index: Int[Array, "T K"],
    owners: Int[Array, " R"],
    weights: Float[Array, "T K"],
) -> Float[Array, "T L"]:
    """Weighted sum of each token's rows, in float32 or wider.

    Args:
        index: the row of each assignment; R where it has none, and then it contributes nothing.
        owners: the assignment of each row, t * K + k; T * K where it has none.
    """
    wide = at_least_float32(rows.dtype)
    taken = gather_rows(rows, index.reshape(-1), owners[:, None])
    taken = taken.reshape(*index.shape, -1).astype(wide)
    weights = jnp.where(index < rows.shape[0], weights.astype(wide), 0.0)
    return jnp.sum(taken * weights[:, :, None], axis=1)
