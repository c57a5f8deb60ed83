"""RMSNorm, GatedNorm, SwiGLU, short convolution, half interleaved rotary (recipe.md 3 and 4)."""

import numpy as np

from oracles.shape import Array, Ints, Tree


def sigmoid(x: Array) -> Array:
    # tanh never overflows, so logits of 1e4 are as safe as small ones.
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def rms_norm(x: Array, gain: Array | float, eps: float) -> Array:
    """Over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def gated_norm(x: Array, params: Tree, eps: float) -> Array:
    """RMSNorm with gain, then times sigmoid(silu(y down) up)."""
    y = rms_norm(x, params["gain"], eps)
    return y * sigmoid(silu(y @ params["down"]) @ params["up"])


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return (silu(x @ gate) * (x @ up)) @ down


def short_conv(x: Array, taps: Array, segments: Ints) -> Array:
    """Tap j multiplies x[t - j]; x [S, C], taps [4, C], segments [S]."""
    out = np.zeros_like(x)
    for t in range(x.shape[0]):
        for j in range(taps.shape[0]):
            if t - j >= 0 and segments[t - j] == segments[t]:
                out[t] += taps[j] * x[t - j]
    return out


def rotate_half_of_dims(x: Array, position: int, theta: float) -> Array:
    """Rotate adjacent pairs (0,1), (2,3), ... of the first half of one head vector x [H].

    Pair n turns by position * theta^(-n / (H/4)): 32 frequencies for the 64 dims of 128.
    """
    out = x.copy()
    num_pairs = x.shape[0] // 4
    for n in range(num_pairs):
        angle = position * theta ** (-n / num_pairs)
        a, b = x[2 * n], x[2 * n + 1]
        out[2 * n] = a * np.cos(angle) - b * np.sin(angle)
        out[2 * n + 1] = a * np.sin(angle) + b * np.cos(angle)
    return out
