"""Central finite differences over nested dicts and lists of float64 arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

Path = tuple[str | int, ...]


def move(x: Any, direction: Any, scale: float) -> Any:
    """x + scale * direction; a missing branch or None of the direction means zero."""
    if isinstance(x, dict):
        return {
            key: move(value, None if direction is None else direction.get(key), scale)
            for key, value in x.items()
        }
    if isinstance(x, list):
        return [
            move(value, None if direction is None else direction[i], scale)
            for i, value in enumerate(x)
        ]
    return x if direction is None else x + scale * direction


def finite_difference(
    f: Callable[[Any], float], x: Any, direction: Any, step: float = 1e-5
) -> float:
    """The derivative of f at x along the direction, to about 1e-10 of f's scale."""
    ahead, behind = f(move(x, direction, step)), f(move(x, direction, -step))
    return (ahead - behind) / (2.0 * step)


def leaf(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def paths(tree: Any, prefix: Path = ()) -> list[Path]:
    if isinstance(tree, dict):
        return [p for key, value in tree.items() for p in paths(value, (*prefix, key))]
    if isinstance(tree, list):
        return [p for i, value in enumerate(tree) for p in paths(value, (*prefix, i))]
    return [prefix]


def replace(tree: Any, path: Path, value: Any) -> Any:
    """A copy of the tree with one leaf or branch replaced."""
    if not path:
        return value
    copied: Any = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[path[0]] = replace(tree[path[0]], path[1:], value)
    return copied


def leaf_difference(
    f: Callable[[Any], float], tree: Any, path: Path, direction: Any, step: float = 1e-5
) -> float:
    """The derivative of f along a direction of one leaf."""
    value = leaf(tree, path)
    return finite_difference(lambda moved: f(replace(tree, path, moved)), value, direction, step)


def entry_differences(
    f: Callable[[Any], float], x: np.ndarray, entries: list[tuple[int, ...]], step: float = 1e-5
) -> list[float]:
    """The derivative of f with respect to each named entry of one array."""
    found = []
    for entry in entries:
        direction = np.zeros_like(x)
        direction[entry] = 1.0
        found.append(finite_difference(f, x, direction, step))
    return found
