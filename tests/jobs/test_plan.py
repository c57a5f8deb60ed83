"""`shoal plan` against what the public record prints."""

import json
import subprocess
import sys
from importlib import resources

import pytest

from shoal.jobs.plan import plan, render

PUBLISHED = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())


@pytest.fixture(scope="module")
def flagship():
    return plan("flagship", chips=704, chip="gb200", step_s=16.07)


def test_the_flagship_is_laid_out_as_published(flagship):
    layout = flagship["layout"]
    assert [layout[axis] for axis in ("replica", "data", "expert", "context")] == [11, 1, 64, 1]
    assert flagship["tokens_per_chip"] == 65_536
    assert flagship["pooled"]["assignments_per_shard"] == 524_288
    assert flagship["pooled"]["sender_rows_per_wave"] == 3_141
    assert flagship["pooled"]["receiver_rows_per_expert"] == 33_497
    assert flagship["pooled"]["tokens_per_expert_of_replica"] == 87_381


def test_the_first_sender_capacity_is_the_published_one_too():
    found = plan("flagship", ["moe.capacity_sender=1.10"], chips=704)
    assert found["pooled"]["sender_rows_per_wave"] == 3_004


def test_the_worked_example_has_its_logged_mfu(flagship):
    assert 100 * flagship["mfu"] == pytest.approx(24.43, abs=0.005)
    assert flagship["mfu_causal"] < flagship["mfu"] < flagship["mfu_bound"]
    assert flagship["step_s_bound"] < 16.07
    assert flagship["days"] == pytest.approx(390_251 * 16.07 / 86_400)


def test_the_step_of_an_mfu_is_the_way_back(flagship):
    back = plan("flagship", chips=704, mfu=flagship["mfu"])
    assert back["step_s"] == pytest.approx(16.07)
    assert back["days"] == pytest.approx(flagship["days"])
    assert plan("flagship", chips=704, mfu="24.5%")["mfu"] == pytest.approx(0.245)


def test_flops_of_the_run_are_the_published_ones(flagship):
    whole = flagship["flops"]["step"] * flagship["steps"]
    assert float(f"{whole:.1e}") == PUBLISHED["rungs"]["flagship"]["flops"]
    assert sum(flagship["flops"]["parts"].values()) == pytest.approx(flagship["flops"]["step"])


def test_without_a_speed_there_is_a_bound_and_no_date():
    found = plan("flagship", chips=704)
    assert {"mfu", "step_s", "days"}.isdisjoint(found)
    assert {"bytes_per_chip", "step_s_bound", "mfu_bound", "pooled"} <= set(found)


def test_a_plan_is_plain_json_and_a_readable_page():
    found = plan(
        "flagship",
        ["train.memory=optimizer_on_host"],
        chips=704,
        step_s=16.07,
        search=True,
        deadline="2026-11-05",
        start="2026-09-20",
        lost="25%",
        at_step=150_000,
    )
    assert json.loads(json.dumps(found)) == found
    page = render(found)
    for said in ("3,141", "33,497", "87,381", "24.43%", "8 of 11", "layouts fit", "assumed"):
        assert said in page
    assert "warning" not in page
    assert max(len(line) for line in page.splitlines()) < 300
    ranked = found["search"]["ranked"]
    again = plan("flagship", ranked[0]["set"], chips=704)
    assert again["step_s_bound"] == ranked[0]["step_s_bound"]
    assert found["search"]["rank_of_given"] == 1


def test_a_lost_quarter_shortens_the_horizon():
    found = plan(
        "flagship",
        chips=704,
        step_s=16.07,
        deadline="2026-11-05",
        start="2026-09-20",
        lost=0.25,
        at_step=150_000,
    )["horizon"]
    assert found["steps"] < 390_251
    assert found["fraction_to"] == 0.05
    assert found["muon_lr"][1] == pytest.approx(0.05 * 0.00329047, rel=1e-4)
    assert found["whole_replicas_left"] == 8


def test_the_mesh_can_be_given():
    found = plan("flagship", chips=704, mesh=["expert=32", "data=2"])
    assert found["layout"]["replica"] == 11
    assert found["layout"]["expert"] == 32


def test_a_laptop_plans_its_own_recipe():
    found = plan("quickstart", chips=1, chip="h100")
    assert found["fits"]
    assert found["sent"] == []
    assert "on 1 h100" in render(found)


def test_what_does_not_fit_is_said():
    found = plan("flagship", chips=64, chip="h100", step_s=1.0)
    assert not found["fits"]
    assert any("needs" in said for said in found["warnings"])
    assert any("below the bound" in said for said in found["warnings"])
    assert "DOES NOT FIT" in render(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chips": 0}, "chips=0 must be at least 1"),
        ({"chips": 100}, "needs a multiple of 64 devices, there are 100"),
        ({"chips": 704, "chip": "gb300x"}, "chip='gb300x' is unknown"),
        ({"chips": 704, "mesh": ["expert=5"]}, "'expert'=5; use"),
        ({"chips": 640, "mesh": ["expert=128"]}, "11264 is not divisible by the 640 shards"),
        ({"chips": 704, "mesh": ["replica=2"]}, "has 128 devices, there are 704"),
        ({"chips": 704, "mesh": ["rack=2"]}, "mesh.rack"),
        ({"chips": 704, "step_s": 16.0, "mfu": 0.2}, "say the same thing; give one"),
        ({"chips": 704, "step_s": -1.0}, "step_s=-1.0 must be a number above 0"),
        ({"chips": 704, "mfu": 24.5}, "mfu=24.5 is above 1; write"),
        ({"chips": 704, "mfu": "much"}, "mfu='much' is no share"),
        ({"chips": 704, "price": 0.0}, "price=0.0 must be a number above 0"),
        ({"chips": 704, "failures_per_chip_year": -2.0}, "failures_per_chip_year=-2.0 must be"),
        ({"chips": 704, "deadline": "2030-01-01"}, "deadline needs a speed"),
        ({"chips": 704, "step_s": 16.0, "deadline": "2020-01-01"}, "is not after the start"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_to_do(given, message):
    with pytest.raises(ValueError, match=message):
        plan("flagship", **given)


def test_the_planner_loads_no_jax_before_it_plans():
    code = (
        "import importlib, pkgutil, sys, shoal.plan, shoal.jobs.plan;"
        "[importlib.import_module(m.name) for m in"
        " pkgutil.iter_modules(shoal.plan.__path__, 'shoal.plan.')];"
        "assert 'jax' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
