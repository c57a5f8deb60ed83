"""Job `report`: the page of a run or of a forecast, from their records alone.

A run that was forecast has its forecast on its page, and the forecast a page of its own, which is
written with it: so both tell how far the run is.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

from shoal.core.files import home
from shoal.jobs.forecast import FORECAST, FORECASTS, LADDER
from shoal.jobs.runs import find_run
from shoal.report import page
from shoal.report.folder import read
from shoal.report.forecast import write_forecast
from shoal.report.forecast_folder import forecast_of, read_forecast
from shoal.scaling.forecast import Forecast
from shoal.scaling.forecast import read_forecast as parsed
from shoal.scaling.records import FRACTIONS, Ladder, read_ladder
from shoal.scaling.seal import SEAL, read_seal, refit
from shoal.scaling.tail import completed

# How many sizes between the rungs and the target the bands of the ladder plot are fitted at.
_SIZES = 12


def report(name: str) -> dict[str, Any]:
    """Write `report.html` into the folder of a run, of a forecast, or of both.

    Args:
        name: a run under SHOAL_HOME/runs or its path, or else a forecast under SHOAL_HOME/forecasts
            or its path. Each brings the other's page with it.

    Returns:
        `run` and `report`, and `forecast` and `forecast_report`, those that there are.

    Raises:
        ValueError: there is neither.
    """
    try:
        folder = find_run(name)
    except ValueError as error:
        place = _find_forecast(name)
        if place is None:
            raise ValueError(f"{error}; nor is it a forecast") from error
        run = read_forecast(place).run_folder
        return {
            "forecast": str(place),
            "forecast_report": str(write_forecast(place, corridor(place))),
            **({} if run is None else {"run": str(run), "report": str(page.write(run))}),
        }
    return write_pages(folder)


def write_pages(folder: Path) -> dict[str, Any]:
    """Write the page of a run, and that of its forecast if it has one; errors as `page.write`."""
    found = forecast_of(folder, read(folder))
    made = {"run": str(folder), "report": str(page.write(folder))}
    if found is None or found.folder.resolve() == folder.resolve():
        return made
    path = write_forecast(found.folder, corridor(found.folder))
    return {**made, "forecast": str(found.folder), "forecast_report": str(path)}


def _find_forecast(name: str) -> Path | None:
    given = Path(name)
    for place in (given, home() / FORECASTS / name):
        if any((place / file).is_file() for file in (LADDER, FORECAST, SEAL)):
            return place
    return None


def corridor(folder: Path) -> list[tuple[float, float, float, float, float]]:
    """Where runs of sizes between the least rung and the target would lie, by the forecast's fit.

    Returns:
        Compute, the ends of the 90 % and of the 50 % interval; empty where the files do not give
        them: the page says why.
    """
    try:
        found = _forecast(folder)
        ladder = read_ladder(folder / LADDER)
        place = max(n for n, value in enumerate(found.headline.central) if value is not None)
        return _corridor(found, _headline_only(ladder, found, place), place)
    except (ValueError, KeyError):
        return []


def _forecast(folder: Path) -> Forecast:
    if (folder / SEAL).is_file():
        return read_seal(folder / SEAL).forecast
    return parsed(folder / FORECAST)


def _headline_only(ladder: Ladder, found: Forecast, place: int) -> Ladder:
    """The ladder with nothing but the headline at one fraction, so that a fit takes no time."""
    whole, _ = completed(ladder, found.settings.get("tail_bias"))
    runs = []
    for run in whole.runs:
        values = run.series.get(found.metric, (None,) * len(FRACTIONS))
        kept = tuple(value if n == place else None for n, value in enumerate(values))
        runs.append(dataclasses.replace(run, series={found.metric: kept}, health={}))
    return dataclasses.replace(whole, metric=found.metric, runs=tuple(runs))


def _corridor(
    found: Forecast, ladder: Ladder, place: int
) -> list[tuple[float, float, float, float, float]]:
    target, share = found.target, FRACTIONS[place]
    least = min(ladder.runs, key=lambda run: run.flops)
    rows: list[tuple[float, float, float, float, float]] = []
    for step in range(_SIZES + 1):
        way = step / _SIZES
        flops = least.flops ** (1 - way) * target.flops**way
        tokens = math.exp(math.log(least.tokens) * (1 - way) + math.log(target.tokens) * way)
        moved = dataclasses.replace(target, flops=flops, tokens=max(1, round(tokens)))
        said = refit(found, dataclasses.replace(ladder, target=moved)).headline
        outer, inner = said.interval_90[place], said.interval_50[place]
        if outer is not None and inner is not None:
            rows.append((share * flops, outer[0], outer[1], inner[0], inner[1]))
    return rows
