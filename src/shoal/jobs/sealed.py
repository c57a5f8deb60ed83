"""Where forecasts and their seals are: by name under SHOAL_HOME/forecasts, or by path."""

from pathlib import Path

from shoal.core.files import home
from shoal.jobs.forecast import FORECAST, FORECASTS
from shoal.scaling.seal import SEAL, Seal, read_seal


def forecast_folders() -> list[Path]:
    """The folders under SHOAL_HOME/forecasts that hold a forecast or a seal, by name."""
    root = home() / FORECASTS
    found = {path.parent for name in (FORECAST, SEAL) for path in root.glob(f"*/{name}")}
    return sorted(found)


def find_forecast(name: str) -> Path:
    """The folder of a forecast given by name, by path, or by the path of a file in it.

    Raises:
        ValueError: there is none; those that there are get named.
    """
    given = Path(name)
    for folder in (given, given.parent, home() / FORECASTS / name):
        if folder == given.parent and not (given.is_file() and given.suffix == ".json"):
            continue
        if any((folder / file).is_file() for file in (FORECAST, SEAL)):
            return folder
    there = ", ".join(folder.name for folder in forecast_folders())
    raise ValueError(
        f"no forecast {name!r} ({home() / FORECASTS / name} has none); "
        + (f"there are: {there}" if there else "there is none yet; `shoal ladder`")
    )


def find_seal(name: str) -> Seal:
    """The seal of a forecast, given as for `find_forecast`, or by the path of the seal itself.

    Raises:
        ValueError: there is none, or it was altered.
    """
    path = Path(name)
    if not path.is_file():
        folder = find_forecast(name)
        path = folder / SEAL
        if not path.is_file():
            raise ValueError(f"forecast {folder.name} is not sealed; `shoal seal {folder.name}`")
    return read_seal(path)
