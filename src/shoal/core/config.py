"""Configuration: frozen dataclasses whose every field says what may change after a run began.

Three classes of field:
  identity   model, data, optimizer, schedule, seed. Fingerprinted; a resumed run must agree.
  numerics   transport, capacity, dtype, remat, kernel choice. A difference needs a stated reason.
  placement  mesh, paths, cadences, sinks. Free to differ, always recorded.

A *leaf* is a field whose value is not itself a config; tuples of configs are walked by index, so
`data.corpus.sources.2.limit_bytes` is a path. Errors name the path, the value and what to do.
"""

import collections.abc
import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from shoal.core.files import canonical_json

type Kind = Literal["identity", "numerics", "placement"]
KINDS: tuple[Kind, ...] = ("identity", "numerics", "placement")
_KIND = "shoal_kind"


def identity(default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is part of what the run *is*."""
    return dataclasses.field(default=default, metadata={_KIND: "identity"})


def numerics(default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that changes how numbers are computed, not what is computed."""
    return dataclasses.field(default=default, metadata={_KIND: "numerics"})


def placement(default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that says where and how often, never what."""
    return dataclasses.field(default=default, metadata={_KIND: "placement"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One value of a config: its dotted path, class and declared type."""

    path: str
    value: Any
    kind: Kind
    annotation: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One leaf that differs between two configs; an absent side is None."""

    path: str
    before: Any
    after: Any
    kind: Kind


def _is_config(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _configs(value: Any) -> tuple[Any, ...]:
    """Return the items of a non-empty tuple of configs, or nothing for any other value."""
    if not isinstance(value, tuple):
        return ()
    items = cast("tuple[Any, ...]", value)
    return items if all(_is_config(item) for item in items) else ()


def leaves(config: Any, prefix: str = "") -> Iterator[Leaf]:
    """Walk every leaf in declaration order.

    Raises:
        TypeError: a leaf field declares no class.
    """
    hints = typing.get_type_hints(cast("type[Any]", config.__class__))
    for field in dataclasses.fields(config):
        path, value = prefix + field.name, getattr(config, field.name)
        if _is_config(value):
            yield from leaves(value, path + ".")
        elif _configs(value):
            for index, item in enumerate(_configs(value)):
                yield from leaves(item, f"{path}.{index}.")
        elif _KIND not in field.metadata:
            raise TypeError(f"{type(config).__name__}.{field.name} declares no field class")
        else:
            yield Leaf(
                path=path,
                value=value,
                kind=field.metadata[_KIND],
                annotation=hints[field.name],
            )


def plain(value: Any) -> Any:
    """Return the value in JSON types: configs as objects, tuples as lists."""
    if _is_config(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): plain(item) for key, item in items}
    return value


def fingerprint(config: Any, kinds: Sequence[Kind] = ("identity",)) -> str:
    """Return the SHA-256 (64 hex digits) of the leaves of the given classes."""
    chosen = {leaf.path: plain(leaf.value) for leaf in leaves(config) if leaf.kind in kinds}
    return hashlib.sha256(canonical_json(chosen).encode()).hexdigest()


def diff(before: Any, after: Any) -> list[Difference]:
    """List the leaves that differ, in path order."""
    old = {leaf.path: leaf for leaf in leaves(before)}
    new = {leaf.path: leaf for leaf in leaves(after)}
    found: list[Difference] = []
    for path in sorted(old.keys() | new.keys()):
        a, b = old.get(path), new.get(path)
        if a is None or b is None or plain(a.value) != plain(b.value):
            kind = (a or b).kind  # pyright: ignore[reportOptionalMemberAccess]
            found.append(
                Difference(
                    path=path,
                    before=None if a is None else a.value,
                    after=None if b is None else b.value,
                    kind=kind,
                )
            )
    return found


def origin(notes: Mapping[str, str], path: str) -> str | None:
    """Return the note that covers a leaf, None if there is none.

    A key of the notes is the path of a leaf, or `group.*` where every leaf below has the same
    origin. An exact key wins over a group, a longer group over a shorter one.
    """
    if path in notes:
        return notes[path]
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        group = ".".join(parts[:end]) + ".*"
        if group in notes:
            return notes[group]
    return None


def replace(config: Any, path: str, value: Any) -> Any:
    """Return a copy in which the value at a dotted path is another one.

    Raises:
        ValueError: no such path (the nearest ones are named).
    """
    return _replace(config, path.split("."), value, config, path)


def _replace(node: Any, parts: list[str], value: Any, root: Any, path: str) -> Any:
    head, rest = parts[0], parts[1:]
    items = _configs(node)
    if items and head.isdecimal() and int(head) < len(items):
        current = items[int(head)]
    elif _is_config(node) and head in {field.name for field in dataclasses.fields(node)}:
        current = getattr(node, head)
    else:
        raise ValueError(_unknown_path(root, path))
    if not rest and (_is_config(current) or _configs(current)) and type(current) is not type(value):
        group = _configs(current)
        inner = next(leaves(group[0] if group else current)).path
        example = f"{path}.0.{inner}" if group else f"{path}.{inner}"
        raise ValueError(f"{path} is a group of settings; set one of its values, as {example}")
    changed = _replace(current, rest, value, root, path) if rest else value
    if items:
        index = int(head)
        return (*items[:index], changed, *items[index + 1 :])
    return dataclasses.replace(node, **{head: changed})


def _unknown_path(config: Any, path: str) -> str:
    names = [leaf.path for leaf in leaves(config)]
    near = difflib.get_close_matches(path, names, n=3, cutoff=0.5)
    if not near:
        last = path.rsplit(".", 1)[-1]
        tails = {name.rsplit(".", 1)[-1]: name for name in names}
        near = [
            tails[tail] for tail in difflib.get_close_matches(last, list(tails), n=3, cutoff=0.5)
        ]
    hint = f"; nearest: {', '.join(near)}" if near else "; `shoal show RECIPE` lists every path"
    return f"unknown setting {path!r}{hint}"


def override(config: Any, assignments: Sequence[str]) -> Any:
    """Apply `path=value` strings in order; each value is read as the field's declared type.

    Raises:
        ValueError: malformed assignment, unknown path or a value of the wrong type.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        if not equals or not path:
            raise ValueError(
                f"--set {assignment!r} is not PATH=VALUE; write for example --set train.seed=1"
            )
        found = {leaf.path: leaf for leaf in leaves(config)}
        leaf = found.get(path)
        if leaf is None:
            replace(config, path, None)  # a group of settings has its own message
            raise ValueError(_unknown_path(config, path))
        config = replace(config, path, _read(text.strip(), leaf.annotation, path))
    return config


def _read(text: str, annotation: Any, path: str) -> Any:
    if annotation is str:
        return text
    try:
        value = json.loads(text.replace("_", "") if text.replace("_", "").isdigit() else text)
    except json.JSONDecodeError:
        value = {"none": None, "None": None, "True": True, "False": False}.get(text, text)
    try:
        return coerce(value, annotation)
    except ValueError:
        raise ValueError(
            f"{path}={text} is not {_spell(annotation)}; give a value of that type"
        ) from None


def _spell(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_spell(arg) for arg in args)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if annotation is type(None):
        return "none"
    return names.get(annotation, f"a {annotation} in JSON")


def coerce(value: Any, annotation: Any) -> Any:
    """Return a JSON value as the declared type; never rounds, never guesses.

    Raises:
        ValueError: the value does not have that type.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _coerce_union(value, args)
    if origin is Literal and value in args and type(value) in {type(arg) for arg in args}:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return _coerce_tuple(cast("Sequence[Any]", value), args)
    if isinstance(value, Mapping):
        return _coerce_mapping(cast("Mapping[str, Any]", value), annotation, origin)
    if annotation is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if annotation is not float and isinstance(annotation, type) and type(value) is annotation:
        return value
    raise ValueError(f"{value!r} is not {_spell(annotation)}")


def _coerce_mapping(value: Mapping[str, Any], annotation: Any, origin: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        return from_plain(cast("type[Any]", annotation), value)
    if origin is collections.abc.Mapping:
        return dict(value)
    raise ValueError(f"{value!r} is not {_spell(annotation)}")


def _coerce_union(value: Any, options: tuple[Any, ...]) -> Any:
    for option in sorted(options, key=lambda o: o is float):
        if option is type(None):
            if value is None:
                return None
            continue
        try:
            return coerce(value, option)
        except ValueError:
            continue
    raise ValueError(f"{value!r} fits none of {options}")


def _coerce_tuple(value: Sequence[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(coerce(item, args[0]) for item in value)
    if len(args) != len(value):
        raise ValueError(f"{value!r} needs {len(args)} items")
    return tuple(coerce(item, arg) for item, arg in zip(value, args, strict=True))


def from_plain[C](cls: type[C], values: Mapping[str, Any]) -> C:
    """Rebuild a config from its JSON form.

    Raises:
        ValueError: an unknown or missing key, or a value of the wrong type.
    """
    hints = typing.get_type_hints(cls)
    names = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    unknown = sorted(values.keys() - names.keys())
    if unknown:
        near = difflib.get_close_matches(unknown[0], list(names), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{cls.__name__} has no setting {unknown[0]!r}{hint}")
    built = {}
    for name, field in names.items():
        if name in values:
            try:
                built[name] = coerce(values[name], hints[name])
            except ValueError as error:
                raise ValueError(f"{cls.__name__}.{name}: {error}") from None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{cls.__name__}.{name} is missing; add it or write the config anew")
    return cls(**built)
