"""`shoal show`: a recipe resolved, with what follows from it and where each number comes from."""

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from shoal.core.config import fingerprint, origin, plain
from shoal.jobs.resolve import resolve
from shoal.train.derive import derive

_PUBLISHED = resources.files("shoal") / "recipes" / "published.json"


def show(recipe: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the config, its notes and fingerprint, `derived`, and what is published of it.

    Raises:
        ValueError: no such recipe or setting, or settings that do not fit.
    """
    config = resolve(recipe, overrides)
    values = plain(config)
    return {
        "name": config.name,
        "fingerprint": fingerprint(config),
        "derived": derive(config),
        "published": json.loads(_PUBLISHED.read_text())["rungs"].get(config.name),
        "config": {key: value for key, value in values.items() if key != "notes"},
        "notes": values["notes"],
    }


def render(result: dict[str, Any]) -> str:
    """Return the result of `show` for a terminal: one line per value, with its origin.

    A ditto mark stands for the origin of the line above.
    """
    published = result["published"] or {}
    lines = [f"{result['name']}  fingerprint {result['fingerprint'][:12]}", "", "derived"]
    for key, value in result["derived"].items():
        printed = published.get(_PUBLISHED_KEYS.get(key, key))
        beside = "" if printed is None else f"published {_number(printed)}"
        lines.append(f"  {key:28} {_number(value):>26}  {beside}".rstrip())
    values = list(_flat(result["config"], ""))
    width = min(max(len(path) for path, _ in values), 44)
    lines += ["", "config"]
    above = None
    for path, value in values:
        note = origin(result["notes"], path)
        beside = "" if note is None else '"' if note == above else note
        lines.append(f"  {path:{width}} {_short(value):26}  {beside}".rstrip())
        above = note
    return "\n".join(lines)


# Names in published.json for figures that `derived` has under another one.
_PUBLISHED_KEYS = {
    "tokens": "tokens_approx",
    "active": "active_parameters",
    "published_total": "published_total_parameters",
    "flops": "",
    "flops_without_head": "",
    "flops_published": "flops",
    "flops_published_without_head": "flops_without_head",
}


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        items = enumerate(value)
    else:
        yield path, value
        return
    for key, item in items:
        yield from _flat(item, f"{path}.{key}" if path else str(key))


def _number(value: float) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
