"""The roofline of a step: what it computes, moves and sends against what the chips can do.

The bound assumes that inside a phase everything overlaps perfectly: operations at the dense peak,
memory traffic, each link at its stated bandwidth. The three phases (forward, backward with the
summing of gradients, update) follow one another. So

    step_s_bound = sum over phases of max(compute, memory, domain, across, host)

No run of this code reaches it: kernels do not run at the peak, and the rows of a layer must travel
before its experts can start. `step_s_serial` is the other extreme, where nothing overlaps.
"""

from collections import defaultdict
from typing import Any

from shoal.plan.chips import Chip
from shoal.plan.flops import executed_flops, model_flops
from shoal.plan.layout import Layout, Workload
from shoal.plan.traffic import PHASES, Move, memory_traffic, moves

type Times = dict[str, dict[str, float]]


def link_speed(chip: Chip, link: str) -> float:
    """Return bytes per second of a link, one direction."""
    return {
        "domain": chip.domain_bytes_per_s,
        "across": chip.across_bytes_per_s,
        "host": chip.host_bytes_per_s,
    }[link]


def phase_times(work: Workload, layout: Layout, chip: Chip, sent: list[Move]) -> Times:
    """Return, by phase, the seconds that each resource is busy at least."""
    computed, moved = executed_flops(work, layout), memory_traffic(work, layout)
    times: Times = {}
    for phase in PHASES:
        busy: dict[str, float] = defaultdict(float)
        busy["compute"] = computed[phase] / chip.peak_flops
        busy["memory"] = moved[phase] / chip.memory_bytes_per_s
        for move in sent:
            if move.phase == phase:
                busy[move.link] += move.bytes / link_speed(chip, move.link)
        times[phase] = dict(busy)
    return times


def bound_s(times: Times) -> float:
    """Return the seconds of a step where everything in a phase overlaps."""
    return sum(max(busy.values()) for busy in times.values())


def serial_s(times: Times) -> float:
    """Return the seconds of a step where nothing overlaps."""
    return sum(sum(busy.values()) for busy in times.values())


def step_budget(work: Workload, layout: Layout, chip: Chip) -> dict[str, Any]:
    """Return operations, traffic, times and bounds of one step.

    `flops` are of all chips, `executed`, `memory_traffic` and `sent` of one chip.
    """
    sent = moves(work, layout, chip)
    times = phase_times(work, layout, chip, sent)
    whole, causal = model_flops(work), model_flops(work, causal=True)
    bound = bound_s(times)
    peak = layout.num_chips * chip.peak_flops
    return {
        "step_s_bound": bound,
        "step_s_serial": serial_s(times),
        "mfu_bound": sum(whole.values()) / (bound * peak),
        "mfu_causal_bound": sum(causal.values()) / (bound * peak),
        "flops": {"parts": whole, "step": sum(whole.values()), "causal": sum(causal.values())},
        "executed_flops_per_chip": executed_flops(work, layout),
        "memory_traffic_bytes": memory_traffic(work, layout),
        "sent": [
            {**move._asdict(), "s": move.bytes / link_speed(chip, move.link)} for move in sent
        ],
        "busy_s": times,
        "limited_by": {phase: max(busy, key=lambda k: busy[k]) for phase, busy in times.items()},
    }
