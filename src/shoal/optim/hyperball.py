"""The hyperball step, shared by MuonH and AdamH: move by a relative length, stay on the sphere.

    W' = W - lr * |W| * u / |u|;   W_new = W' * |W| / |W'|

So the rate is about the angle of an update, and a weight keeps the norm it was born with. Norms
are sums of squares in float32 over the axes that the weight's declaration names: computed in the
compute dtype, or over a shard, they once collapsed a run's tensors.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

_FLOOR = 1e-10


def sphere_norm(x: Float[Array, "..."], axes: tuple[int, ...]) -> Float[Array, "..."]:
    """Frobenius norm over axes, kept as ones, in float32 or wider."""
    wide = x if jnp.finfo(x.dtype).bits >= 32 else x.astype(jnp.float32)
    return jnp.sqrt(jnp.sum(jnp.square(wide), axis=axes, keepdims=True))


def hyperball_step(
    w: Float[Array, "..."], u: Float[Array, "..."], lr: Float[Array, ""], axes: tuple[int, ...]
) -> Float[Array, "..."]:
    """Return the new weight; `u` points uphill and only its direction counts."""
    radius = sphere_norm(w, axes)
    moved = w - lr * radius * u / jnp.maximum(sphere_norm(u, axes), _FLOOR)
    return moved * radius / jnp.maximum(sphere_norm(moved, axes), _FLOOR)
