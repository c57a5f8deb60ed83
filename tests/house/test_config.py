"""The run's config keeps to the field classes."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from shoal.core.config import KINDS
from shoal.train.config import Config


def _fields(cls: type, path: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield f"{path}{field.name}", field, hints[field.name]
        for part in [hints[field.name], *typing.get_args(hints[field.name])]:
            if dataclasses.is_dataclass(part):
                yield from _fields(part, f"{path}{field.name}.")


def _holds_configs(hint: Any) -> bool:
    return any(dataclasses.is_dataclass(part) for part in [hint, *typing.get_args(hint)])


def test_every_value_of_a_run_declares_what_it_may_change():
    walked = list(_fields(Config))
    assert len(walked) > 30
    silent = [
        path
        for path, field, hint in walked
        if not _holds_configs(hint) and set(field.metadata.values()).isdisjoint(KINDS)
    ]
    assert silent == []


def test_every_config_is_frozen_and_keyword_only():
    hints = [part for _, _, h in _fields(Config) for part in [h, *typing.get_args(h)]]
    configs = [Config, *(part for part in hints if dataclasses.is_dataclass(part))]
    for config in configs:
        assert config.__dataclass_params__.frozen, config
        assert config.__dataclass_params__.kw_only, config
