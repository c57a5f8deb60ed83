"""Routing: which experts a token takes, with which weights, and the bias that balances them.

Selection uses biased logits, combination unbiased ones. The bias of the next step is minus the
(1 - K/E) upper quantile of each expert's margins, where a margin is the unbiased logit less the
biased cutoff (the next score after the chosen K). No auxiliary loss.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from shoal.arrays.mesh import Placing, over_all
from shoal.arrays.ops import at_least_float32

_WEIGHT_FLOOR = 1e-9
_GRID_FLOOR = 1e-6


class Routes(NamedTuple):
    """Where tokens go, and what the balancer needs to know of it."""

    expert_ids: Int[Array, "T K"]
    weights: Float[Array, "T K"]
    margins: Float[Array, "T E"]


def router_logits(
    x: Float[Array, "*batch D"], router: Float[Array, "D E"], *, round_bf16: bool
) -> Float[Array, "*batch E"]:
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


class Histogram(NamedTuple):
    """Margins of the global batch, counted per expert on one shared grid.

    `grid` is the [lowest, highest] edge of the bins, `span` the lowest and highest margin that was
    met, `counts` how many margins lie in each of the equal bins (those outside in the edge bins),
    `tokens` how many tokens were counted.
    """

    grid: Float[Array, "2"]
    span: Float[Array, "2"]
    counts: Int[Array, "E bins"]
    tokens: Int[Array, ""]


def count_margins(
    margins: Float[Array, "T E"],
    real: Bool[Array, " T"],
    *,
    grid: Float[Array, "2"] | None,
    num_bins: int,
    mesh: Placing,
) -> Histogram:
    """Count the margins of this device's real tokens, summed over all devices.

    Args:
        grid: edges to count on; None counts on the span of this batch. A grid whose upper edge is
            not above its lower one is no grid: the span is taken, widened as for later batches.
    """
    num_experts = margins.shape[1]
    inside = jnp.where(real[:, None], margins, jnp.asarray(jnp.inf, margins.dtype))
    low = over_all(jnp.min(inside), jax.lax.pmin, mesh)
    high = over_all(jnp.max(jnp.where(real[:, None], margins, -inside)), jax.lax.pmax, mesh)
    span = jnp.stack([low, high])
    if grid is None:
        grid = span
    else:
        grid = jnp.where(grid[1] > grid[0], grid.astype(span.dtype), widened(span))
    width = bin_width(grid, num_bins)
    bins = jnp.clip(jnp.floor((margins - grid[0]) / width).astype(jnp.int32), 0, num_bins - 1)
    flat = bins + num_bins * jnp.arange(num_experts, dtype=jnp.int32)[None, :]
    flat = jnp.where(real[:, None], flat, num_experts * num_bins)
    counts = jnp.zeros(num_experts * num_bins, jnp.int32).at[flat.reshape(-1)].add(1, mode="drop")
    tokens = jnp.sum(real, dtype=jnp.int32)
    return Histogram(
        grid=grid,
        span=span,
        counts=over_all(counts, jax.lax.psum, mesh).reshape(num_experts, num_bins),
        tokens=over_all(tokens, jax.lax.psum, mesh),
    )


def widened(span: Float[Array, "2"]) -> Float[Array, "2"]:
    """Add half the width on each side: the grid for batches whose span is not known yet."""
    half = 0.5 * jnp.maximum(span[1] - span[0], _GRID_FLOOR)
    return jnp.stack([span[0] - half, span[1] + half])


def bin_width(grid: Float[Array, "2"], num_bins: int) -> Float[Array, ""]:
    """Return the width of the bins of a grid."""
    return jnp.maximum(grid[1] - grid[0], _GRID_FLOOR) / num_bins


def balancing_bias(found: Histogram, *, top_k: int) -> Float[Array, " E"]:
    """Return the zero-mean bias that would have given every expert T * K / E tokens.

    The quantile comes from the histogram, linear inside its bin. Ranks are compared as integers:
    float32 holds no count above 2^24.
    """
    num_experts, num_bins = found.counts.shape
    dtype = found.grid.dtype
    target, rest = found.tokens * top_k // num_experts, found.tokens * top_k % num_experts
    from_top = jnp.cumsum(found.counts[:, ::-1], axis=1)[:, ::-1]
    reached = from_top >= target + (rest > 0).astype(jnp.int32)
    chosen = num_bins - 1 - jnp.argmax(reached[:, ::-1], axis=1)
    picked = chosen[:, None]
    above = jnp.take_along_axis(from_top, picked, axis=1)[:, 0]
    inside = jnp.take_along_axis(found.counts, picked, axis=1)[:, 0]
    past = (above - target).astype(dtype) - rest.astype(dtype) / num_experts
    share = past / inside.astype(dtype)
    width = bin_width(found.grid, num_bins)
    quantile = found.grid[0] + width * (chosen.astype(dtype) + share)
    return jnp.mean(quantile) - quantile
