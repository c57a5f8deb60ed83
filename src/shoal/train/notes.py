"""Where each number of a config comes from: `Config.notes` read per leaf.

A key of the notes is the path of a leaf, or `group.*` where every leaf below has the same origin.
An exact key wins over a group, a longer group over a shorter one.
"""

from collections.abc import Mapping

from shoal.core.config import leaves
from shoal.train.config import Config


def origin(notes: Mapping[str, str], path: str) -> str | None:
    """Return the note that covers a leaf, None if there is none."""
    if path in notes:
        return notes[path]
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        group = ".".join(parts[:end]) + ".*"
        if group in notes:
            return notes[group]
    return None


def _paths(config: Config) -> list[str]:
    return [leaf.path for leaf in leaves(config) if leaf.path != "notes"]


def without_origin(config: Config) -> list[str]:
    """List the leaves that no note covers."""
    return [path for path in _paths(config) if origin(config.notes, path) is None]


def unknown_notes(config: Config) -> list[str]:
    """List the notes that cover no leaf."""
    paths = _paths(config)
    groups = {".".join(path.split(".")[:end]) + ".*" for path in paths for end in range(1, 9)}
    return [key for key in config.notes if key not in paths and key not in groups]
