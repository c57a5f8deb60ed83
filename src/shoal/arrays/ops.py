"""Array functions that every floor above shares. Letters as in `house` order: B S D L F."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped


def at_least_float32(dtype: Any) -> Any:
    """Return the dtype in which sums and statistics are taken: float32, or the wider one given."""
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32


def along_last(vector: Shaped[Array, " D"], like: Float[Array, "*batch D"]) -> Array:
    """Shape a vector so that it broadcasts over the last axis of `like`."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


def matmul(x: Float[Array, "*batch I"], w: Float[Array, "I O"]) -> Float[Array, "*batch O"]:
    """Multiply by a float32 master weight in the dtype of `x`."""
    return jnp.matmul(x, w.astype(x.dtype))


def rms_norm(
    x: Float[Array, "*batch D"], gain: Float[Array, " D"], eps: float
) -> Float[Array, "*batch D"]:
    """Root-mean-square norm with learned gain; statistics and product in float32."""
    wide = x.astype(gain.dtype)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * scale * along_last(gain, x)).astype(x.dtype)


def unit_rms(x: Float[Array, "*batch H"], eps: float) -> Float[Array, "*batch H"]:
    """Root-mean-square norm without gain; statistics in float32 or wider."""
    wide = x.astype(at_least_float32(x.dtype))
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype)
