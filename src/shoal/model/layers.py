"""GatedNorm and the short convolution: the small parts of a block."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.ops import along_last, matmul, rms_norm
from shoal.arrays.weights import Weight, weight


class GatedNorm(eqx.Module):
    """RMSNorm followed by a low-rank sigmoid gate (arXiv 2601.22966)."""

    gain: Weight = weight("channel", init="ones", group="adam")
    down: Weight = weight("embed", "rank")
    up: Weight = weight("rank", "embed")


def gated_norm(p: GatedNorm, x: Float[Array, "B S D"], eps: float) -> Float[Array, "B S D"]:
    """Norm, then gate the normed value by itself: y * sigmoid(silu(y W_down) W_up)."""
    y = rms_norm(x, p.gain, eps)
    return y * jax.nn.sigmoid(matmul(jax.nn.silu(matmul(y, p.down)), p.up))


def same_segment(segments: Int[Array, "B S"], taps: int) -> Float[Array, "taps B S"]:
    """1 where position t - j is in the segment of t, for j = 0 .. taps - 1; else 0."""
    length = segments.shape[1]
    rows = []
    for lag in range(taps):
        shifted = jnp.pad(segments, ((0, 0), (lag, 0)), constant_values=-1)[:, :length]
        rows.append(shifted == segments)
    return jnp.stack(rows).astype(jnp.float32)


def short_conv(
    taps: Float[Array, "taps C"],
    x: Float[Array, "B S C"],
    same: Float[Array, "taps B S"],
) -> Float[Array, "B S C"]:
    """Depthwise causal convolution: out[t] = sum_j taps[j] * x[t - j] within t's segment."""
    length = x.shape[1]
    out = along_last(taps[0].astype(x.dtype), x) * x
    for lag in range(1, taps.shape[0]):
        shifted = jnp.pad(x, ((0, 0), (lag, 0), (0, 0)))[:, :length]
        kept = shifted * same[lag].astype(x.dtype)[:, :, None]
        out = out + along_last(taps[lag].astype(x.dtype), x) * kept
    return out
