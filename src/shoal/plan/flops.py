"""Floating-point operations of a step, by part, in three conventions.

model     the public convention (`model.count`): three times the forward, whole attention spans,
          nothing recomputed. Its parts sum to `flops_per_token` exactly. MFU is of this.
causal    the same with only the keys that a causal query sees: S/2 on average on a global layer
executed  what one chip has to compute: causal, plus what is computed again (layers under remat,
          pieces of a transport, score products, blocks of the logits), rows that pad a pooled
          buffer, and the optimizer's Newton-Schulz iterations
"""

from collections.abc import Mapping

from shoal.model.config import ModelConfig
from shoal.plan.layout import Layout, Workload
from shoal.plan.room import pooled_fill, recomputed_pieces
from shoal.plan.weights import weights_of

PARTS = (
    "attention_projections",
    "attention_scores",
    "router",
    "latent",
    "shared_experts",
    "routed_experts",
    "head",
)


def forward_per_token(
    model: ModelConfig, sequence_tokens: int, *, causal: bool = False
) -> dict[str, float]:
    """Return the operations of one token's forward pass by part of `PARTS`."""
    num_global = model.layer_kinds.count("global")
    kinds = (
        (num_global, model.kv_heads_global, None),
        (model.num_layers - num_global, model.kv_heads_local, model.window),
    )
    D, L, layers = model.embed_dim, model.routed_dim, model.num_layers
    projections = 0
    scores: float = 0
    for count, kv_heads, window in kinds:
        projections += count * 4 * D * model.head_dim * (model.num_heads + kv_heads)
        span = mean_span(sequence_tokens, window, causal=causal)
        scores += count * span * model.num_heads * (4 * model.head_dim + 3)
    return {
        "attention_projections": projections,
        "attention_scores": scores,
        "router": layers * 2 * D * model.num_experts,
        "latent": layers * 4 * D * (model.latent_dim or 0),
        "shared_experts": layers * 6 * D * model.num_shared * model.shared_dim,
        "routed_experts": layers * 6 * model.top_k * L * model.expert_dim,
        "head": 2 * D * model.vocab_size,
    }


def mean_span(sequence_tokens: int, window: int | None, *, causal: bool) -> float:
    """Return how many keys a query is charged for: all of its span, or those at or before it."""
    span = sequence_tokens if window is None else min(sequence_tokens, window)
    if not causal:
        return span
    # Position t sees min(t + 1, span) keys.
    return (span * (span + 1) / 2 + (sequence_tokens - span) * span) / sequence_tokens


def model_flops(work: Workload, *, causal: bool = False) -> dict[str, float]:
    """Return the operations of one step on all chips by part, forward and backward."""
    forward = forward_per_token(work.model, work.sequence_tokens, causal=causal)
    return {part: 3 * work.tokens_per_step * each for part, each in forward.items()}


def executed_flops(work: Workload, layout: Layout) -> dict[str, float]:
    """Return what one chip computes in a step, by phase: forward, backward, optimizer."""
    tokens = work.tokens_per_step / layout.num_chips
    forward = forward_per_token(work.model, work.sequence_tokens, causal=True)
    forward["routed_experts"] *= pooled_fill(work, layout)
    total = sum(forward.values())
    layers = total - forward["head"]
    again = layers if layout.remat else 0.0
    again += recomputed_pieces(work) * forward["routed_experts"]
    again += forward["attention_scores"] / 2  # q k of every score: a kernel keeps none of them
    if logits_are_blocked(work, layout):
        again += forward["head"]
    return {
        "forward": tokens * total,
        "backward": tokens * (2 * total + again),
        "optimizer": weights_of(work, layout).newton_schulz_flops,
    }


def logits_are_blocked(work: Workload, layout: Layout) -> bool:
    """Whether the loss goes through the vocabulary block by block (`model.loss`)."""
    whole = 4 * layout.tokens_per_chip(work) * layout.context * work.model.vocab_size
    return whole > work.model.loss_block_above_bytes


def mfu(flops: Mapping[str, float], step_s: float, *, num_chips: int, peak_flops: float) -> float:
    """Return the share of the chips' peak that a step of `step_s` seconds reaches."""
    return sum(flops.values()) / (step_s * num_chips * peak_flops)
