"""Job `forecast`: from a ladder's record to `forecast.json` beside it."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from shoal.core.files import canonical_json, home, write_atomic
from shoal.scaling.forecast import Forecast, forecast, read_forecast
from shoal.scaling.interval import Asymptote
from shoal.scaling.public import NAME, public_check, public_ladder, public_record
from shoal.scaling.records import Ladder, read_ladder
from shoal.scaling.seal import SEAL

FORECASTS, LADDER, FORECAST = "forecasts", "ladder.json", "forecast.json"


def forecast_ladder(name: str, asymptote: str | None = None) -> dict[str, Any]:
    """Forecast the target of a ladder; writes `forecast.json` beside its `ladder.json`.

    Args:
        name: a ladder under SHOAL_HOME/forecasts, the path of a `ladder.json` or its folder, or
            `public-535b`, which ships with the package and writes nothing.
        asymptote: `1.5`, `1.3:1.7` or `free`; the default is what the ladder's data allow.

    Returns:
        `ladder metric target central alpha A E interval_50 interval_90 parts` of the headline's
        end, `forecast` with everything, and `file`.

    Raises:
        ValueError: no such ladder, or it cannot be forecast, or its forecast is sealed and would
            change.
    """
    given = None if asymptote is None else parse_asymptote(asymptote)
    if name == NAME:
        ladder = public()
        pinned = public_record()["asymptote"] if asymptote is None else given
        found = forecast(ladder, asymptote=pinned)
        return {**_summary(found), "check": public_check(ladder, found), "file": None}
    path = find_ladder(name)
    found = forecast(read_ladder(path), asymptote=given)
    return {**_summary(found), "file": str(write_forecast(path.parent, found))}


def write_forecast(folder: Path, found: Forecast) -> Path:
    """Write `forecast.json`.

    Raises:
        ValueError: another one is sealed there.
    """
    path = folder / FORECAST
    text = json.dumps(found.plain(), indent=1) + "\n"
    if (folder / SEAL).exists() and path.exists():
        before = canonical_json(read_forecast(path).plain())
        if before != canonical_json(found.plain()):
            raise ValueError(
                f"{path} is sealed and would change; copy ladder.json to a folder of another name"
            )
        return path
    write_atomic(path, text)
    return path


def find_ladder(name: str) -> Path:
    """The `ladder.json` of a name under SHOAL_HOME/forecasts, or of a path.

    Raises:
        ValueError: there is none; those that there are get named.
    """
    given, known = Path(name), home() / FORECASTS
    for path in (given, given / LADDER, known / name / LADDER):
        if path.is_file():
            return path
    names = sorted(path.parent.name for path in known.glob(f"*/{LADDER}")) if known.is_dir() else []
    there = f"there are: {', '.join([NAME, *names])}"
    raise ValueError(f"no ladder {name!r} ({known / name / LADDER} is missing); {there}")


def public() -> Ladder:
    """The public run's ladder, with the sizes that the recipes know."""
    text = files("shoal").joinpath("recipes", "published.json").read_text()
    return public_ladder(json.loads(text)["rungs"])


def parse_asymptote(text: str) -> Asymptote:
    """`1.5`, `1.3:1.7` or `free`.

    Raises:
        ValueError: it is none of them.
    """
    if text == "free":
        return None
    try:
        parts = [float(part) for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) == 1 and parts[0] >= 0:
        return parts[0]
    if len(parts) == 2 and 0 <= parts[0] < parts[1]:
        return (parts[0], parts[1])
    raise ValueError(f"asymptote {text!r}; give a number such as 1.5, a range 1.3:1.7, or free")


def _summary(found: Forecast) -> dict[str, Any]:
    head = found.headline
    if head.central[-1] is None:
        raise ValueError(
            f"ladder {found.ladder}: fewer than three rungs have {found.metric!r} at their end;"
            " finish a rung, or log it to 80 % so that its end can be filled in"
        )
    return {
        "ladder": found.ladder,
        "metric": found.metric,
        "target": found.plain()["target"],
        "central": head.central[-1],
        "alpha": head.alpha[-1],
        "A": head.A[-1],
        "E": head.E[-1],
        "interval_50": head.interval_50[-1],
        "interval_90": head.interval_90[-1],
        "parts": head.parts,
        "forecast": found.plain(),
    }


def render(result: dict[str, Any]) -> str:
    """The headline, its parts, the back-test, and the other series in a table."""
    inner, (low, high) = result["interval_50"], result["interval_90"]
    target, full = result["target"], result["forecast"]
    lines = [
        f"{result['ladder']}: {result['metric']} of {target['name']}, {target['flops']:.3g} FLOPs",
        f"  {result['central']:.4f}",
        f"  50 %: {inner[0]:.4f} to {inner[1]:.4f}, 90 %: {low:.4f} to {high:.4f}",
        f"  L = {result['E']:.4g} + {result['A']:.4g} * C^-{result['alpha']:.4f}",
        "  90 % half widths: "
        + ", ".join(f"{name} {value:.4f}" for name, value in result["parts"].items()),
    ]
    back = full["series"][result["metric"]]["backtest"]
    if back:
        lines.append(
            f"  back-test: the lower rungs put {back['rung']} at {back['predicted']:.4f}; it is at"
            f" {back['seen']:.4f} ({back['error']:+.4f})"
        )
    others = [name for name in full["series"] if name != result["metric"]]
    if others:
        lines += ["", f"{'series':<40} {'central':>8} {'90 %':>17}"]
    for name in others:
        one = full["series"][name]
        if one["central"][-1] is not None:
            ends = one["interval_90"][-1]
            lines.append(f"{name:<40} {one['central'][-1]:>8.4f} {ends[0]:>8.4f} {ends[1]:>8.4f}")
    if "check" in result:
        lines += ["", *_rendered(result["check"])]
    return "\n".join(lines + ([f"written: {result['file']}"] if result["file"] else []))


def _rendered(check: dict[str, Any]) -> list[str]:
    published, swap = check["published"], check["mixture_swap"]
    low, high = check["range"].values()
    lines = [
        f"published: {published['central']} from {published['rungs']} rungs, no interval",
        f"E from {' to '.join(check['range'])}: the center is {low:.3f} to {high:.3f}",
    ]
    for name, one in check["outcomes"].items():
        inside = "inside 50 %" if one["inside_50"] else "inside 90 %"
        where = inside if one["inside_90"] else "outside 90 %"
        lines.append(
            f"outcome, {name}: {one['seen']} ({one['error']:+.3f}, {one['percent']:+.1f} %,"
            f" {one['compute_equivalent']:.2f}x the compute by the law): {where}"
        )
    over = " to ".join(f"{value:.2f}x" for value in swap["over_range"])
    lines.append(
        f"mixture swap at {swap['rung']}: {swap['before']} to {swap['after']} is"
        f" {swap['speedup']:.2f}x ({over} over that range; reported: {swap['reported_speedup']}x)"
    )
    return lines
