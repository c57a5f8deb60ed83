"""`shoal plan`: what a recipe needs and takes on given chips, before anything runs.

Pure arithmetic from the config and the chips' stated figures; docs/planning.md says what is
counted and what the bound means.
"""

import dataclasses
import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

from shoal.arrays.config import AXES, degrees
from shoal.jobs.lowered import with_forms
from shoal.jobs.resolve import resolve
from shoal.plan import text
from shoal.plan.budget import step_budget
from shoal.plan.chips import Chip, chip_named
from shoal.plan.compile import compiled_apart
from shoal.plan.flops import mfu as mfu_of
from shoal.plan.flops import model_flops
from shoal.plan.goodput import (
    FAILURES_PER_CHIP_YEAR,
    RESTART_MINUTES,
    Reliability,
    failures,
    run_cost,
)
from shoal.plan.horizon import as_moment, shortened
from shoal.plan.layout import Layout, Workload, leaves_of, misfits
from shoal.plan.lowered import arguments_bytes, lowered_flops
from shoal.plan.memory import chip_memory
from shoal.plan.notes import assumptions, warnings
from shoal.plan.room import pooled_sizes
from shoal.plan.search import Ranked, judged
from shoal.plan.search import search as search_layouts
from shoal.train.config import Config
from shoal.train.derive import peak_rates

render = text.render
_SHOWN_LAYOUTS = 10


def plan(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    chips: int,
    chip: str = "gb200",
    mesh: Sequence[str] = (),
    step_s: float | None = None,
    mfu: float | str | None = None,
    search: bool = False,
    compile: bool = False,
    deadline: str | None = None,
    start: str | None = None,
    lost: float | str = 0.0,
    at_step: int = 0,
    failures_per_chip_year: float = FAILURES_PER_CHIP_YEAR,
    restart_minutes: float = RESTART_MINUTES,
    price: float | None = None,
    power: float | None = None,
) -> dict[str, Any]:
    """Return the plan; bytes, seconds, watts, dollars are plain numbers, shares from 0 to 1.

    Args:
        mesh: items like `expert=64`, over the recipe's mesh.
        step_s: seconds of a step, as measured or hoped for; `mfu` is the other way to say it.
        search: rank other layouts beside the given one.
        compile: compile the real step for as many fake devices in another process, and compare.
        deadline: a date; adds the horizon that `lost` of the chips leaves from `at_step`, `start`.
        price: dollars per chip and hour.
        power: watts per chip.

    Raises:
        ValueError: unknown recipe, setting or chip, a mesh or numbers that do not fit.
    """
    facts, share = chip_named(chip), None if mfu is None else _share(mfu, "mfu")
    _check(chips=chips, step_s=step_s, mfu=share, price=price, power=power)
    settings = [*overrides, *(f"mesh.{item}" for item in mesh)]
    config = resolve(recipe, settings)
    layout, work = layout_of(config, chips), workload_of(config)
    _check_fit(work, layout)
    failing = {"failures_per_chip_year": failures_per_chip_year, "restart_minutes": restart_minutes}
    reliability = Reliability(**failing)
    result = _step(config, work, layout, facts)
    speed_s = step_s
    if share is not None:
        speed_s = result["flops"]["step"] / (share * chips * facts.peak_flops)
    if speed_s is not None:
        result |= _at_speed(config, work, facts, chips, speed_s, reliability, price, power)
    if deadline is not None:
        if speed_s is None:
            raise ValueError("deadline needs a speed; give step_s or mfu as well")
        share = _share(lost, "lost")
        result["horizon"] = _horizon(config, layout, deadline, start, share, at_step, result)
    if search:
        result["search"] = _search(work, layout, facts)
    if compile:
        result["compiled"] = _compiled(recipe, settings, config, chips)
    result["warnings"] = list(warnings(result["memory"], speed_s, result["step_s_bound"]))
    result["assumptions"] = list(assumptions(work, layout, facts, reliability))
    return result


def _step(config: Config, work: Workload, layout: Layout, facts: Chip) -> dict[str, Any]:
    """What one step takes, whatever its speed."""
    memory, budget = chip_memory(work, layout, facts), step_budget(work, layout, facts)
    return {
        "recipe": config.name,
        "chip": facts.key,
        "chips": layout.num_chips,
        "layout": dataclasses.asdict(layout),
        "transport": config.moe.transport,
        "tokens": work.tokens,
        "tokens_per_step": work.tokens_per_step,
        "tokens_per_chip": layout.tokens_per_chip(work) * layout.accumulation,
        "steps": work.num_steps,
        **{key: memory[key] for key in ("bytes_per_chip", "usable_bytes", "fits")},
        "memory": memory,
        **budget,
        "days_bound": budget["step_s_bound"] * work.num_steps / 86_400,
        "pooled": _pooled(work, layout),
    }


def workload_of(config: Config) -> Workload:
    """Return what a config's steps compute."""
    return Workload(
        model=config.model,
        optimizer=config.optimizer,
        moe=config.moe,
        batch_sequences=config.train.batch_sequences,
        sequence_tokens=config.train.sequence_tokens,
        num_steps=config.train.num_steps,
        leaves=leaves_of(config.model, config.optimizer),
    )


def layout_of(config: Config, num_chips: int) -> Layout:
    """Return how a config lays a number of chips out.

    Raises:
        ValueError: the mesh does not make up the chips.
    """
    return Layout(
        **degrees(config.mesh, num_chips),
        accumulation=config.train.accumulation,
        memory=config.train.memory,
        remat=config.model.remat,
    )


def _check(*, chips: int, **given: float | None) -> None:
    if chips < 1:
        raise ValueError(f"chips={chips} must be at least 1")
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} must be a number above 0")
    if given["step_s"] is not None and given["mfu"] is not None:
        raise ValueError(
            f"step_s={given['step_s']} and mfu={given['mfu']} say the same thing; give one"
        )
    if given["mfu"] is not None and given["mfu"] > 1:
        raise ValueError(f"mfu={given['mfu']} is above 1; write 24.5 % as 0.245 or 24.5%")


def _check_fit(work: Workload, layout: Layout) -> None:
    for misfit in misfits(work, layout):
        raise ValueError(misfit.message)


def _share(value: float | str, name: str) -> float:
    """Read 0.25 or 25%."""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            return float(value.strip()[:-1]) / 100
        return float(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r} is no share; write it as 0.25 or 25%") from error


def _pooled(work: Workload, layout: Layout) -> dict[str, int]:
    per_replica = work.tokens_per_step // layout.replica // layout.accumulation
    model = work.model
    return {
        **dataclasses.asdict(pooled_sizes(work, layout)),
        "tokens_per_expert_of_replica": per_replica * model.top_k // model.num_experts,
    }


def _at_speed(
    config: Config,
    work: Workload,
    facts: Chip,
    num_chips: int,
    step_s: float,
    reliability: Reliability,
    price: float | None,
    power: float | None,
) -> dict[str, Any]:
    """What follows from the seconds of a step."""
    train = config.train
    cadences = (train.checkpoint_every_s, train.checkpoint_every_steps * step_s)
    interval = min((each for each in cadences if each > 0), default=step_s * train.num_steps)
    failing = failures(reliability, num_chips=num_chips, interval_s=interval)
    peak = {"num_chips": num_chips, "peak_flops": facts.peak_flops}
    return {
        "step_s": step_s,
        "mfu": mfu_of(model_flops(work), step_s, **peak),
        "mfu_causal": mfu_of(model_flops(work, causal=True), step_s, **peak),
        "tokens_per_s": work.tokens_per_step / step_s,
        **run_cost(
            step_s=step_s,
            num_steps=work.num_steps,
            num_chips=num_chips,
            goodput=failing["goodput"],
            chip=facts,
            price_per_hour=price,
            power_w=power,
        ),
        "failures": failing,
    }


def _horizon(
    config: Config,
    layout: Layout,
    deadline: str,
    start: str | None,
    lost: float,
    at_step: int,
    at_speed: dict[str, Any],
) -> dict[str, Any]:
    begun = dt.datetime.now(dt.UTC) if start is None else as_moment(start, "start")
    found = shortened(
        config.optimizer,
        num_steps=config.train.num_steps,
        at_step=at_step,
        start=begun,
        deadline=as_moment(deadline, "deadline"),
        step_s=at_speed["step_s"],
        lost=lost,
        goodput=at_speed["failures"]["goodput"],
    )
    peak = peak_rates(config)
    return {
        **dataclasses.asdict(found),
        "deadline": deadline,
        "start": begun.isoformat(timespec="minutes"),
        "lost": lost,
        "share_given_up": found.share_given_up,
        "tokens": found.steps * config.train.tokens_per_step,
        "whole_replicas_left": math.floor(layout.replica * (1 - lost)),
        "muon_lr": [fraction * peak.muon_lr for fraction in found.line],
        "adam_lr": [fraction * peak.adam_lr for fraction in found.line],
    }


def _compiled(
    recipe: str, settings: Sequence[str], config: Config, num_chips: int
) -> dict[str, Any]:
    """What the compiled step says beside what the plan says of the same program."""
    request = {"recipe": recipe, "overrides": settings, "chips": num_chips}
    found = compiled_apart("shoal.jobs.lowered", request, num_chips)
    config = with_forms(config)
    work, layout = workload_of(config), layout_of(config, num_chips)
    planned = {
        "arguments_bytes": arguments_bytes(work, layout),
        "matmul_flops": sum(lowered_flops(work, layout).values()),
    }
    return {
        **found,
        "planned": planned,
        "ratio": {name: found[name] / value for name, value in planned.items()},
    }


def _search(work: Workload, layout: Layout, facts: Chip) -> dict[str, Any]:
    found = search_layouts(work, facts, layout.num_chips)
    given = judged(work, layout, facts)
    layouts = [each.layout for each in found.ranked]
    return {
        "tried": found.tried,
        "fitting": len(found.ranked),
        "thrown_out": found.thrown_out,
        "rank_of_given": layouts.index(layout) + 1 if layout in layouts else None,
        "given": _row(given),
        "ranked": [_row(each) for each in found.ranked[:_SHOWN_LAYOUTS]],
    }


def _row(ranked: Ranked) -> dict[str, Any]:
    layout = ranked.layout
    settings = [f"mesh.{axis}={layout.degrees[axis]}" for axis in AXES]
    settings += [
        f"train.accumulation={layout.accumulation}",
        f"train.memory={layout.memory}",
        f"model.remat={str(layout.remat).lower()}",
    ]
    figures = dataclasses.asdict(ranked)
    return {**figures, "set": settings}
