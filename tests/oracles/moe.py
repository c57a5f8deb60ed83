"""Routing, LatentMoE and quantile balancing (recipe.md 5 and 6)."""

import math
from dataclasses import dataclass

import numpy as np

from oracles.layers import rms_norm, sigmoid, silu, swiglu
from oracles.shape import Array, Ints, Shape, Tree

HISTOGRAM_BINS = 10_000


@dataclass(frozen=True, kw_only=True)
class Route:
    logits: Array
    """[T, E] without the bias."""
    experts: Ints
    """[T, K], highest biased logit first."""
    weights: Array
    """[T, K], from the logits without the bias."""
    margins: Array
    """[T, E] logit without bias minus the (K+1)-th biased logit of the token."""


def route(logits: Array, bias: Array, top_k: int, weight_sum: float = 2.5) -> Route:
    num_tokens, num_experts = logits.shape
    experts = np.zeros((num_tokens, top_k), np.int64)
    weights = np.zeros((num_tokens, top_k))
    margins = np.zeros((num_tokens, num_experts))
    for t in range(num_tokens):
        biased = logits[t] + bias
        order = np.argsort(-biased, kind="stable")
        experts[t] = order[:top_k]
        scores = sigmoid(logits[t, order[:top_k]])
        weights[t] = weight_sum * scores / (scores.sum() + 1e-9)
        margins[t] = logits[t] - biased[order[top_k]]
    return Route(logits=logits, experts=experts, weights=weights, margins=margins)


def bias_from_beta(beta: Array) -> Array:
    """The next step's bias: zero mean over experts."""
    return -beta - np.mean(-beta)


def exact_beta(margins: Array, top_k: int) -> Array:
    """Per expert the margin above or at which T K / E tokens lie (rounded up)."""
    num_tokens, num_experts = margins.shape
    rank = math.ceil(num_tokens * top_k / num_experts)
    return np.sort(margins, axis=0)[::-1][rank - 1]


def histogram_grid(margins: Array, num_bins: int = HISTOGRAM_BINS) -> tuple[float, float]:
    """(lowest edge, bin width) of the one grid that all experts share."""
    low = float(margins.min())
    return low, max(float(margins.max()) - low, 1e-6) / num_bins


def histogram_beta(margins: Array, top_k: int, num_bins: int = HISTOGRAM_BINS) -> Array:
    num_tokens, num_experts = margins.shape
    low, width = histogram_grid(margins, num_bins)
    target = num_tokens * top_k / num_experts
    beta = np.zeros(num_experts)
    for e in range(num_experts):
        counts = np.zeros(num_bins, np.int64)
        for margin in margins[:, e]:
            counts[min(max(math.floor((margin - low) / width), 0), num_bins - 1)] += 1
        cumulative = 0
        for b in range(num_bins - 1, -1, -1):
            cumulative += counts[b]
            if cumulative >= target:
                beta[e] = low + b * width + width * (cumulative - target) / counts[b]
                break
    return beta


def expert_rows(rows: Array, expert: int, params: Tree) -> Array:
    return swiglu(rows, params["gate"][expert], params["up"][expert], params["down"][expert])


def routed(z: Array, experts: Ints, weights: Array, params: Tree) -> Array:
    """Weighted sum of the chosen experts in latent space, one token and one expert at a time."""
    out = np.zeros_like(z)
    for t in range(z.shape[0]):
        for k in range(experts.shape[1]):
            out[t] += weights[t, k] * expert_rows(z[t], int(experts[t, k]), params)
    return out


def expert_gradients(rows: Array, group_sizes: Ints, params: Tree, cotangent: Array) -> Tree:
    """Gradients of sum(cotangent * grouped_swiglu(rows)), one expert at a time.

    Rows [P, L] are sorted by expert; group_sizes [E]. Rows past the last group have no expert and
    no gradient. Returns gate, up, down like params, and rows.
    """
    grads = {name: np.zeros_like(params[name]) for name in ("gate", "up", "down")}
    grads["rows"] = np.zeros_like(rows)
    start = 0
    for e, size in enumerate(group_sizes):
        stop = start + int(size)
        x, dy = rows[start:stop], cotangent[start:stop]
        gate, up = x @ params["gate"][e], x @ params["up"][e]
        dhidden = dy @ params["down"][e].T
        slope = sigmoid(gate) * (1.0 + gate * (1.0 - sigmoid(gate)))
        dgate, dup = dhidden * up * slope, dhidden * silu(gate)
        grads["gate"][e] = x.T @ dgate
        grads["up"][e] = x.T @ dup
        grads["down"][e] = (silu(gate) * up).T @ dy
        grads["rows"][start:stop] = dgate @ params["gate"][e].T + dup @ params["up"][e].T
        start = stop
    return grads


def grouped_swiglu(rows: Array, group_sizes: Ints, params: Tree) -> Array:
    """Rows sorted by expert -> rows; rows past the last group are zero."""
    out = np.zeros_like(rows)
    start = 0
    for e, size in enumerate(group_sizes):
        for p in range(start, start + int(size)):
            out[p] = expert_rows(rows[p], e, params)
        start += int(size)
    return out


def moe(m: Array, params: Tree, shape: Shape) -> tuple[Array, Route]:
    """m [T, D] (already normed) -> routed plus shared [T, D]; router and shared read full width."""
    taken = route(m @ params["router"], params["router_bias"], shape.top_k, shape.weight_sum)
    z = m
    if shape.latent:
        z = rms_norm(m @ params["latent_down"], params["latent_norm"], shape.norm_eps)
    out = routed(z, taken.experts, taken.weights, params["experts"])
    if shape.latent:
        out = out @ params["latent_up"]
    shared = params["shared"]
    for i in range(shape.num_shared):
        out = out + swiglu(m, shared["gate"][i], shared["up"][i], shared["down"][i])
    return out, taken
