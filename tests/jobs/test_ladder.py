"""Job `ladder`: it trains what is missing, takes finished runs, and says what odd ones are."""

import json
import shutil

import pytest

from journey.process import RECIPE
from journey.tiny import tiny_ladder
from shoal.cli import main
from shoal.core.config import fingerprint
from shoal.core.files import home
from shoal.jobs import ladder as job
from shoal.jobs.resolve import resolve_ladder
from shoal.scaling.ladder import rung_config
from shoal.scaling.records import FRACTIONS, read_ladder

LADDER = RECIPE.partition(":")[0] + ":tiny_ladder"


@pytest.fixture
def quick(copied, monkeypatch):
    """A trainer that writes what a run leaves, by a law; returns the names of what it ran."""
    copied()
    ran = []

    def train(config, folder, prepared, progress):
        from shoal.core.record import Record
        from shoal.jobs.runs import begin

        done = folder / "evals" / f"{config.train.num_steps}.json"
        if done.is_file():
            return {"reused": True}, {}
        ran.append(config.name)
        with Record.open(folder) as record:
            begin(folder, config, prepared, record, change=None)
            for step in range(1, config.train.num_steps + 1):
                record.metric(step, {"grad_norm": 1.0 / step, "weight_norm/muonh": 3.0})
            record.event("finish", step=config.train.num_steps, seconds=2.0)
        (folder / "evals").mkdir(exist_ok=True)
        for step in range(
            config.eval.every_steps, config.train.num_steps + 1, config.eval.every_steps
        ):
            value = 3.0 + step**-0.5 + 0.01 * config.train.seed
            scores = {"loss": 2 * value, "bpb": value}
            sets = {"sources": {"domains": {"text": scores}, "macro": scores}}
            (folder / f"evals/{step}.json").write_text(json.dumps({"step": step, "sets": sets}))
        return {"reused": False}, {}

    monkeypatch.setattr(job, "trained", train)
    return ran


NAMES = [
    "tiny-ladder-d8-seed0",
    "tiny-ladder-d8-seed1",
    "tiny-ladder-d16-seed0",
    "tiny-ladder-d24-seed0",
]


def test_a_ladder_is_trained_once_and_its_record_is_whole(quick):
    found = job.ladder(LADDER)
    assert quick == NAMES
    assert not found["reused"]
    record = read_ladder(home() / "forecasts/tiny-ladder/ladder.json")
    assert [run.run for run in record.runs] == NAMES
    assert [run.seed for run in record.runs] == [0, 1, 0, 0]
    configs = {
        name: rung_config(tiny_ladder(), width, seed)
        for name, width, seed in zip(NAMES, (8, 8, 16, 24), (0, 1, 0, 0), strict=True)
    }
    for run in record.runs:
        assert run.fingerprint == fingerprint(configs[run.run])
        assert run.tokens == configs[run.run].train.tokens
        assert run.seconds == 2.0
        steps = configs[run.run].train.num_steps
        expected = [3.0 + (g * steps) ** -0.5 + 0.01 * run.seed for g in FRACTIONS]
        assert run.series["sources/macro/bpb"] == pytest.approx(expected)
        assert run.health["weight_norm/muonh"] == (3.0,) * 20
    assert record.target.fingerprint == fingerprint(tiny_ladder().target)
    said = record.conditions
    assert said["sequence_tokens"] == 32
    assert all(one["bytes"] <= 1_000 for one in said["sets"].values())
    again = job.ladder(LADDER)
    assert quick == NAMES
    assert again["reused"]


def test_a_killed_ladder_goes_on_with_the_rung_that_is_missing(quick):
    job.ladder(LADDER)
    shutil.rmtree(home() / "runs/tiny-ladder-d16-seed0")
    del quick[:]
    job.ladder(LADDER)
    assert quick == ["tiny-ladder-d16-seed0"]


def test_finished_runs_from_elsewhere_take_the_place_of_rungs(quick, tmp_path):
    job.ladder(LADDER)
    kept = tmp_path / "kept/d24"
    shutil.copytree(home() / "runs/tiny-ladder-d24-seed0", kept)
    shutil.rmtree(home() / "runs")
    del quick[:]
    found = job.ladder(LADDER, runs=[str(kept)])
    assert quick == NAMES[:3]
    assert found["runs"][-1] == "d24"
    (kept / "evals/60.json").unlink()
    with pytest.raises(ValueError, match="no evaluation at its last step 60"):
        job.ladder(LADDER, runs=[str(kept)])


def test_a_run_that_is_no_rung_is_refused_and_says_what_differs(quick):
    job.ladder(LADDER)
    with pytest.raises(ValueError, match=r"no rung of ladder tiny-ladder.*num_experts|width is 32"):
        job.ladder(LADDER, runs=["tiny"])
    with pytest.raises(ValueError, match=r"optimizer.muon_lr is 0.03, not 0.05"):
        job.ladder(LADDER, ["optimizer.muon_lr=0.05"], runs=["tiny-ladder-d8-seed0"])


def test_an_override_holds_for_every_rung_and_the_target(quick):
    found = job.ladder(LADDER, ["optimizer.muon_lr=0.01"], dry_run=True)
    assert {row["muon_lr"] for row in found["rows"]} == {0.01}
    assert not quick


def test_the_plan_is_printed_without_training(capsys):
    assert main(["ladder", "flagship", "--dry-run", "--rungs", "768,2048"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["d768", "d2048", "flagship"]
    assert "2.65e+19" in lines[1]
    assert main(["ladder", "flagship", "--dry-run", "--rungs", "700"]) == 2
    assert "no rung of width 700" in capsys.readouterr().err


def test_a_ladder_is_found_by_its_name_by_its_targets_and_in_a_file(text, monkeypatch):
    monkeypatch.setenv("TINY_TEXT", str(text))
    assert resolve_ladder("cpu").name == resolve_ladder("cpu-ladder").name == "cpu-ladder"
    assert resolve_ladder(LADDER).widths == (8, 16, 24)
    with pytest.raises(ValueError, match="unknown recipe 'cpo'"):
        resolve_ladder("cpo")
