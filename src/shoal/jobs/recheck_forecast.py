"""Rechecks of a forecast."""

from pathlib import Path

from shoal.jobs.findings import Findings


def recheck_forecast(folder: Path, findings: Findings) -> None:
    """Recheck."""
