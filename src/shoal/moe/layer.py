"""The LatentMoE layer: router on the full width, experts in a latent, shared experts beside.

    z = RMSNorm(x W_down);  y = (sum_k w_k expert_k(z)) W_up + sum_s shared_s(x)

The norm stands after the down-projection and before dispatch (arXiv 2601.18089).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.ops import matmul, rms_norm
from shoal.arrays.weights import Weight, part, weight
from shoal.moe.experts import Compute, ExpertWeights
from shoal.moe.route import route, router_logits
from shoal.moe.transport import Carry


class SharedWeights(eqx.Module):
    """Dense SwiGLU experts that every token takes, at full width."""

    gate: Weight = weight("shared", "embed", "shared_ffn")
    up: Weight = weight("shared", "embed", "shared_ffn")
    down: Weight = weight("shared", "shared_ffn", "embed")


class MoE(eqx.Module):
    """Router, balancing bias, latent projections, routed and shared experts."""

    router: Weight = weight("embed", "expert", group="adam", decay=True)
    router_bias: Weight = weight("expert", init="zeros", group="balance")
    latent_down: Weight = weight("embed", "latent")
    latent_norm: Weight = weight("latent", init="ones", group="adam")
    latent_up: Weight = weight("latent", "embed")
    experts: ExpertWeights = part()
    shared: SharedWeights = part()


class RoutingStats(NamedTuple):
    """What one layer's routing did, for the balancer and the record."""

    margins: Float[Array, "T E"]
    counts: Int[Array, " E"]
    entropy: Float[Array, ""]
    dropped: Int[Array, ""]


def moe_layer(
    p: MoE,
    x: Float[Array, "T D"],
    *,
    carry: Carry,
    compute: Compute,
    top_k: int,
    routed_scale: float,
    norm_eps: float,
    round_router_bf16: bool,
) -> tuple[Float[Array, "T D"], RoutingStats]:
    """One MoE branch over tokens.

    Returns:
        The branch output, and the routing statistics; `entropy` is the sum over tokens of the
        entropy, in nats, of the softmax over the router's unbiased logits.
    """
    logits = router_logits(x, p.router, round_bf16=round_router_bf16)
    routes = route(logits, p.router_bias, top_k=top_k, scale=routed_scale)
    z = rms_norm(matmul(x, p.latent_down), p.latent_norm, norm_eps)
    routed, dropped = carry(
        z, routes.expert_ids, routes.weights, p.experts, compute, axis=None, capacity=None
    )
    y = matmul(routed, p.latent_up) + shared_experts(p.shared, x)

    log_shares = jax.nn.log_softmax(jax.lax.stop_gradient(logits), axis=-1)
    stats = RoutingStats(
        margins=routes.margins,
        counts=jnp.bincount(routes.expert_ids.reshape(-1), length=logits.shape[1]),
        entropy=-jnp.sum(jnp.exp(log_shares) * log_shares),
        dropped=dropped.sender + dropped.receiver,
    )
    return y, stats


def shared_experts(p: SharedWeights, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
    """Sum of the shared experts; none at all gives zeros."""
    if p.gate.shape[0] == 0:
        return jnp.zeros_like(x)
    inner = jax.nn.silu(jnp.einsum("td,sdf->tsf", x, p.gate.astype(x.dtype)))
    inner = inner * jnp.einsum("td,sdf->tsf", x, p.up.astype(x.dtype))
    return jnp.einsum("tsf,sfd->td", inner, p.down.astype(x.dtype))
