"""Transports assignment by assignment, and the ragged exchange row by row.

Devices are the leading axis D of what is given: ids [D, T, K], with the number of experts for
padding. An assignment's fate is one of the four below.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oracles import moe
from oracles.shape import Array, Ints, Tree

PADDING, DELIVERED, SENDER, RECEIVER = range(4)


@dataclass(frozen=True, kw_only=True)
class Room:
    """Factors in hundredths, so that rounding up needs no fractions."""

    sender_percent: int = 115
    receiver_percent: int = 115
    waves: int = 3
    chunks: int = 2


def rows_for(percent: int, need: int, places: int) -> int:
    """The fewest rows that, in that many places, hold so many percent of the need."""
    rows = 0
    while rows * places * 100 < percent * need:
        rows += 1
    return rows


def local(ids: Ints, num_experts: int, room: Room) -> tuple[Ints, Ints]:
    """Nothing is ever dropped; (fates, tallies) as `pooled`."""
    fates = np.where(ids < num_experts, DELIVERED, PADDING)
    return fates, np.stack([count(own, own) for own in fates])


def pooled(ids: Ints, num_experts: int, room: Room) -> tuple[Ints, Ints]:
    """(fates like ids, [D, 3] sender and receiver drops and delivered of each device)."""
    devices, tokens, top_k = ids.shape
    mine = num_experts // devices
    num_rows = rows_for(room.sender_percent, tokens * top_k, devices * room.waves)
    num_taken = rows_for(room.receiver_percent, tokens * top_k, mine * room.waves)
    fates = np.full(ids.shape, PADDING)
    parcels: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for s in range(devices):
        sent = [0] * devices
        for t in range(tokens):
            for k in range(top_k):
                if ids[s, t, k] == num_experts:
                    continue
                target = int(ids[s, t, k]) // mine
                wave, row = sent[target] % room.waves, sent[target] // room.waves
                sent[target] += 1
                fates[s, t, k] = SENDER if row >= num_rows else RECEIVER
                if row < num_rows:
                    parcels.setdefault((wave, target, s), []).append((t, k))
    received = np.zeros((devices, 3), int)
    for target in range(devices):
        for wave in range(room.waves):
            taken = [0] * num_experts
            for turn in range(devices):
                s = (target + turn) % devices
                for t, k in parcels.get((wave, target, s), []):
                    if taken[ids[s, t, k]] < num_taken:
                        taken[ids[s, t, k]] += 1
                        fates[s, t, k] = DELIVERED
                    received[target, 2 if fates[s, t, k] == DELIVERED else 1] += 1
    received[:, 0] = np.sum(fates == SENDER, axis=(1, 2))
    return fates, received


def ragged(ids: Ints, num_experts: int, room: Room) -> tuple[Ints, Ints]:
    """As `pooled`; a sender never drops."""
    devices, tokens, top_k = ids.shape
    mine = num_experts // devices
    num_chunks = min(mine, room.chunks)
    fates = np.full(ids.shape, PADDING)
    received = np.zeros((devices, 3), int)
    for target in range(devices):
        for chunk in range(num_chunks):
            first, last = chunk * mine // num_chunks, (chunk + 1) * mine // num_chunks
            left = rows_for(room.receiver_percent, tokens * top_k * (last - first), mine)
            if room.receiver_percent >= 100 * devices:
                left = ids.size
            for turn in range(devices):
                s = (target + turn) % devices
                for expert in range(target * mine + first, target * mine + last):
                    for t, k in np.argwhere(ids[s] == expert):
                        fates[s, t, k] = DELIVERED if left > 0 else RECEIVER
                        received[target, 2 if left > 0 else 1] += 1
                        left -= 1
    return fates, received


# Every transport; one that is added here is held to all that tests/moe asks of transports.
SIMULATIONS: dict[str, Callable[[Ints, int, Room], tuple[Ints, Ints]]] = {
    "local": local,
    "pooled": pooled,
    "ragged": ragged,
}


def simulate(
    name: str, ids: Ints, num_experts: int, room: Room, groups: int = 1
) -> tuple[Ints, Ints]:
    """(fates, tallies) where groups of consecutive devices each hold all experts."""
    parts = [SIMULATIONS[name](own, num_experts, room) for own in np.split(ids, groups)]
    fates, tallies = (np.concatenate(p) for p in zip(*parts, strict=True))
    return fates, tallies


def count(fates: Ints, at_home: Ints) -> Ints:
    """Sender drops, receiver drops and deliveries."""
    return np.array(
        [np.sum(fates == SENDER), np.sum(at_home == RECEIVER), np.sum(at_home == DELIVERED)]
    )


def carried(
    x: Array, ids: Ints, weights: Array, params: Tree, mix: Array, fates: Ints
) -> tuple[Array, Tree]:
    """Outputs [D, T, L] and gradients of sum(mix * outputs), from what was delivered alone."""
    where = np.argwhere(fates == DELIVERED)
    experts = np.array([ids[tuple(place)] for place in where], int)
    where = where[np.argsort(experts, kind="stable")]
    sizes = np.bincount(experts, minlength=len(params["gate"]))
    rows = np.array([x[s, t] for s, t, _ in where]).reshape(-1, x.shape[-1])
    slopes = [weights[s, t, k] * mix[s, t] for s, t, k in where]
    results = moe.grouped_swiglu(rows, sizes, params)
    gradients = moe.expert_gradients(rows, sizes, params, np.array(slopes).reshape(rows.shape))
    y, from_rows = np.zeros_like(x), gradients.pop("rows")
    gradients |= {"x": np.zeros_like(x), "weights": np.zeros_like(weights)}
    for (s, t, k), result, slope in zip(where, results, from_rows, strict=True):
        y[s, t] += weights[s, t, k] * result
        gradients["weights"][s, t, k] = result @ mix[s, t]
        gradients["x"][s, t] += slope
    return y, gradients


def exchange(
    operand: Array,
    output: Array,
    input_offsets: Ints,
    send_sizes: Ints,
    output_offsets: Ints,
) -> Array:
    """Ragged all-to-all of D devices: operand [D, R, L] and output [D, M, L], indices [D, n]."""
    result = output.copy()
    devices, num_slices = input_offsets.shape
    for s in range(devices):
        for i in range(num_slices):
            target = i // (num_slices // devices)
            for row in range(send_sizes[s, i]):
                there, here = output_offsets[s, i] + row, input_offsets[s, i] + row
                result[target, there] = operand[s, here]
    return result


def exchange_gradients(
    cotangent: Array,
    num_rows: int,
    input_offsets: Ints,
    send_sizes: Ints,
    output_offsets: Ints,
) -> tuple[Array, Array]:
    """Gradients for operand and output: each cotangent row goes where its row came from."""
    to_output = cotangent.copy()
    to_operand = np.zeros((len(cotangent), num_rows, cotangent.shape[2]), cotangent.dtype)
    devices, num_slices = input_offsets.shape
    for s in range(devices):
        for i in range(num_slices):
            target = i // (num_slices // devices)
            for row in range(send_sizes[s, i]):
                there, here = output_offsets[s, i] + row, input_offsets[s, i] + row
                to_operand[s, here] += cotangent[target, there]
                to_output[target, there] = 0.0
    return to_operand, to_output
