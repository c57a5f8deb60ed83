"""Job `report`: the page of a run, from its record alone."""

from typing import Any

from shoal.jobs.runs import find_run
from shoal.report.page import write


def report(run: str) -> dict[str, Any]:
    """Write `report.html` into the run's folder and say where it is."""
    folder = find_run(run)
    return {"run": str(folder), "report": str(write(folder))}
