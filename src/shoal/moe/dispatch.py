"""Moving rows between token order and expert order, forward and backward by gathers alone.

A scatter-add is slow everywhere and unordered on a GPU. Where the inverse of an index is known,
the transpose of a gather is a gather too.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Order(NamedTuple):
    """Assignments sorted by expert; row r of the sorted rows is assignment `sorted_ids[r]`."""

    tokens: Int[Array, " R"]
    sorted_ids: Int[Array, " R"]
    rows: Int[Array, "T K"]
    group_sizes: Int[Array, " E"]


def sort_by_expert(expert_ids: Int[Array, "T K"], num_experts: int) -> Order:
    """Sort the T * K assignments by expert, stable in token order."""
    tokens, top_k = expert_ids.shape
    flat = expert_ids.reshape(-1)
    by_expert = jnp.argsort(flat, stable=True)
    rows = jnp.argsort(by_expert, stable=True).reshape(tokens, top_k)
    sizes = jnp.bincount(flat, length=num_experts)
    return Order(by_expert // top_k, by_expert, rows, sizes)


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
