"""Bytes that one chip sends in a step, over which link; and those it moves to its own memory.

Links: `domain` (the fast fabric), `across` (between domains), `host` (chip and host memory). A
collective over a group that spans domains is taken in two levels, each at its least: every byte
that a domain needs enters it once, spread over its chips. Bytes sent equal bytes received.

Weights are gathered, and their gradients summed, in the compute dtype once for each microbatch;
the embedding in float32.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shoal.arrays.config import CONTEXT, DATA, EXPERT, REPLICA
from shoal.plan.chips import Chip
from shoal.plan.layout import Layout, Workload
from shoal.plan.memory import layer_activations
from shoal.plan.room import pooled_fill, recomputed_pieces, sent_rows
from shoal.plan.weights import MASTER_BYTES, weights_of

LINKS = ("domain", "across", "host")
PHASES = ("forward", "backward", "optimizer")


class Move(NamedTuple):
    """Bytes that one chip sends in one step over one link, for one purpose, in one phase."""

    what: str
    phase: str
    link: str
    bytes: float


class Group:
    """Chips along some mesh axes: how many, and how many of them share a fast domain."""

    def __init__(self, layout: Layout, chip: Chip, axes: tuple[str, ...]) -> None:
        self.size = layout.over(axes)
        self.near = layout.inside(axes, chip)
        self.domains = self.size // self.near

    def gather(self, whole_bytes: float) -> dict[str, float]:
        """All-gather to, or reduce-scatter from, `whole_bytes` on every chip."""
        return {
            "domain": whole_bytes * (self.near - 1) / self.near,
            "across": whole_bytes * (self.domains - 1) / self.size,
        }

    def reduce(self, each_bytes: float) -> dict[str, float]:
        """All-reduce of `each_bytes` on every chip: a reduce-scatter and an all-gather."""
        return {link: 2 * sent for link, sent in self.gather(each_bytes).items()}

    def exchange(self, buffer_bytes: float) -> dict[str, float]:
        """All-to-all of a buffer with an equal part for every chip, the own one included."""
        return {
            "domain": buffer_bytes * (self.near - 1) / self.size,
            "across": buffer_bytes * (self.size - self.near) / self.size,
        }


def moves(work: Workload, layout: Layout, chip: Chip) -> list[Move]:
    """Return everything that a chip sends in a step; what is zero is left out."""
    found = [
        *_weights(work, layout, chip),
        *_rows(work, layout, chip),
        *_context(work, layout, chip),
        *_sums(work, layout, chip),
        *_update(work, layout, chip),
    ]
    return [move for move in found if move.bytes > 0]


def _each(what: str, phase: str, sent: Mapping[str, float], times: float) -> Iterator[Move]:
    for link, size in sent.items():
        yield Move(what, phase, link, size * times)


def _weights(work: Workload, layout: Layout, chip: Chip) -> Iterator[Move]:
    """Gathers of weights at their use, and the way back of their gradients."""
    parts = layout.accumulation
    for (inner, axes), size in weights_of(work, layout).gathered.items():
        sent = Group(layout, chip, axes).gather(size)
        yield from _each("weights gathered", "forward", sent, parts)
        if inner and layout.remat:
            yield from _each("weights gathered again", "backward", sent, parts)
        yield from _each("gradients scattered", "backward", sent, parts)


def _rows(work: Workload, layout: Layout, chip: Chip) -> Iterator[Move]:
    """Rows to their experts and back: a pass is one way there and one way back."""
    way = sent_rows(work, layout) * work.model.routed_dim * work.compute_bytes
    sent = Group(layout, chip, (EXPERT,)).exchange(way * work.model.num_layers)
    times = 2 * layout.accumulation
    yield from _each("rows to experts and back", "forward", sent, times)
    again = int(layout.remat) + recomputed_pieces(work)
    yield from _each("rows again, for what is recomputed", "backward", sent, times * again)
    yield from _each("gradients of rows", "backward", sent, times)


def _context(work: Workload, layout: Layout, chip: Chip) -> Iterator[Move]:
    """Keys and values of a sequence that is cut: whole on global layers, a window on local ones."""
    if layout.context == 1:
        return
    model, length = work.model, work.sequence_tokens
    sequences = layout.tokens_per_chip(work) * layout.context / length
    span = {"global": length, "local": min(length, model.window + length // layout.context)}
    heads = {"global": model.kv_heads_global, "local": model.kv_heads_local}
    size = sum(
        model.layer_kinds.count(kind) * sequences * span[kind] * 2 * heads[kind] * model.head_dim
        for kind in span
    )
    sent = Group(layout, chip, (CONTEXT,)).gather(size * work.compute_bytes)
    yield from _each("keys and values", "forward", sent, layout.accumulation)
    again = 1 + int(layout.remat)
    yield from _each("keys, values, gradients", "backward", sent, layout.accumulation * again)


def _sums(work: Workload, layout: Layout, chip: Chip) -> Iterator[Move]:
    """Gradients summed over copies of the weights, and the balancer's histograms over all."""
    for axes, size in weights_of(work, layout).summed.items():
        sent = Group(layout, chip, axes).reduce(size)
        yield from _each("gradients summed over copies", "backward", sent, layout.accumulation)
    counts = 4.0 * work.model.num_layers * work.model.num_experts * work.model.balance_bins
    sent = Group(layout, chip, (REPLICA, DATA, EXPERT, CONTEXT)).reduce(counts)
    yield from _each("histograms summed", "forward", sent, layout.accumulation)


def _update(work: Workload, layout: Layout, chip: Chip) -> Iterator[Move]:
    """Matrices to where they are orthogonalized and back, and state from and to the host."""
    held = weights_of(work, layout)
    sent = Group(layout, chip, (DATA, EXPERT)).exchange(held.spread_bytes)
    yield from _each("matrices to be orthogonalized, and back", "optimizer", sent, 2)
    parameters, optimizer = float(held.parameters_bytes), float(held.optimizer_bytes)
    if layout.memory == "optimizer_on_host":
        yield Move("optimizer state from and to the host", "optimizer", "host", optimizer)
    if layout.memory == "state_on_host":
        yield Move("parameters from the host", "forward", "host", parameters)
        yield Move("state to the host", "optimizer", "host", parameters + optimizer)


def memory_traffic(work: Workload, layout: Layout) -> dict[str, float]:
    """Return bytes between a chip and its memory in a step, by phase.

    Those of a program that keeps exactly the counted tensors: every weight that a pass uses is read
    once for each microbatch, every activation is written once and read once by each pass that
    needs it, gradients are added to once, and the update reads and writes the state once. Logits
    never leave the chip.
    """
    model, c, parts = work.model, work.compute_bytes, layout.accumulation
    weights = weights_of(work, layout)
    used, held = weights.used_bytes, sum(weights.state["numbers"].values())
    widths = sum(sum(layer_activations(model, kind).values()) for kind in model.layer_kinds)
    dense = c * layout.tokens_per_chip(work) * widths
    rows = layout.assignments(work) * pooled_fill(work, layout) * model.num_layers
    routed = c * rows * (2 * model.routed_dim + 3 * model.expert_dim)
    again, pieces = int(layout.remat), recomputed_pieces(work)
    backward = (1 + again) * used + 2 * (1 + again) * dense + 2 * (1 + again + pieces) * routed
    return {
        "forward": parts * (used + 2 * (dense + routed)) + (MASTER_BYTES + c) * held,
        "backward": parts * (backward + 2 * MASTER_BYTES * held),
        "optimizer": float(2 * weights.optimizer_bytes + 3 * MASTER_BYTES * held),
    }
