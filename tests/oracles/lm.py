"""The block, the whole model, and the loss (recipe.md 3 and 7)."""

from dataclasses import dataclass

import numpy as np

from oracles.attention import attention
from oracles.layers import gated_norm, short_conv
from oracles.moe import Route, moe
from oracles.shape import Array, Ints, Shape, Tree, is_global


@dataclass(frozen=True, kw_only=True)
class Loss:
    cross_entropy: float
    z_loss: float
    """Already times its coefficient."""

    @property
    def total(self) -> float:
        return self.cross_entropy + self.z_loss


def block(
    x: Array, params: Tree, segments: Ints, shape: Shape, *, is_global: bool
) -> tuple[Array, list[Route]]:
    """x [B, S, D]; the routes are one per row."""
    out, routes = np.zeros_like(x), []
    for b in range(x.shape[0]):
        a = gated_norm(x[b], params["attn_norm"], shape.norm_eps)
        y = attention(a, params["attn"], segments[b], shape, is_global=is_global)
        h = x[b] + short_conv(y, params["attn_conv"], segments[b])
        m = gated_norm(h, params["moe_norm"], shape.norm_eps)
        mixed, taken = moe(m, params["moe"], shape)
        out[b] = h + short_conv(mixed, params["moe_conv"], segments[b])
        routes.append(taken)
    return out, routes


def join_routes(routes: list[Route]) -> Route:
    """The routes of all rows as one, since balance is counted over the whole batch."""
    return Route(
        logits=np.concatenate([r.logits for r in routes]),
        experts=np.concatenate([r.experts for r in routes]),
        weights=np.concatenate([r.weights for r in routes]),
        margins=np.concatenate([r.margins for r in routes]),
    )


def lm(params: Tree, tokens: Ints, segments: Ints, shape: Shape) -> tuple[Array, list[Route]]:
    """Tokens [B, S] -> logits [B, S, V] and one route per layer."""
    x = gated_norm(params["embed"][tokens], params["embed_norm"], shape.norm_eps)
    routes = []
    for index, layer in enumerate(params["layers"]):
        kind = is_global(index, len(params["layers"]), shape.global_every)
        x, taken = block(x, layer, segments, shape, is_global=kind)
        routes.append(join_routes(taken))
    return gated_norm(x, params["final_norm"], shape.norm_eps) @ params["head"], routes


def logsumexp(logits: Array) -> float:
    return float(logits.max() + np.log(np.sum(np.exp(logits - logits.max()))))


def loss_from_logits(
    logits: Array, targets: Ints, weights: Array | None = None, z_loss: float = 1e-4
) -> Loss:
    """Means over tokens by weight, never over rows: packing must not change it."""
    flat = logits.reshape(-1, logits.shape[-1])
    scale = np.ones(flat.shape[0]) if weights is None else weights.reshape(-1)
    entropy = squares = 0.0
    for row, target, weight in zip(flat, targets.reshape(-1), scale, strict=True):
        normalizer = logsumexp(row)
        entropy += weight * (normalizer - row[target])
        squares += weight * normalizer**2
    return Loss(
        cross_entropy=float(entropy / scale.sum()), z_loss=float(z_loss * squares / scale.sum())
    )


def loss(
    params: Tree,
    tokens: Ints,
    targets: Ints,
    segments: Ints,
    shape: Shape,
    weights: Array | None = None,
) -> Loss:
    logits, _ = lm(params, tokens, segments, shape)
    return loss_from_logits(logits, targets, weights, shape.z_loss)
