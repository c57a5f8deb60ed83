"""Routing: which experts a token takes, with which weights, and the bias that balances them.

Selection uses biased logits, combination unbiased ones. The bias of the next step is minus the
(1 - K/E) upper quantile of each expert's margins, where a margin is the unbiased logit less the
biased cutoff (the next score after the chosen K). No auxiliary loss.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.ops import at_least_float32

_WEIGHT_FLOOR = 1e-9
_GRID_FLOOR = 1e-6


class Routes(NamedTuple):
    """Where tokens go, and what the balancer needs to know of it."""

    expert_ids: Int[Array, "T K"]
    weights: Float[Array, "T K"]
    margins: Float[Array, "T E"]


def router_logits(
    x: Float[Array, "T D"], router: Float[Array, "D E"], *, round_bf16: bool
) -> Float[Array, "T E"]:
    """Product in the operands' dtype with float32 (or wider) accumulation and output.

    Args:
        round_bf16: round operands and result to bfloat16, as the public run did.
    """
    wide = at_least_float32(x.dtype)
    if round_bf16:
        low = jnp.bfloat16
        return jnp.matmul(x.astype(low), router.astype(low)).astype(wide)
    return jnp.matmul(x, router.astype(x.dtype), preferred_element_type=wide)


def route(
    logits: Float[Array, "T E"], bias: Float[Array, " E"], *, top_k: int, scale: float
) -> Routes:
    """Choose K experts of each token by biased logits; weight them by unbiased sigmoids.

    Args:
        scale: what a token's weights sum to.
    """
    unbiased = jax.lax.stop_gradient(logits)
    biased = unbiased + jax.lax.stop_gradient(bias).astype(logits.dtype)[None, :]
    values, ids = jax.lax.top_k(biased, top_k + 1)
    ids = ids[:, :top_k]
    weights = jax.nn.sigmoid(jnp.take_along_axis(logits, ids, axis=1))
    total = jnp.sum(weights, axis=1, keepdims=True)
    weights = scale * weights / (total + _WEIGHT_FLOOR)
    return Routes(expert_ids=ids, weights=weights, margins=unbiased - values[:, top_k:])


def balancing_bias(
    margins: Float[Array, "T E"], *, top_k: int, num_bins: int
) -> Float[Array, " E"]:
    """Return the zero-mean bias that would have given every expert T * K / E tokens.

    The quantile comes from a histogram on one grid shared by all experts, linear inside its bin.
    """
    tokens, num_experts = margins.shape
    low, high = jnp.min(margins), jnp.max(margins)
    width = jnp.maximum(high - low, _GRID_FLOOR) / num_bins
    bins = jnp.clip(jnp.floor((margins - low) / width).astype(jnp.int32), 0, num_bins - 1)
    flat = bins + num_bins * jnp.arange(num_experts, dtype=jnp.int32)[None, :]
    counts = jnp.zeros(num_experts * num_bins, jnp.int32).at[flat.reshape(-1)].add(1)
    counts = counts.reshape(num_experts, num_bins)

    target = tokens * top_k / num_experts
    from_top = jnp.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
    reached = from_top >= math.ceil(target)
    chosen = num_bins - 1 - jnp.argmax(reached[:, ::-1], axis=1)
    picked = chosen[:, None]
    above = jnp.take_along_axis(from_top, picked, axis=1)[:, 0]
    inside = jnp.take_along_axis(counts, picked, axis=1)[:, 0]
    share = (above.astype(margins.dtype) - target) / inside.astype(margins.dtype)
    quantile = low + width * (chosen.astype(margins.dtype) + share)
    return jnp.mean(quantile) - quantile
