"""Bytes on one chip: what rests there, and what a step needs at its fullest.

Two moments are looked at, and the fuller one counts: the end of a backward pass (state, gradients,
saved activations, one layer at work) and the update (state, gradients, its workspace). What is
counted of activations is every tensor in `layer_activations`; attention keeps no scores, as the
kernels of accelerators do. `RESERVE` of the memory is left to the runtime, its collectives and
what fragments.
"""

from typing import Any

from shoal.model.config import ModelConfig
from shoal.plan.chips import Chip
from shoal.plan.flops import logits_are_blocked
from shoal.plan.layout import Layout, Workload
from shoal.plan.room import live_rows
from shoal.plan.weights import MASTER_BYTES, weights_of

RESERVE = 0.08
_COUNT_BYTES = 4


def resting_bytes(work: Workload, layout: Layout) -> dict[str, int]:
    """Return where the state rests between steps: bytes on the device and on its host."""
    held = weights_of(work, layout)
    host = 0
    if layout.memory != "device":
        host += held.optimizer_bytes
    if layout.memory == "state_on_host":
        host += held.parameters_bytes
    return {"device": held.parameters_bytes + held.optimizer_bytes - host, "host": host}


def layer_activations(model: ModelConfig, kind: str) -> dict[str, int]:
    """Return numbers per token that one layer saves for its backward pass, routed rows aside."""
    D, L = model.embed_dim, model.routed_dim
    latent = 2 * L if model.latent_dim else 0  # before and after its norm
    query = model.num_heads * model.head_dim
    kv = (model.kv_heads_local if kind == "local" else model.kv_heads_global) * model.head_dim
    return {
        "block input, after attention": 2 * D,
        "two gated norms: normed, rank twice, gate, output": 2 * (3 * D + 2 * model.gate_rank),
        "queries before and after norm and rotation": 2 * query,
        "keys before and after convolution, norm and rotation; values": 4 * kv,
        "attention before and after self-exclusion and gate": 3 * query,
        "attention output before its convolution": D,
        "router logits, in float32": 2 * model.num_experts,
        "latent before and after its norm, routed sum": latent + L,
        "shared experts: gate, up, product": 3 * model.num_shared * model.shared_dim,
        "branch output before its convolution": D,
    }


def activation_bytes(work: Workload, layout: Layout) -> dict[str, int]:
    """Return a chip's bytes that wait for the backward pass, and those of one layer at work."""
    model, tokens = work.model, layout.tokens_per_chip(work)
    c = work.compute_bytes
    rows = routed_row_numbers(work) * layout.assignments(work)
    each = {
        kind: c * (tokens * sum(layer_activations(model, kind).values()) + rows)
        for kind in ("local", "global")
    }
    largest = max(each[kind] for kind in set(model.layer_kinds))
    inputs = c * tokens * model.embed_dim
    if layout.remat:
        saved = model.num_layers * inputs
        working = largest - c * rows
    else:
        saved = sum(each[kind] for kind in model.layer_kinds) - c * rows  # as transport buffers
        saved += model.num_layers * gathered_layer_bytes(work, layout)
        working = 0
    # Embedding, its norm and the final norm: outside the layers, never recomputed.
    ends = c * tokens * (8 * model.embed_dim + 4 * model.gate_rank)
    counts = _COUNT_BYTES * model.num_layers * model.num_experts * model.balance_bins
    return {
        "saved for the backward pass": saved + ends,
        "one layer at work": working,
        "histograms of the balancer": counts,
    }


def routed_row_numbers(work: Workload) -> int:
    """Return numbers saved per assignment without remat: row in and out, and three inside.

    `ragged` keeps the sorted and the returned rows too. `pooled` computes its waves anew and keeps
    none of this.
    """
    model = work.model
    inside = 2 * model.routed_dim + 3 * model.expert_dim
    return {"local": inside, "ragged": inside + 2 * model.routed_dim, "pooled": 0}[
        work.moe.transport
    ]


def transport_bytes(work: Workload, layout: Layout) -> dict[str, int]:
    """Return a chip's bytes of the buffers that one layer's backward pass holds at once.

    `pooled` has a buffer sent and one received each way; what `ragged` receives stands laid out.
    """
    model, c = work.model, work.compute_bytes
    travel, laid_out = live_rows(work, layout)
    buffers = {"local": 0, "pooled": 4, "ragged": 2}[work.moe.transport]
    return {
        "sent and received, both ways": buffers * travel * model.routed_dim * c,
        "laid out for experts: in, gate, up, product, out": laid_out
        * (2 * model.routed_dim + 3 * model.expert_dim)
        * c,
        "sum over assignments, in float32": 4 * layout.tokens_per_chip(work) * model.routed_dim,
    }


def gathered_layer_bytes(work: Workload, layout: Layout) -> int:
    """Return bytes of the largest layer's weights as they are used: matrices whole, banks apart.

    A chip holds its own experts in the compute dtype; with `local` over an expert axis, all.
    """
    most = 0
    for stack, kind in (("local.", "local"), ("global.", "global")):
        count = work.model.layer_kinds.count(kind)
        total = 0
        for leaf in work.leaves:
            if not leaf.name.startswith(stack):
                continue
            apart = layout.expert if leaf.is_bank and work.moe.transport != "local" else 1
            total += work.compute_bytes * leaf.size // max(count, 1) // apart
        most = max(most, total)
    return most


def gathered_bytes(work: Workload, layout: Layout) -> dict[str, int]:
    """Return bytes of weights gathered for their use: a layer, the next one, the two ends."""
    ends = {leaf.name: leaf.size for leaf in work.leaves if leaf.name in ("embed", "head")}
    return {
        "weights of a layer and of the next": 2 * gathered_layer_bytes(work, layout),
        "embedding in float32, or head": max(
            MASTER_BYTES * ends["embed"], work.compute_bytes * ends["head"]
        ),
    }


def logits_bytes(work: Workload, layout: Layout) -> int:
    """Return bytes of float32 logits and their gradient: of one block, or of the vocabulary."""
    blocked = logits_are_blocked(work, layout)
    width = work.model.loss_block_vocab if blocked else work.model.vocab_size
    return 2 * 4 * layout.tokens_per_chip(work) * width


def workspace_bytes(work: Workload, layout: Layout) -> int:
    """Return bytes that orthogonalizing the largest leaf takes: float32 once, its dtype thrice."""
    inside = 2 if work.optimizer.newton_schulz_dtype == "bfloat16" else 4
    return weights_of(work, layout).largest_numbers * (MASTER_BYTES + 3 * inside)


def chip_memory(work: Workload, layout: Layout, chip: Chip) -> dict[str, Any]:
    """Return everything that is counted, the two moments, and whether the fuller one fits.

    All bytes are of one chip; `bytes_per_chip` is the peak on the device.
    """
    held = weights_of(work, layout)
    parameters, optimizer = held.parameters_bytes, held.optimizer_bytes
    gradients = parameters * (2 if layout.accumulation > 1 else 1)
    step = {
        **activation_bytes(work, layout),
        **{f"transport: {name}": n for name, n in transport_bytes(work, layout).items()},
        **gathered_bytes(work, layout),
        "logits and their gradient": logits_bytes(work, layout),
    }
    resting = optimizer if layout.memory == "device" else 0
    backward = parameters + resting + gradients + sum(step.values())
    update = parameters + optimizer + parameters + workspace_bytes(work, layout)
    peak = max(backward, update)
    usable = chip.memory_bytes * (1 - RESERVE)
    return {
        "bytes_per_chip": peak,
        "usable_bytes": int(usable),
        "fits": peak <= usable,
        "at_rest": resting_bytes(work, layout),
        "state": held.state,
        "gradients": gradients,
        "step": step,
        "update_workspace": workspace_bytes(work, layout),
        "moments": {"backward": backward, "update": update},
        "fullest": "backward" if backward >= update else "update",
    }
