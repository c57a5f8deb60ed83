"""The LatentMoE layer: router on the full width, experts in a latent, shared experts beside.

    z = RMSNorm(x W_down);  y = (sum_k w_k expert_k(z)) W_up + sum_s shared_s(x)

The norm stands after the down-projection and before dispatch (arXiv 2601.18089). Without a latent
the three weights of the projections are None and experts read x itself.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from shoal.arrays.config import EXPERT
from shoal.arrays.mesh import (
    Placing,
    axis_or_none,
    bank_partition,
    gathered_bank,
    on_each_device,
    over_all,
    tokens_at,
)
from shoal.arrays.ops import matmul, rms_norm
from shoal.arrays.weights import Weight, part, weight
from shoal.moe.carry import Capacity, Carry
from shoal.moe.experts import Compute, ExpertWeights
from shoal.moe.route import Histogram, count_margins, route, router_logits


class SharedWeights(eqx.Module):
    """Dense SwiGLU experts that every token takes, at full width."""

    gate: Weight = weight("shared", "embed", "shared_ffn")
    up: Weight = weight("shared", "embed", "shared_ffn")
    down: Weight = weight("shared", "shared_ffn", "embed")


class MoE(eqx.Module):
    """Router, balancing bias, latent projections, routed and shared experts."""

    router: Weight = weight("embed", "choice", group="adam", decay=True)
    router_bias: Weight = weight("choice", init="zeros", group="balance")
    latent_down: Weight = weight("embed", "latent")
    latent_norm: Weight = weight("latent", init="ones", group="adam")
    latent_up: Weight = weight("latent", "embed")
    experts: ExpertWeights = part(latent="routed")
    shared: SharedWeights = part()


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a layer routes, and what carries its rows.

    Attributes:
        own_grid: margins are counted on the span of this batch, not on a grid given.
        mesh: the devices that the layer runs on together.
    """

    top_k: int
    routed_scale: float
    num_bins: int
    norm_eps: float
    round_router_bf16: bool
    carry: Carry
    capacity: Capacity
    compute: Compute
    own_grid: bool
    mesh: Placing


class RoutingStats(NamedTuple):
    """What one layer's routing did with the whole batch, for the balancer and the record.

    `load` counts the assignments of each expert, before any was dropped; `entropy` is the sum over
    real tokens of the entropy, in nats, of the softmax over the router's unbiased logits; the last
    three are assignments of real tokens: sender + receiver + delivered = tokens * K.
    """

    margins: Histogram
    load: Int[Array, " E"]
    entropy: Float[Array, ""]
    sender: Int[Array, ""]
    receiver: Int[Array, ""]
    delivered: Int[Array, ""]


def moe_layer(
    p: MoE,
    x: Float[Array, "B S D"],
    real: Bool[Array, "B S"],
    grid: Float[Array, "2"],
    how: Routing,
) -> tuple[Float[Array, "B S D"], RoutingStats]:
    """One MoE branch over tokens.

    Args:
        real: False for padding, which takes no room, counts nowhere and comes back as zeros from
            the routed experts.
        grid: see `route.count_margins`.
    """
    logits = router_logits(x, p.router, round_bf16=how.round_router_bf16)
    z = x
    if p.latent_down is not None:
        z = rms_norm(matmul(x, p.latent_down), p.latent_norm, how.norm_eps)

    def routed(*given: Array) -> tuple[Array, RoutingStats]:
        logits, z, real, grid, bias, *bank = given
        return _routed(logits, z, real, grid, bias, ExpertWeights(*bank), how)

    takes: tuple[P, ...] = ()
    gives: tuple[P, P] = (P(), P())
    if how.mesh is not None:
        tokens, bank = tokens_at(how.mesh).spec, bank_partition(how.mesh, logits.shape[-1])
        takes = (tokens, tokens, tokens, P(), P(), bank, bank, bank)
        gives = (tokens, P())
    across = on_each_device(routed, how.mesh, takes, gives)
    bank = (p.experts.gate, p.experts.up, p.experts.down)
    y, stats = across(logits, z, real, grid, p.router_bias, *bank)
    if p.latent_up is not None:
        y = matmul(y, p.latent_up)
    return y + shared_experts(p.shared, x), stats


def _routed(
    logits: Float[Array, "B S E"],
    z: Float[Array, "B S L"],
    real: Bool[Array, "B S"],
    grid: Float[Array, "2"],
    bias: Float[Array, " E"],
    bank: ExpertWeights,
    how: Routing,
) -> tuple[Float[Array, "B S L"], RoutingStats]:
    """Route and carry this device's tokens; the statistics are of all devices."""
    num_experts, mesh = logits.shape[-1], how.mesh
    flat, own = logits.reshape(-1, num_experts), real.reshape(-1)
    routes = route(flat, bias, top_k=how.top_k, scale=how.routed_scale)
    ids = jnp.where(own[:, None], routes.expert_ids, num_experts)
    y, tally = how.carry(
        z.reshape(-1, z.shape[-1]),
        ids,
        routes.weights,
        gathered_bank(bank, mesh, num_experts, z.dtype),
        how.compute,
        axis=axis_or_none(mesh, EXPERT),
        capacity=how.capacity,
    )
    log_shares = jax.nn.log_softmax(jax.lax.stop_gradient(flat), axis=-1)
    entropy = -jnp.sum(jnp.exp(log_shares) * log_shares, axis=-1)

    def total(counted: Array) -> Array:
        return over_all(counted, jax.lax.psum, mesh)

    stats = RoutingStats(
        margins=count_margins(
            routes.margins,
            own,
            grid=None if how.own_grid else grid,
            num_bins=how.num_bins,
            mesh=mesh,
        ),
        load=total(jnp.bincount(ids.reshape(-1), length=num_experts)),
        entropy=total(jnp.sum(jnp.where(own, entropy, jnp.zeros_like(entropy)))),
        sender=total(tally.sender),
        receiver=total(tally.receiver),
        delivered=total(tally.delivered),
    )
    return y.reshape(z.shape), stats


def add_stats(one: RoutingStats, other: RoutingStats) -> RoutingStats:
    """Join the statistics of two batches whose margins were counted on one grid, `other`'s."""
    span = jnp.stack(
        [
            jnp.minimum(one.margins.span[..., 0], other.margins.span[..., 0]),
            jnp.maximum(one.margins.span[..., 1], other.margins.span[..., 1]),
        ],
        axis=-1,
    )
    total = jax.tree.map(jnp.add, one, other)
    margins = total.margins._replace(grid=other.margins.grid, span=span)
    return total._replace(margins=margins)


def shared_experts(p: SharedWeights, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
    """Sum of the shared experts; none at all gives zeros."""
    if p.gate.shape[0] == 0:
        return jnp.zeros_like(x)
    inner = jax.nn.silu(jnp.einsum("btd,sdf->btsf", x, p.gate.astype(x.dtype)))
    inner = inner * jnp.einsum("btd,sdf->btsf", x, p.up.astype(x.dtype))
    return jnp.einsum("btsf,sfd->btd", inner, p.down.astype(x.dtype))
