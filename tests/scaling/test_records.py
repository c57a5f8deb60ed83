"""A ladder's file reads back as it was, and what is wrong with one is said with its place."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaling.ladders import made
from shoal.scaling.records import FRACTIONS, HEADLINE, Ladder, read_ladder


def test_fractions_are_every_five_percent():
    assert len(FRACTIONS) == 20
    assert FRACTIONS[0] == 0.05
    assert FRACTIONS[-1] == 1.0
    assert all(math.isclose(f, 0.05 * (k + 1)) for k, f in enumerate(FRACTIONS))


def test_a_ladder_reads_back_equal(tmp_path: Path):
    ladder = made(noise=0.01)
    gappy = replace(
        ladder.runs[0],
        seconds=None,
        series={HEADLINE: (None, *ladder.runs[0].series[HEADLINE][1:])},
    )
    ladder = replace(ladder, runs=(gappy, *ladder.runs[1:]))
    path = tmp_path / "ladder.json"
    path.write_text(json.dumps(ladder.plain()))
    assert read_ladder(path) == ladder


def _set(*path: Any) -> Callable[[Any], None]:
    *way, last, value = path

    def change(tree: Any) -> None:
        for step in way:
            tree = tree[step]
        tree[last] = value

    return change


def _drop(*path: Any) -> Callable[[Any], None]:
    *way, last = path

    def change(tree: Any) -> None:
        for step in way:
            tree = tree[step]
        del tree[last]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_drop("metric"), "ladder lacks metric"),
        (_set("extra", 1), "ladder has extra"),
        (_drop("runs", 2, "seed"), r"ladder.runs\[2\] lacks seed"),
        (_set("runs", 1, "tokens", 1.5), r"ladder.runs\[1\].tokens is 1.5"),
        (_set("runs", 1, "seed", True), r"ladder.runs\[1\].seed is True"),
        (_set("runs", 0, "flops", math.nan), r"ladder.runs\[0\].flops is nan"),
        (_set("runs", 0, "flops", 0), "flops=0.0"),
        (_set("runs", 0, "seconds", -1), "seconds=-1.0"),
        (_set("runs", 0, "series", HEADLINE, 3, math.inf), r"bpb\[3\] is inf"),
        (_set("runs", 0, "series", HEADLINE, [1.0]), "has 1 values"),
        (_set("runs", 0, "series", HEADLINE, [0.0] * 20), "losses are above 0"),
        (_set("runs", 0, "health", "grad_norm", "high"), "grad_norm is 'high'"),
        (_set("runs", {}), "ladder.runs is dict"),
        (_set("target", "width", "wide"), "ladder.target.width is 'wide'"),
        (_set("conditions", None), "ladder.conditions is None"),
        (_set("metric", "paloma/macro/loss"), "no run has series 'paloma/macro/loss'"),
        (_set("runs", 1, "run", "made-0-0"), "made-0-0 stands in it twice"),
        (_set("runs", 1, "width", 49), "differ in the seed only"),
        (_set("runs", 6, "flops", 3e13), "two rungs have the same FLOPs"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change: Callable[[Any], None], said: str):
    tree = made().plain()
    change(tree)
    with pytest.raises(ValueError, match=said):
        Ladder.parse(tree)


def test_a_number_that_is_none_is_refused_in_the_file(tmp_path: Path):
    path = tmp_path / "ladder.json"
    path.write_text(json.dumps({"a": math.nan}))
    with pytest.raises(ValueError, match="NaN"):
        read_ladder(path)
