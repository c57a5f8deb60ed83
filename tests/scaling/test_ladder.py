"""Ladders: the public rungs to the printed digit; rungs that differ from the target in size."""

import dataclasses
import json
from importlib import resources

import pytest

from shoal.core.config import diff
from shoal.recipes.cpu_ladder import cpu_ladder
from shoal.recipes.flagship import flagship_ladder
from shoal.scaling.ladder import (
    LadderConfig,
    health_of,
    plan,
    rung_config,
    series_of,
)
from shoal.scaling.records import FRACTIONS

PUBLISHED = json.loads((resources.files("shoal") / "recipes/published.json").read_text())["rungs"]


def test_the_plan_prints_every_published_row():
    rows = plan(flagship_ladder())
    assert [row["name"] for row in rows] == ["d768", "d1024", "d1536", "d2048", "flagship"]
    for row in rows:
        said = PUBLISHED[row["name"]]
        assert row["batch_sequences"] == said["batch_sequences"]
        assert row["steps"] == said["steps"]
        assert row["active"] == said["active_parameters"]
        assert row["total"] == said["published_total_parameters"]
        assert row["layers"] == said["num_layers"]
        assert row["flops"] == pytest.approx(said["flops"], rel=0.02)
        assert f"{row['flops_without_head']:.4g}" == f"{said['flops_without_head']:.4g}"
        assert f"{row['muon_lr']:.3g}" == f"{said['muon_lr']:.3g}"
        assert f"{row['adam_lr']:.3g}" == f"{said['adam_lr']:.3g}"
        assert f"{row['eps']:.3g}" == f"{said['eps']:.3g}"
        assert row["beta2"] == pytest.approx(said["beta2"], abs=5e-5)
    small = sum(row["share"] for row in rows[:-1])
    assert small == pytest.approx(1.13e22 / 2.7e24, rel=0.02)


def test_the_cpu_ladder_spans_what_it_says():
    rows = plan(cpu_ladder())
    compute = [row["flops_without_head"] for row in rows]
    assert compute == sorted(compute)
    assert compute[-2] / compute[0] > 30
    assert compute[-1] / compute[-2] > 8
    for row in rows:
        assert 19.5 < row["tokens"] / row["active"] < 20.5
        assert row["steps"] % 20 == 0
    assert [row["runs"] for row in rows] == [3, 3, 1, 1, 1]


def test_a_rung_has_the_targets_mixture_evaluation_and_epochs():
    ladder = cpu_ladder()
    for width in ladder.widths:
        config = rung_config(ladder, width, seed=2)
        assert config.data.mix == ladder.target.data.mix
        assert config.data.simulated_tokens == ladder.target.train.tokens
        assert (config.train.seed, config.data.seed) == (2, 2)
        assert config.eval.every_steps * 20 == config.train.num_steps
        assert not diff(
            config.eval,
            dataclasses.replace(ladder.target.eval, every_steps=config.eval.every_steps),
        )
        assert config.name == f"cpu-ladder-d{width}-seed2"


def test_a_rung_that_is_scored_otherwise_is_refused():
    ladder = cpu_ladder()

    def odd(width):
        config = ladder.rung(width)
        return dataclasses.replace(config, eval=dataclasses.replace(config.eval, limit_bytes=10))

    with pytest.raises(ValueError, match=r"eval.limit_bytes is 10 on the rung of width 48"):
        rung_config(dataclasses.replace(ladder, rung=odd), 48)


def test_widths_out_of_order_or_no_smaller_than_the_target_are_refused():
    ladder = cpu_ladder()
    for widths, says in (((48, 32), "in order"), ((), "in order"), ((48, 128), "no smaller")):
        with pytest.raises(ValueError, match=says):
            LadderConfig(name="odd", rung=ladder.rung, widths=widths, target=ladder.target)


def evaluation(step, value):
    scores = {"loss": 2 * value, "bpb": value}
    return {"step": step, "sets": {"sources": {"domains": {"text": scores}, "macro": scores}}}


def test_a_series_holds_each_evaluation_at_its_share_of_the_run():
    found = series_of([evaluation(10 * k, 5.0 - 0.1 * k) for k in range(20, 0, -1)], 200)
    assert set(found) == {
        f"sources/{domain}/{measure}" for domain in ("text", "macro") for measure in ("loss", "bpb")
    }
    assert found["sources/text/bpb"] == pytest.approx([5.0 - 0.1 * k for k in range(1, 21)])
    assert found["sources/macro/loss"] == pytest.approx([10.0 - 0.2 * k for k in range(1, 21)])


def test_between_evaluations_a_series_is_a_line_and_outside_of_them_nothing():
    found = series_of([evaluation(50, 4.0), evaluation(150, 2.0)], 200)["sources/text/bpb"]
    known = dict(zip(FRACTIONS, found, strict=True))
    assert known[0.25] == 4.0
    assert known[0.5] == pytest.approx(3.0)
    assert known[0.75] == 2.0
    assert known[0.2] is None
    assert known[0.8] is None


def test_health_is_the_median_of_each_twentieth():
    lines = [
        {"step": step, "grad_norm": float(step), "router/entropy": [1.0, 3.0], "loss": 9.0}
        | ({"weight_norm/muonh": 7.0} if step % 5 == 0 else {})
        for step in range(1, 201)
    ]
    found = health_of(lines, 200)
    assert set(found) == {"grad_norm", "router/entropy", "weight_norm/muonh"}
    assert found["grad_norm"] == tuple(float(10 * k + 6) for k in range(20))
    assert found["router/entropy"] == (2.0,) * 20
    stopped = health_of(lines[:50], 200)
    assert stopped["grad_norm"][5:] == (None,) * 15
