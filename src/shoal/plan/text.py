"""A plan as text for a terminal: aligned columns, a unit with every number."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

type Lines = Iterator[str]

_GIB = 2**30


def render(result: Mapping[str, Any]) -> str:
    """Return the result of `jobs.plan.plan` for a terminal."""
    sections = (
        *(_head, _memory, _operations, _traffic, _bound, _pooled),
        *(_run, _horizon, _search, _compiled),
    )
    lines = [line for section in sections for line in section(result)]
    lines += [f"warning: {warning}" for warning in result["warnings"]]
    lines += ["", "assumed", *(f"  - {each}" for each in result["assumptions"])]
    return "\n".join(lines)


def _head(result: Mapping[str, Any]) -> Lines:
    layout = result["layout"]
    axes = " x ".join(f"{axis} {layout[axis]}" for axis in ("replica", "data", "expert", "context"))
    yield f"{result['recipe']} on {result['chips']:,} {result['chip']}: {axes}"
    yield (
        f"  {result['transport']} transport, {layout['accumulation']} microbatch(es), state"
        f" {layout['memory'].replace('_', ' ')}, layers"
        f" {'computed again' if layout['remat'] else 'saved'} for the backward pass"
    )
    yield (
        f"  {result['tokens'] / 1e12:,.3f}T tokens in {result['steps']:,} steps of"
        f" {result['tokens_per_step']:,}; {result['tokens_per_chip']:,} a chip"
    )


def _memory(result: Mapping[str, Any]) -> Lines:
    memory = result["memory"]
    state = memory["state"]
    yield from ("", "memory of a chip, GiB")
    header = f"{'numbers':>17} {'parameters':>11} {'optimizer':>10}"
    yield f"  {'state by group':48}{header}"
    for group, numbers in state["numbers"].items():
        cells = f"{numbers:>17,} {_gib(state['parameters'][group], 11)}"
        yield f"  {group:48}{cells} {_gib(state['optimizer'][group], 10)}"
    totals = {name: sum(table.values()) for name, table in state.items()}
    yield (
        f"  {'together':48}{totals['numbers']:>17,} {_gib(totals['parameters'], 11)}"
        f" {_gib(totals['optimizer'], 10)}"
    )
    rows = [
        ("at rest on the device", memory["at_rest"]["device"]),
        ("at rest on the host", memory["at_rest"]["host"]),
        ("gradients", memory["gradients"]),
        *memory["step"].items(),
        ("workspace of the update", memory["update_workspace"]),
        ("end of the backward pass, all together", memory["moments"]["backward"]),
        ("update, all together", memory["moments"]["update"]),
        ("usable", memory["usable_bytes"]),
    ]
    for name, size in rows:
        yield f"  {name:60}{_gib(size, 10)}"
    fits = "fits" if memory["fits"] else "DOES NOT FIT"
    yield f"  {'peak: ' + fits:60}{_gib(memory['bytes_per_chip'], 10)}"


def _operations(result: Mapping[str, Any]) -> Lines:
    flops = result["flops"]
    yield from ("", "operations of a step, all chips, forward and backward")
    for part, count in flops["parts"].items():
        share = count / flops["step"]
        yield f"  {part.replace('_', ' '):34} {count:>14.4e}  {share:>6.1%}"
    yield f"  {'together':34} {flops['step']:>14.4e}"
    yield f"  {'with causal attention':34} {flops['causal']:>14.4e}"
    executed = sum(result["executed_flops_per_chip"].values()) * result["chips"]
    yield f"  {'executed':34} {executed:>14.4e}  recomputation and Newton-Schulz included"


def _traffic(result: Mapping[str, Any]) -> Lines:
    yield from ("", "sent by a chip in a step")
    yield f"  {'what':42} {'phase':10} {'link':8} {'GB':>10} {'ms':>10}"
    merged: dict[tuple[str, str, str], list[float]] = {}
    for move in result["sent"]:
        held = merged.setdefault((move["what"], move["phase"], move["link"]), [0.0, 0.0])
        held[0] += move["bytes"]
        held[1] += move["s"]
    for (what, phase, link), (size, seconds) in merged.items():
        yield f"  {what:42} {phase:10} {link:8} {size / 1e9:>10,.2f} {1000 * seconds:>10,.2f}"


def _bound(result: Mapping[str, Any]) -> Lines:
    yield from ("", "least seconds of a step: the largest of each phase")
    columns = ("compute", "memory", "domain", "across", "host")
    yield f"  {'phase':12}" + "".join(f"{name:>10}" for name in columns) + "  limited by"
    for phase, busy in result["busy_s"].items():
        cells = "".join(f"{busy.get(name, 0.0):>10.3f}" for name in columns)
        yield f"  {phase:12}{cells}  {result['limited_by'][phase]}"
    yield (
        f"  bound {result['step_s_bound']:.3f} s, MFU at most {result['mfu_bound']:.1%}"
        f" (causal {result['mfu_causal_bound']:.1%}), {result['days_bound']:.1f} days;"
        f" without any overlap {result['step_s_serial']:.3f} s"
    )


def _pooled(result: Mapping[str, Any]) -> Lines:
    names = {
        "assignments_per_shard": "assignments of a chip",
        "sender_rows_per_wave": "rows to each other chip in a wave",
        "receiver_rows_per_expert": "rows of an expert in a wave",
        "header_rows": "header rows with each chip's rows",
        "waves": "waves",
        "tokens_per_expert_of_replica": "tokens of an expert in one replica",
    }
    used = "" if result["transport"] == "pooled" else " (not used by this run)"
    yield from ("", f"pooled transport, one microbatch{used}")
    for key, name in names.items():
        yield f"  {name:42} {result['pooled'][key]:>12,}"


def _run(result: Mapping[str, Any]) -> Lines:
    if "step_s" not in result:
        return
    yield from ("", "the run")
    yield _line("step", f"{result['step_s']:.3f} s")
    yield _line("MFU", f"{result['mfu']:.2%}, causal {result['mfu_causal']:.2%}")
    yield _line("tokens per second", f"{result['tokens_per_s']:,.0f}")
    yield _line("days of steps alone", f"{result['days']:.1f}")
    failing = result["failures"]
    if "mtbf_hours" in failing:
        yield _line("mean time between failures", f"{failing['mtbf_hours']:,.1f} h")
        yield _line(
            "goodput",
            f"{failing['goodput']:.1%} with a checkpoint every {failing['interval_s']:,.0f} s;"
            f" {failing['best_goodput']:.1%} with every {failing['best_interval_s']:,.0f} s"
            " (Young)",
        )
    if "days_with_failures" in result:
        yield _line("days with failures", f"{result['days_with_failures']:.1f}")
        yield _line("chip hours", f"{result['chip_hours']:,.0f}")
        yield _line("cost", f"{result['cost']:,.0f} dollars")
        yield _line("energy", f"{result['energy_mwh']:,.0f} MWh")
    else:
        yield _line("days with failures", "never: a failure comes before every checkpoint")


def _horizon(result: Mapping[str, Any]) -> Lines:
    if "horizon" not in result:
        return
    found = result["horizon"]
    yield from ("", f"until {found['deadline']} with {found['lost']:.0%} of the chips lost")
    yield _line("from", f"step {found['at_step']:,} at {found['start']}")
    yield _line("step", f"{found['step_s']:.3f} s")
    whole = f"{found['whole_replicas_left']} of {result['layout']['replica']}"
    yield _line("whole replicas left", whole)
    yield _line(
        "horizon",
        f"{found['steps']:,} steps instead of {found['planned_steps']:,}:"
        f" {found['tokens'] / 1e12:,.3f}T tokens, {found['share_given_up']:.1%} given up",
    )
    yield _line("learning rate, from step", f"{found['line_from']:,} in a straight line to the end")
    yield _line(
        "  share of the peak",
        f"{found['fraction_from']:.6f} to {found['fraction_to']:.6f},"
        f" {found['slope_per_step']:.6e} a step (planned {found['planned_slope_per_step']:.6e})",
    )
    for name in ("muon_lr", "adam_lr"):
        first, last = found[name]
        yield _line(f"  {name}", f"{first:.6e} to {last:.6e}")


def _search(result: Mapping[str, Any]) -> Lines:
    if "search" not in result:
        return
    found = result["search"]
    yield from ("", f"{found['fitting']:,} of {found['tried']:,} layouts fit; best first")
    yield from (f"  {count:>7,} thrown out: {why}" for why, count in found["thrown_out"].items())
    yield f"  {'':6}{'bound s':>9}{'serial s':>10}{'GiB':>8}  settings"
    for index, row in enumerate(found["ranked"], 1):
        yield f"  {index:<6}{_layout_row(row)}"
    rank = found["rank_of_given"]
    yield f"  {'given':6}{_layout_row(found['given'])}"
    yield f"  the given layout is {f'number {rank:,}' if rank else 'not among those that fit'}"


def _compiled(result: Mapping[str, Any]) -> Lines:
    if "compiled" not in result:
        return
    found = result["compiled"]
    planned, ratio = found["planned"], found["ratio"]
    yield from ("", f"the step compiled for {result['chips']:,} fake CPU devices")
    yield f"  {'':42} {'compiled':>14} {'planned':>14} {'ratio':>8}"
    cells = f"{_gib(found['arguments_bytes'], 14)} {_gib(planned['arguments_bytes'], 14)}"
    yield f"  {'arguments of a device, GiB':42} {cells} {ratio['arguments_bytes']:>8.4f}"
    cells = f"{found['matmul_flops']:>14.4e} {planned['matmul_flops']:>14.4e}"
    yield f"  {'matrix products, all devices':42} {cells} {ratio['matmul_flops']:>8.4f}"
    yield f"  {'temporary memory of a device, GiB':42} {_gib(found['temporary_bytes'], 14)}"
    yield "  temporary memory is of the program compiled for CPUs: it widens bfloat16, keeps scores"
    yield "  and gathers every device's rows where accelerators exchange ragged ones"
    yield (
        f"  traced in {found['trace_s']:.1f} s, compiled in {found['compile_s']:.1f} s, with"
        f" {found['peak_process_bytes'] / _GIB:.2f} GiB"
    )


def _layout_row(row: Mapping[str, Any]) -> str:
    settings: Sequence[str] = row["set"]
    figures = f"{row['step_s_bound']:>9.3f}{row['step_s_serial']:>10.3f}"
    return f"{figures}{_gib(row['bytes_per_chip'], 8)}  {' '.join(settings)}"


def _line(name: str, value: str) -> str:
    return f"  {name:28} {value}"


def _gib(size: float, width: int) -> str:
    return f"{size / _GIB:>{width},.2f}"
