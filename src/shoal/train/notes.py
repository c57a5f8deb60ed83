"""Whether `Config.notes` says of every number where it comes from, and of nothing else."""

from shoal.core.config import leaves, origin
from shoal.train.config import Config


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
