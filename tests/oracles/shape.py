"""The sizes and constants an oracle needs, and random parameters of those sizes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Tree = dict[str, Any]
"""Nested dicts and lists whose leaves are float64 arrays."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Defaults are awkward on purpose: no two sizes equal, none a power of two by need."""

    vocab: int = 29
    width: int = 12
    num_layers: int = 4
    num_heads: int = 4
    local_kv_heads: int = 2
    global_kv_heads: int = 1
    stored_global_kv_heads: int = 1
    """Heads held in w_k, w_v of a global layer; the public run stores the local number there."""
    head_dim: int = 8
    window: int = 5
    num_experts: int = 6
    top_k: int = 2
    latent: int | None = 10
    """None: experts read the full width."""
    ffn: int = 7
    num_shared: int = 2
    shared_ffn: int = 9
    gate_rank: int = 5
    conv_taps: int = 4
    global_every: int = 4
    rotary_global: bool = False
    rope_theta: float = 10_000.0
    qk_scale: float = 1.3
    norm_eps: float = 1e-5
    weight_sum: float = 2.5
    z_loss: float = 1e-4


def is_global(layer: int, num_layers: int, every: int = 4) -> bool:
    """Every fourth layer, and always the last."""
    return layer % every == every - 1 or layer == num_layers - 1


def random_params(shape: Shape, seed: int) -> Tree:
    """Every leaf random, so that no part is the identity by accident; the bias has mean zero."""
    rng = np.random.default_rng(seed)

    def matrix(*dims: int) -> Array:
        return rng.normal(size=dims) / np.sqrt(dims[-2])

    def gain(dim: int) -> Array:
        return 1.0 + 0.2 * rng.normal(size=dim)

    def gated_norm() -> Tree:
        return {
            "gain": gain(shape.width),
            "down": matrix(shape.width, shape.gate_rank),
            "up": matrix(shape.gate_rank, shape.width),
        }

    def conv(channels: int) -> Array:
        taps = 0.3 * rng.normal(size=(shape.conv_taps, channels))
        taps[0] += 1.0
        return taps

    def latent(dim: int) -> Tree:
        return {
            "latent_down": matrix(shape.width, dim),
            "latent_norm": gain(dim),
            "latent_up": matrix(dim, shape.width),
        }

    def layer(index: int) -> Tree:
        last = is_global(index, shape.num_layers, shape.global_every)
        stored = shape.stored_global_kv_heads if last else shape.local_kv_heads
        kv_width = stored * shape.head_dim
        q_width = shape.num_heads * shape.head_dim
        bias = 0.3 * rng.normal(size=shape.num_experts)
        experts = (shape.num_experts, shape.latent or shape.width, shape.ffn)
        shared = (shape.num_shared, shape.width, shape.shared_ffn)
        return {
            "attn_norm": gated_norm(),
            "attn": {
                "w_q": matrix(shape.width, q_width),
                "w_k": matrix(shape.width, kv_width),
                "w_v": matrix(shape.width, kv_width),
                "w_o": matrix(q_width, shape.width),
                "conv_k": conv(kv_width),
                "head_gate": matrix(shape.width, shape.num_heads),
            },
            "attn_conv": conv(shape.width),
            "moe_norm": gated_norm(),
            "moe": {
                "router": matrix(shape.width, shape.num_experts),
                "router_bias": bias - bias.mean(),
                **(latent(shape.latent) if shape.latent else {}),
                "experts": {
                    "gate": matrix(*experts),
                    "up": matrix(*experts),
                    "down": matrix(experts[0], experts[2], experts[1]),
                },
                "shared": {
                    "gate": matrix(*shared),
                    "up": matrix(*shared),
                    "down": matrix(shared[0], shared[2], shared[1]),
                },
            },
            "moe_conv": conv(shape.width),
        }

    return {
        "embed": rng.normal(size=(shape.vocab, shape.width)),
        "embed_norm": gated_norm(),
        "layers": [layer(index) for index in range(shape.num_layers)],
        "final_norm": gated_norm(),
        "head": matrix(shape.width, shape.vocab),
    }


def packed_segments(lengths: list[list[int]]) -> Ints:
    """Segment ids [B, S] of rows whose documents have these lengths."""
    rows = [np.repeat(np.arange(len(row)), row) for row in lengths]
    return np.stack(rows).astype(np.int32)
