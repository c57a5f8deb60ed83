"""One attention layer, one query head and one position at a time (recipe.md 4)."""

import math

import numpy as np

from oracles.layers import rms_norm, rotate_half_of_dims, short_conv, sigmoid
from oracles.shape import Array, Ints, Shape, Tree

QK_NORM_EPS = 1e-6
XSA_EPS = 1e-6


def context_qk_scale(
    length_tokens: int, *, base: float = 1.3, slope: float = 0.1, base_length_tokens: int = 4096
) -> float:
    return base * (slope * math.log(length_tokens / base_length_tokens) + 1.0)


def visible(t: int, s: int, segments: Ints, window: int | None) -> bool:
    """Whether query t may read key s; the window counts the query's own position."""
    if s > t or segments[s] != segments[t]:
        return False
    return window is None or t - s < window


def exclude_self(y: Array, v: Array) -> Array:
    """XSA: y without its component along the token's own value."""
    return y - (y @ v) / (v @ v + XSA_EPS) * v


def attend(q: Array, k: Array, v: Array, segments: Ints, window: int | None) -> Array:
    """Softmax attention of one head: q, k, v [S, H]; logits times 1 / sqrt(H)."""
    length, head_dim = q.shape
    out = np.zeros_like(v)
    for t in range(length):
        keys = [s for s in range(length) if visible(t, s, segments, window)]
        logits = np.array([q[t] @ k[s] for s in keys]) / math.sqrt(head_dim)
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        for weight, s in zip(weights, keys, strict=True):
            out[t] += weight * v[s]
    return out


def attention(a: Array, params: Tree, segments: Ints, shape: Shape, *, is_global: bool) -> Array:
    """a [S, D] (already normed) -> [S, D], before the short convolution of the branch."""
    length = a.shape[0]
    num_kv = shape.global_kv_heads if is_global else shape.local_kv_heads
    window = None if is_global else shape.window
    q = (a @ params["w_q"]).reshape(length, shape.num_heads, shape.head_dim)
    k = short_conv(a @ params["w_k"], params["conv_k"], segments)
    # Stored heads beyond the first num_kv are dead: the public run's quirk on global layers.
    k = k.reshape(length, -1, shape.head_dim)[:, :num_kv]
    v = (a @ params["w_v"]).reshape(length, -1, shape.head_dim)[:, :num_kv]
    q = rms_norm(q, 1.0, QK_NORM_EPS)
    k = rms_norm(k, 1.0, QK_NORM_EPS)
    if not is_global or shape.rotary_global:
        for t in range(length):
            for h in range(shape.num_heads):
                q[t, h] = rotate_half_of_dims(q[t, h], t, shape.rope_theta)
            for h in range(num_kv):
                k[t, h] = rotate_half_of_dims(k[t, h], t, shape.rope_theta)
    q = shape.qk_scale * q
    merged = np.zeros_like(q)
    for h in range(shape.num_heads):
        kv = h // (shape.num_heads // num_kv)
        y = attend(q[:, h], k[:, kv], v[:, kv], segments, window)
        for t in range(length):
            gate = 2.0 * sigmoid(a[t] @ params["head_gate"][:, h])
            merged[t, h] = gate * exclude_self(y[t], v[t, kv])
    return merged.reshape(length, -1) @ params["w_o"]
