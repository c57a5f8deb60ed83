"""`shoal compare`: ladders by their laws, runs by a ladder's or by plain differences."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.ladders import made
from shoal.core.files import home
from shoal.jobs.compare import compare, differences, render
from shoal.scaling.records import HEADLINE, Ladder


def written(ladder: Ladder) -> Ladder:
    """The ladder, under SHOAL_HOME."""
    folder = home() / "forecasts" / ladder.name
    folder.mkdir(parents=True)
    (folder / "ladder.json").write_text(json.dumps(ladder.plain()))
    return ladder


def test_two_ladders_in_compute_and_in_time():
    written(made("base"))
    other = written(made("other", gap=2.0 * 1.2**-0.12, pace=1.5e-11))
    found = compare("base", "other")
    assert found["compute"]["top"]["speedup"] == pytest.approx(1.2, rel=1e-4)
    assert found["time"]["speedup"]["speedup"] == pytest.approx(0.8, rel=1e-4)
    assert found["time"]["difference"] > 0
    assert found["differs"] == []
    text = render(found)
    assert "compute-equivalent speedup 1.20x" in text
    assert "speedup in time 0.80x" in text
    conditions = {"sequence_tokens": 256}
    written(replace(other, name="third", conditions=conditions))
    assert compare("base", "third")["differs"] == ["sequence_tokens"]


def test_without_wall_times_that_is_said():
    written(made("base"))
    written(made("other", pace=None))
    found = compare("base", "other")
    assert found["time"] == "the wall time of the runs is not on record"
    assert "not on record" in render(found)


def test_ladders_of_different_series_are_not_compared():
    written(made("base"))
    with pytest.raises(ValueError, match="has no series 'sources/macro/bpb'"):
        compare("base", "public-535b")


def _scored(run: Path, levels: Mapping[int, float]) -> None:
    """Evaluations as a run leaves them, with these macro means."""
    (run / "evals").mkdir(exist_ok=True)
    for step, level in levels.items():
        scores = {"loss": 2 * level, "bpb": level}
        sets = {"sources": {"domains": {"owt": scores}, "macro": scores}}
        (run / "evals" / f"{step}.json").write_text(json.dumps({"step": step, "sets": sets}))


def test_two_runs_have_plain_differences_and_a_ladder_turns_them_into_compute(
    copied: Callable[..., Path],
):
    run = copied()
    with pytest.raises(ValueError, match="no evaluation yet"):
        compare("tiny", "tiny")
    shutil.copytree(run, run.with_name("better"), symlinks=True)
    _scored(run, {6: 2.6, 12: 2.4})
    _scored(run.with_name("better"), {6: 2.6, 12: 2.35})
    found = compare("tiny", "better")
    for kind in ("tokens", "flops", "seconds"):
        assert found["runs"][kind]["difference"] == pytest.approx(-0.05)
    assert "--ladder" in found["compute"]
    derived = json.loads((run / "run.json").read_text())["derived"]
    assert found["runs"]["flops"]["at"] == pytest.approx(derived["flops_without_head"])
    assert found["runs"]["tokens"]["a"] == 2.4
    level = 2.4
    flops = derived["flops_without_head"]
    sizes = (flops / 10, flops / 3, flops, 3 * flops)
    ladder = made("law", flops=sizes, asymptote=0.5, gap=(level - 0.5) * (flops / 1e12) ** 0.12)
    written(ladder)
    found = compare("tiny", "better", "law")
    gained = ((level - 0.5) / (level - 0.55)) ** (1 / 0.12)
    assert found["compute"]["first"]["speedup"] == pytest.approx(1.0, rel=1e-3)
    assert found["compute"]["ratio"]["speedup"] == pytest.approx(gained, rel=1e-3)
    assert f"{gained:.2f}x" in render(found)
    with pytest.raises(ValueError, match="give the ladder first"):
        compare("tiny", "law")
    with pytest.raises(ValueError, match="brings its own law"):
        compare("law", "tiny", "law")
    alone = compare("law", "better")
    assert alone["compute"]["at"][0]["speedup"] == pytest.approx(gained, rel=1e-3)


def test_a_longer_run_is_met_where_both_have_been():
    short, long = made("short").runs[6], made("long", flops=(1e12, 3e12, 1e13, 3e13)).runs[7]
    found = differences(short, long, HEADLINE)
    assert found["flops"]["at"] == pytest.approx(1e13)
    # The same law in compute, read between two fractions of the longer run.
    assert found["flops"]["difference"] == pytest.approx(0.0, abs=2e-4)
    assert found["tokens"]["at"] == pytest.approx(short.tokens)
    far = replace(short, tokens=short.tokens * 1000)
    assert differences(short, far, HEADLINE)["tokens"] == "the two share no range"
    assert differences(short, replace(long, seconds=None), HEADLINE)["seconds"].startswith("not")


def test_what_is_neither_a_ladder_nor_a_run_is_said():
    with pytest.raises(ValueError, match="no run 'nothing'"):
        compare("nothing", "public-535b")
