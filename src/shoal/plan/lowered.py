"""What the train step as it is lowered should compute and take as arguments: checked by compiling.

The convention is that of `walk.py`: matrix products only, 2 m n k each, summed over all devices,
with everything that the program really does: attention by chunks of queries over all keys that a
chunk may see, rows that a transport's buffers have room for, padding, recomputation, Newton-Schulz
once for all replicas.
"""

from shoal.plan.flops import logits_are_blocked
from shoal.plan.layout import Layout, Workload
from shoal.plan.memory import resting_bytes
from shoal.plan.room import live_rows, recomputed_pieces
from shoal.plan.weights import weights_of

# Past this many chunks of queries, attention runs them in a loop (`model.attention`).
_MAX_STATIC_CHUNKS = 32
_BATCH_ARRAYS_BYTES = 4 * 4


def arguments_bytes(work: Workload, layout: Layout) -> int:
    """Return one device's bytes of the step's arguments: state, on device or host, and batch."""
    at = resting_bytes(work, layout)
    tokens = layout.tokens_per_chip(work) * layout.accumulation
    return at["device"] + at["host"] + _BATCH_ARRAYS_BYTES * tokens


def lowered_flops(work: Workload, layout: Layout) -> dict[str, float]:
    """Return the operations of one step on all devices, by where they are.

    `layers` are projections, router, latent, shared experts and gates; the forward runs once, the
    backward is twice that, and what is computed again comes on top.
    """
    model, tokens = work.model, float(work.tokens_per_step)
    kinds = [(kind, model.layer_kinds.count(kind)) for kind in ("local", "global")]
    D, H, N = model.embed_dim, model.head_dim, model.num_heads
    norm = 4 * D * model.gate_rank
    heads = {"local": model.kv_heads_local, "global": model.kv_heads_global}
    dense = scores = 0.0
    looped = _is_looped(work, layout)
    for kind, count in kinds:
        dense += count * (4 * D * H * (N + heads[kind]) + 2 * D * N + 2 * norm)
        scores += count * 4 * H * N * _keys_per_query(work, layout, kind)
    shared = 6 * D * model.num_shared * model.shared_dim
    latent = 4 * D * (model.latent_dim or 0)
    dense += model.num_layers * (2 * D * model.num_experts + latent + shared)
    expert = 6 * model.routed_dim * model.expert_dim
    routed = model.num_layers * model.top_k * expert * _fill(work, layout)
    remat = int(layout.remat)
    blocked = logits_are_blocked(work, layout)
    width = model.vocab_size
    if blocked:
        width += -width % model.loss_block_vocab
    return {
        "layers": tokens * (3 + remat) * dense,
        "attention": tokens * (3 + remat + looped / 2) * scores,
        "experts": tokens * (3 + remat + recomputed_pieces(work)) * routed,
        "head and ends": tokens * ((3 + blocked) * 2 * D * width + 3 * 2 * norm),
        "newton_schulz": weights_of(work, layout).newton_schulz_all_flops,
    }


def _is_looped(work: Workload, layout: Layout) -> bool:
    chunks = -(-work.sequence_tokens // work.model.attention_chunk)
    return layout.context > 1 or chunks > _MAX_STATIC_CHUNKS


def _keys_per_query(work: Workload, layout: Layout, kind: str) -> float:
    """Return the keys that a query's chunk meets, padding of the last chunk included."""
    model = work.model
    length, chunk = work.sequence_tokens, model.attention_chunk
    window = model.window if kind == "local" else None
    if _is_looped(work, layout):
        own = length // layout.context
        tail = -own % chunk
        span = length + tail if window is None else window - 1 + chunk
        return span * (own + tail) / own
    total = 0
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        first = 0 if window is None else max(0, start - window + 1)
        total += (end - start) * (end - first)
    return total / length


def _fill(work: Workload, layout: Layout) -> float:
    """Return the rows that experts' products run over, for each assignment."""
    _, laid_out = live_rows(work, layout)
    pieces = work.moe.waves if work.moe.transport == "pooled" else 1
    return pieces * laid_out / layout.assignments(work)
