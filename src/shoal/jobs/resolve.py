"""From a recipe's name, or `path.py:function`, and `a.b=c` overrides to one checked config.

Recipes stand above the jobs, so they are found by name when asked for: every public function of
`shoal.recipes` that returns a `Config` and needs no argument is a recipe, and one that returns a
`CorpusConfig` or a `LadderConfig` is the recipe of a corpus or of a ladder. A dash in a name
stands for an underscore.
"""

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.core.config import override
from shoal.data.config import CorpusConfig
from shoal.scaling.ladder import LadderConfig
from shoal.train.checks import check
from shoal.train.config import Config

type Recipe = Callable[[], Any]

_PACKAGE = "shoal.recipes"
OVERRIDDEN = "given: set for this run"


def recipes(kind: type = Config) -> dict[str, Recipe]:
    """Return every shipped recipe by name: those that return this kind of config."""
    found: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__):
        module = importlib.import_module(f"{_PACKAGE}.{info.name}")
        for name, recipe in _recipes_of(module, kind).items():
            assert name not in found, f"two recipes are called {name}"
            found[name] = recipe
    return found


def resolve(recipe: str, overrides: Sequence[str] = ()) -> Config:
    """Return the config of a recipe with overrides applied and cross-checks passed.

    Raises:
        ValueError: unknown recipe, unreadable file, bad override, or settings that do not fit.
    """
    if ":" in recipe or recipe.endswith(".py"):
        config = _from_file(recipe)
    else:
        config = _named(recipe, recipes())()
    config = overridden(config, overrides)
    check(config)
    return config


def resolve_corpus(recipe: str, overrides: Sequence[str] = ()) -> CorpusConfig:
    """Return the corpus of a recipe, or of a corpus' own recipe, whose paths begin at the corpus.

    Raises:
        ValueError: as `resolve`.
    """
    corpora = recipes(CorpusConfig)
    if recipe.replace("-", "_") in corpora:
        return override(corpora[recipe.replace("-", "_")](), overrides)
    if ":" not in recipe and not recipe.endswith(".py"):
        _named(recipe, recipes() | corpora)
    return resolve(recipe, overrides).data.corpus


def resolve_ladder(recipe: str) -> LadderConfig:
    """Return the ladder of a recipe's name, or of the name of its target's recipe.

    Raises:
        ValueError: there is no such ladder.
    """
    if ":" in recipe or recipe.endswith(".py"):
        return _from_file(recipe, LadderConfig)
    known = recipes(LadderConfig)
    name = recipe.replace("-", "_")
    return _named(f"{name}_ladder" if f"{name}_ladder" in known else recipe, known)()


def overridden(config: Config, overrides: Sequence[str]) -> Config:
    """Apply `path=value` settings, and note where their values come from.

    `data.mix=@FILE` takes a whole table of weights from a file (`data.mix.read_weights`).

    Raises:
        ValueError: a malformed setting, an unknown path or a value of the wrong type.
    """
    if not overrides:
        return config
    notes = dict(config.notes)
    for assignment in overrides:
        path, _, value = (part.strip() for part in assignment.partition("="))
        if path == "data.mix" and value.startswith("@"):
            config = _mixed(config, Path(value[1:]))
            notes["data.mix.*"] = f"given: the table {value[1:]}"
        else:
            config = override(config, [assignment])
            notes[path] = OVERRIDDEN
    return dataclasses.replace(config, notes=notes)


def _mixed(config: Config, path: Path) -> Config:
    from shoal.data.mix import read_weights

    if not path.is_file():
        raise ValueError(f"data.mix=@{path}: there is no such file; give a table of weights")
    mix = dataclasses.replace(config.data.mix, rule="table", table=read_weights(path))
    return dataclasses.replace(config, data=dataclasses.replace(config.data, mix=mix))


def _named(name: str, known: dict[str, Recipe]) -> Recipe:
    if name.replace("-", "_") not in known:
        near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
        listed = ", ".join(near or sorted(known))
        raise ValueError(
            f"unknown recipe {name!r}; {'nearest' if near else 'known'}: {listed}."
            " A recipe of your own is given as path.py:function"
        )
    return known[name.replace("-", "_")]


def _from_file(reference: str, kind: type = Config) -> Any:
    file, _, name = reference.rpartition(":") if ":" in reference else (reference, "", "")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"recipe file {file} does not exist; give path.py:function")
    module = _load(path)
    found = getattr(module, name, None) if name else None
    if not callable(found):
        offered = ", ".join(f"{file}:{known}" for known in _recipes_of(module, kind)) or "none"
        what = f"has no function {name!r}" if name else "was given without a function"
        raise ValueError(
            f"recipe file {file} {what}; functions in it that return a {kind.__name__}: {offered}"
        )
    if _needs_arguments(found):
        raise ValueError(f"recipe {reference} needs arguments; give each one a default")
    config = found()
    if not isinstance(config, kind):
        raise ValueError(
            f"recipe {reference} returned {type(config).__name__}; return a {kind.__name__}"
        )
    return config


def _load(path: Path) -> ModuleType:
    name = f"shoal_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"recipe file {path} is not Python; give path.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(
            f"recipe file {path} cannot be read: {type(error).__name__}: {error}; correct the file"
        ) from error
    return module


def _recipes_of(module: ModuleType, kind: type) -> dict[str, Recipe]:
    functions = inspect.getmembers(module, inspect.isfunction)
    return {
        name: function
        for name, function in functions
        if not name.startswith("_")
        and function.__module__ == module.__name__
        and typing.get_type_hints(function).get("return") is kind
        and not _needs_arguments(function)
    }


def _needs_arguments(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in variadic for p in parameters)
