"""Parameters and FLOPs of a model from its config alone; no array is made.

Three counts, because the published ones leave things out:
  active      the matrices that a token meets: attention, router, latent, shared, top-k experts;
              neither embedding nor head, no gates, norms, convolutions or biases
  published   the same matrices with every expert, plus embedding and head
  tensors     every number in the state, from the weight declarations

FLOPs per token are for forward and backward (three times the forward), recomputation left out.
Attention is charged for its whole span, S keys on a global layer and min(S, window) on a local
one, with no causal half and 3 per head and key for the softmax: the public convention, kept so
that figures compare. Source: marin-community/marin issue #8435 and the fit to its printed totals.
"""

import math

from shoal.model.config import ModelConfig


def _num_global(config: ModelConfig) -> int:
    return config.layer_kinds.count("global")


def _attention_matrices(config: ModelConfig, kv_heads: int) -> int:
    return 2 * config.embed_dim * config.head_dim * (config.num_heads + kv_heads)


def _expert_matrices(config: ModelConfig) -> int:
    return 3 * config.routed_dim * config.expert_dim


def _dense_matrices(config: ModelConfig) -> int:
    """Router, latent down and up, shared experts: used by every token of a layer."""
    shared = 3 * config.num_shared * config.shared_dim
    return config.embed_dim * (config.num_experts + 2 * (config.latent_dim or 0) + shared)


def _matrices(config: ModelConfig, num_experts: int) -> int:
    num_global = _num_global(config)
    attention = (config.num_layers - num_global) * _attention_matrices(
        config, config.kv_heads_local
    ) + num_global * _attention_matrices(config, config.stored_global)
    experts = num_experts * _expert_matrices(config)
    return attention + config.num_layers * (_dense_matrices(config) + experts)


def num_active(config: ModelConfig) -> int:
    """Count active parameters by the published rule; stored but unused KV heads count."""
    return _matrices(config, config.top_k)


def num_published_total(config: ModelConfig) -> int:
    """Count total parameters by the published rule: matrices only."""
    return _matrices(config, config.num_experts) + 2 * config.vocab_size * config.embed_dim


def num_tensors(config: ModelConfig) -> int:
    """Count every number in the state, as the weights declare it (this loads jax)."""
    import jax

    from shoal.model.lm import describe_lm

    return sum(math.prod(spec.shape) for spec in jax.tree.leaves(describe_lm(config)))


def flops_per_token(
    config: ModelConfig, sequence_tokens: int, *, head: bool = True, published: bool = False
) -> int:
    """Return training FLOPs per token at a context length.

    Args:
        config: The model.
        sequence_tokens: S, the context that a token is trained in.
        head: Include the output head; the public ladder's compute axis leaves it out.
        published: Count num_layers // 4 global layers, as the public figures do. They miss the
            last one where the depth is not a multiple of four (d2048: 5 of its 6).
    """
    num_global = config.num_layers // config.global_every if published else _num_global(config)
    kinds = (
        (num_global, config.kv_heads_global, sequence_tokens),
        (
            config.num_layers - num_global,
            config.kv_heads_local,
            min(sequence_tokens, config.window),
        ),
    )
    ffn = _dense_matrices(config) + config.top_k * _expert_matrices(config)
    forward = 0
    for num_layers, kv_heads, span_tokens in kinds:
        matrices = _attention_matrices(config, kv_heads) + ffn
        scores = span_tokens * config.num_heads * (4 * config.head_dim + 3)
        forward += num_layers * (2 * matrices + scores)
    if head:
        forward += 2 * config.embed_dim * config.vocab_size
    return 3 * forward
