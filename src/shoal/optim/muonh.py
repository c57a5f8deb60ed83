"""Muon's direction: Nesterov momentum, then an approximately orthogonal matrix of it.

Five Newton-Schulz iterations with five coefficient triples (not the classic single one). Matrices
of one shape are orthogonalized as one batch, whichever leaves they come from; experts one by one.
On many devices `spread` gives each of them whole matrices of the batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

TRIPLES = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
_FLOOR = 1e-8

type Spread = Callable[[list[Array]], Array]


class MomentumState(NamedTuple):
    """One float32 buffer per matrix leaf."""

    buffer: Any


def newton_schulz(x: Float[Array, "*n I O"], dtype: Any) -> Float[Array, "*n I O"]:
    """Orthogonalize each matrix of a wide batch (I <= O).

    Args:
        dtype: of the products: bfloat16 on accelerators, float32 on a CPU, where bf16 is slower.
    """
    assert x.shape[-2] <= x.shape[-1], x.shape
    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))
    y = (x / (norm + _FLOOR)).astype(dtype)

    def iterate(y: Array, triple: Array) -> tuple[Array, None]:
        a, b, c = triple[0], triple[1], triple[2]
        gram = jnp.einsum("...io,...jo->...ij", y, y)
        poly = b * gram + c * jnp.einsum("...ij,...jk->...ik", gram, gram)
        return a * y + jnp.einsum("...ij,...jo->...io", poly, y), None

    # A loop, because five copies of it for each shape were a fifth of the step's compile time.
    y, _ = jax.lax.scan(iterate, y, jnp.asarray(TRIPLES, dtype))
    return y.astype(x.dtype)


def orthogonalize(
    matrices: list[Array],
    dtype: Any,
    *,
    is_bank: Sequence[bool] | None = None,
    spread: Spread = jnp.concatenate,
) -> list[Array]:
    """Orthogonalize the last two axes of every leaf, batched over leaves of one shape.

    Args:
        is_bank: leaves [layer, expert, I, O] whose experts stay apart, each on its own device, and
            which are too large to be joined with another. None: no leaf is one.
        spread: joins batches [n_i, I, O] of the other leaves into one of at least as many.
    """
    banks = [False] * len(matrices) if is_bank is None else list(is_bank)
    groups: dict[tuple[int, ...], list[int]] = {}
    flat: list[Array] = []
    for index, (leaf, bank) in enumerate(zip(matrices, banks, strict=True)):
        wide = leaf if leaf.shape[-2] <= leaf.shape[-1] else jnp.swapaxes(leaf, -1, -2)
        flat.append(wide if bank else wide.reshape(-1, *wide.shape[-2:]))
        apart = index if bank else -1
        groups.setdefault((apart, *flat[-1].shape[1:]), []).append(index)
    out: list[Array] = list(matrices)
    for members in groups.values():
        parts = [flat[i] for i in members]
        batch = parts[0] if banks[members[0]] else spread(parts)
        result = newton_schulz(batch, dtype)
        start = 0
        for i in members:
            count, leaf = flat[i].shape[0], matrices[i]
            part = result[start : start + count]
            start += count
            if leaf.shape[-2] > leaf.shape[-1]:
                part = jnp.swapaxes(part, -1, -2)
            out[i] = part.reshape(leaf.shape)
    return out


def muon_direction(
    momentum: float,
    dtype: Any,
    *,
    is_bank: Sequence[bool] | None = None,
    spread: Spread = jnp.concatenate,
) -> optax.GradientTransformation:
    """Nesterov momentum, orthogonalized: b <- m * b + g, then u = m * b + g.

    The usual factor sqrt(max(1, fan_out / fan_in)) would cancel in the hyperball step.

    Args:
        is_bank: for every leaf in tree order (see `orthogonalize`).
    """

    def init(params: Any) -> MomentumState:
        return MomentumState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        buffer = jax.tree.map(lambda b, g: momentum * b + g, state.buffer, updates)
        nesterov = jax.tree.map(lambda b, g: momentum * b + g, buffer, updates)
        leaves, structure = jax.tree.flatten(nesterov)
        turned = orthogonalize(leaves, dtype, is_bank=is_bank, spread=spread)
        return jax.tree.unflatten(structure, turned), MomentumState(buffer)

    return optax.GradientTransformation(init, update)
