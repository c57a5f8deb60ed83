"""Grouped-query attention over a window or the whole segment, with XSA and a gate per head.

The scores of a query chunk need only the keys from `start - window` to its end, so the cost of a
window layer is linear in S. On a CPU static chunks with the heads of a KV group folded into the
rows of one matrix product are 3 to 8 times faster than a masked S x S product; past
`_MAX_STATIC_CHUNKS` the chunks run in a loop, so that the program does not grow with S.
"""

import math
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.config import CONTEXT
from shoal.arrays.mesh import Placing, degrees_of, on_each_device, tokens_at
from shoal.arrays.ops import at_least_float32, matmul, unit_rms
from shoal.arrays.weights import Weight, weight
from shoal.model.config import ModelConfig
from shoal.model.layers import short_conv

_MAX_STATIC_CHUNKS = 32
_MASKED = -1e30
_XSA_EPS = 1e-6


class Attention(eqx.Module):
    """Projections, the convolution on keys, and one gate per query head."""

    w_q: Weight = weight("embed", "query")
    w_k: Weight = weight("embed", "kv")
    w_v: Weight = weight("embed", "kv")
    w_o: Weight = weight("query", "embed")
    conv_k: Weight = weight("tap", "kv", init="first_tap", group="adam")
    head_gate: Weight = weight("embed", "heads", init="zeros", group="adam", decay=True)


def attention(
    p: Attention,
    x: Float[Array, "B S D"],
    segments: Int[Array, "B S"],
    same: Float[Array, "taps B S"],
    config: ModelConfig,
    *,
    kind: str,
    context: int,
    mesh: Placing = None,
) -> Float[Array, "B S D"]:
    """One attention branch.

    Args:
        x: the normed block input; the head gate reads it too.
        same: `layers.same_segment` of the segments.
        kind: `local` (window, half rotary) or `global` (whole segment, no positions unless the
            config rotates them too).
        context: the training context that sets the query scale, not the length of `x`.
    """
    batch, length, _ = x.shape
    num_heads, head_dim = config.num_heads, config.head_dim
    kv_heads = config.kv_heads_local if kind == "local" else config.kv_heads_global
    used = kv_heads * head_dim  # stored heads past these are dead weights of the public run

    q = matmul(x, p.w_q).reshape(batch, length, num_heads, head_dim)
    k = short_conv(p.conv_k[:, :used], matmul(x, p.w_k[:, :used]), same)
    k = k.reshape(batch, length, kv_heads, head_dim)
    v = matmul(x, p.w_v[:, :used]).reshape(batch, length, kv_heads, head_dim)
    q, k = unit_rms(q, config.qk_norm_eps), unit_rms(k, config.qk_norm_eps)
    if kind == "local" or config.rotary_global:
        q = rotate(q, config.rotary_dim, config.rope_theta)
        k = rotate(k, config.rotary_dim, config.rope_theta)
    q = q * jnp.asarray(config.query_scale(context) / math.sqrt(head_dim), q.dtype)

    window = config.window if kind == "local" else None
    if attention_kind(config) == "kernel":
        y = kernel_attend(q, k, v, segments, window=window)
    else:
        chunk = config.attention_chunk
        y = spread_attend(q, k, v, segments, window=window, chunk=chunk, mesh=mesh)
    y = exclude_self(y, v)
    gate = 2.0 * jax.nn.sigmoid(matmul(x, p.head_gate))
    y = (y * gate[..., None]).reshape(batch, length, num_heads * head_dim)
    return matmul(y, p.w_o)


def rotate(x: Float[Array, "B S N H"], rotary_dim: int, theta: float) -> Float[Array, "B S N H"]:
    """Rotate adjacent pairs of the first `rotary_dim` dimensions by position."""
    if rotary_dim == 0:
        return x
    length, pairs = x.shape[1], rotary_dim // 2
    frequencies = theta ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies[None, :]
    cos, sin = (f(angles).astype(x.dtype)[None, :, None, :] for f in (jnp.cos, jnp.sin))
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs_out = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return jnp.concatenate([pairs_out.reshape(turned.shape), kept], axis=-1)


def exclude_self(y: Float[Array, "B S N H"], v: Float[Array, "B S M H"]) -> Float[Array, "B S N H"]:
    """Remove from each head's output its part along the token's own value (arXiv 2603.09078)."""
    batch, length, kv_heads, head_dim = v.shape
    wide = at_least_float32(y.dtype)
    grouped = y.astype(wide).reshape(batch, length, kv_heads, -1, head_dim)
    own = v.astype(wide)[:, :, :, None, :]
    along = jnp.sum(grouped * own, axis=-1, keepdims=True)
    squared = jnp.sum(jnp.square(own), axis=-1, keepdims=True)
    return (grouped - along / (squared + _XSA_EPS) * own).reshape(y.shape).astype(y.dtype)


def attention_kind(config: ModelConfig) -> str:
    """Return the form of attention on this platform; `auto` takes the kernel on a GPU in bf16."""
    if config.attention != "auto":
        return config.attention
    fast = jax.default_backend() == "gpu" and config.compute_dtype == "bfloat16"
    return "kernel" if fast else "chunks"


def kernel_attend(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S M H"],
    v: Float[Array, "B S M H"],
    segments: Int[Array, "B S"],
    *,
    window: int | None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B S N H"]:
    """`attend` by the platform's fused kernel; segments are told by a mask of B * S * S booleans.

    Args:
        implementation: `xla` is the same call without the kernel.
    """
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return _fused(q, k, v, same, window, implementation)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _fused(
    q: Array, k: Array, v: Array, same: Array, window: int | None, implementation: Any
) -> Array:
    # The library mixes float widths inside, forward and backward; hence a derivative of our own.
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            mask=same,
            scale=1.0,
            is_causal=True,
            local_window_size=None if window is None else (window - 1, 0),
            implementation=implementation,
        )


def _fused_forward(
    q: Array, k: Array, v: Array, same: Array, window: int | None, implementation: Any
) -> tuple[Array, Any]:
    with jax.numpy_dtype_promotion("standard"):
        return jax.vjp(lambda *a: _fused.fun(*a, same, window, implementation), q, k, v)


def _fused_backward(
    window: int | None, implementation: Any, pull: Any, gradient: Array
) -> tuple[Array | None, ...]:
    del window, implementation
    with jax.numpy_dtype_promotion("standard"):
        return (*pull(gradient), None)


_fused.defvjp(_fused_forward, _fused_backward)


def spread_attend(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S M H"],
    v: Float[Array, "B S M H"],
    segments: Int[Array, "B S"],
    *,
    window: int | None,
    chunk: int,
    mesh: Placing,
) -> Float[Array, "B S N H"]:
    """Attend on a mesh: with the sequence cut, each piece's queries see the keys of all pieces."""
    attend_here = partial(attend, window=window, chunk=chunk)
    if degrees_of(mesh)[CONTEXT] == 1:
        return attend_here(q, k, v, segments)

    def piece(q: Array, k: Array, v: Array, segments: Array) -> Array:
        first = jax.lax.axis_index(CONTEXT) * q.shape[1]
        k, v, every = (jax.lax.all_gather(a, CONTEXT, axis=1, tiled=True) for a in (k, v, segments))
        return attend_here(q, k, v, every, first=first)

    assert mesh is not None
    tokens = tokens_at(mesh).spec
    return on_each_device(piece, mesh, (tokens,) * 4, tokens)(q, k, v, segments)


def attend(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B X M H"],
    v: Float[Array, "B X M H"],
    segments: Int[Array, "B X"],
    *,
    window: int | None,
    chunk: int,
    first: Int[Array, ""] | None = None,
) -> Float[Array, "B S N H"]:
    """Causal softmax attention inside segments; `q` carries the scale.

    Args:
        window: a query at t sees keys t - window + 1 .. t; None sees the whole segment.
        chunk: queries per chunk.
        first: the position of the first query among the keys, where the queries are a piece of the
            sequence; None where they are all of it.
    """
    batch, length, num_heads, head_dim = q.shape
    kv_heads = k.shape[2]
    folded = q.reshape(batch, length, kv_heads, num_heads // kv_heads, head_dim)
    folded = folded.transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    if first is None and -(-length // chunk) <= _MAX_STATIC_CHUNKS:
        y = _static_chunks(folded, k, v, segments, window, chunk)
    else:
        y = _looped_chunks(folded, k, v, segments, window, chunk, first)
    return y.transpose(0, 3, 1, 2, 4).reshape(batch, length, num_heads, head_dim)


def _static_chunks(
    q: Float[Array, "B M G S H"],
    k: Float[Array, "B M S H"],
    v: Float[Array, "B M S H"],
    segments: Int[Array, "B S"],
    window: int | None,
    chunk: int,
) -> Float[Array, "B M G S H"]:
    length, parts = q.shape[3], []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        first = 0 if window is None else max(0, start - window + 1)
        parts.append(
            _attend_chunk(
                q[:, :, :, start:end],
                k[:, :, first:end],
                v[:, :, first:end],
                segments[:, start:end],
                segments[:, first:end],
                jnp.arange(start, end),
                jnp.arange(first, end),
                window,
            )
        )
    return jnp.concatenate(parts, axis=3)


def _looped_chunks(
    q: Float[Array, "B M G S H"],
    k: Float[Array, "B M X H"],
    v: Float[Array, "B M X H"],
    segments: Int[Array, "B X"],
    window: int | None,
    chunk: int,
    first: Int[Array, ""] | None,
) -> Float[Array, "B M G S H"]:
    num_queries, num_keys = q.shape[3], k.shape[2]
    tail = -num_queries % chunk
    before = 0 if window is None else window - 1
    span = num_keys + tail if window is None else before + chunk
    q = jnp.pad(q, ((0, 0), (0, 0), (0, 0), (0, tail), (0, 0)))
    k, v = (jnp.pad(a, ((0, 0), (0, 0), (before, tail), (0, 0))) for a in (k, v))
    query_segments = jnp.pad(segments, ((0, 0), (0, tail)), constant_values=-1)
    key_segments = jnp.pad(segments, ((0, 0), (before, tail)), constant_values=-2)
    first = jnp.zeros((), jnp.arange(0).dtype) if first is None else first

    @jax.checkpoint
    def one(start: Int[Array, ""]) -> Float[Array, "B M G C H"]:
        place = first + start
        low = jnp.zeros_like(place) if window is None else place
        return _attend_chunk(
            jax.lax.dynamic_slice_in_dim(q, start, chunk, axis=3),
            jax.lax.dynamic_slice_in_dim(k, low, span, axis=2),
            jax.lax.dynamic_slice_in_dim(v, low, span, axis=2),
            jax.lax.dynamic_slice_in_dim(query_segments, place, chunk, axis=1),
            jax.lax.dynamic_slice_in_dim(key_segments, low, span, axis=1),
            place + jnp.arange(chunk),
            low - before + jnp.arange(span),
            window,
        )

    chunks = jax.lax.map(one, jnp.arange(0, num_queries + tail, chunk))
    joined = jnp.moveaxis(chunks, 0, 3)
    return joined.reshape(*joined.shape[:3], num_queries + tail, -1)[:, :, :, :num_queries]


def _attend_chunk(
    q: Float[Array, "B M G C H"],
    k: Float[Array, "B M X H"],
    v: Float[Array, "B M X H"],
    query_segments: Int[Array, "B C"],
    key_segments: Int[Array, "B X"],
    query_positions: Int[Array, " C"],
    key_positions: Int[Array, " X"],
    window: int | None,
) -> Float[Array, "B M G C H"]:
    batch, kv_heads, groups, rows, head_dim = q.shape
    wide = at_least_float32(q.dtype)
    flat = q.reshape(batch, kv_heads, groups * rows, head_dim)
    scores = jnp.einsum("bmqh,bmxh->bmqx", flat, k, preferred_element_type=wide)
    scores = scores.reshape(batch, kv_heads, groups, rows, -1)
    lag = query_positions[:, None] - key_positions[None, :]
    visible = lag >= 0 if window is None else (lag >= 0) & (lag < window)
    visible = visible[None] & (query_segments[:, :, None] == key_segments[:, None, :])
    scores = jnp.where(visible[:, None, None], scores, jnp.asarray(_MASKED, wide))
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    weights = weights.reshape(batch, kv_heads, groups * rows, -1)
    return jnp.einsum("bmqx,bmxh->bmqh", weights, v).reshape(q.shape)
