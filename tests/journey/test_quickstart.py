"""The main job whole, on somebody's own text, in processes of its own: minutes."""

import json
import random
import re
from pathlib import Path

import pytest

from journey.process import RECIPE, at_step, environment, killed_when, last_step, result_of, shoal
from journey.tiny import write_text
from shoal.core.record import read_events, read_metrics, verify_chain, verify_link
from shoal.report.page import _SECTIONS
from shoal.train import checkpoint

pytestmark = pytest.mark.slow

STEPS = 40
SETTINGS = ("--set", f"train.num_steps={STEPS}", "--set", "train.checkpoint_every_steps=8",
            "--set", "eval.every_steps=20")  # fmt: skip


def run_in(home: Path) -> Path:
    found = list((home / "runs").glob("*")) if (home / "runs").is_dir() else []
    assert len(found) <= 1
    return found[0] if found else home / "runs" / "none"


def moments(home: Path) -> dict[str, object]:
    """Name -> whether that moment of the job is there."""
    return {
        "the corpus is half made": lambda: any((home / "corpora").glob("*-documents@*")),
        "training has begun": lambda: last_step(run_in(home)) >= 3,
        "a checkpoint is being written": lambda: any(
            (run_in(home) / "checkpoints").glob(".*.tmp-*/state")
        ),
        "training goes on": lambda: last_step(run_in(home)) >= 14,
        "the first scores are there": lambda: any((run_in(home) / "samples").glob("*.json")),
        "training has ended": lambda: any(
            (run_in(home) / "checkpoints").glob(f"{STEPS}/manifest.json")
        ),
    }


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "notes", num_files=60, file_bytes=5_000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """(home, result) of the job that nothing disturbed."""
    home = tmp_path_factory.mktemp("whole")
    words = ("quickstart", "--text", text, "--json", *SETTINGS)
    return home, result_of(shoal(*words, seen=environment(home, quick=False)))


def digest(home: Path, seen: dict[str, str]) -> str:
    found = result_of(shoal("hash", run_in(home), "--json", seen=seen))
    assert found["step"] == STEPS
    return found["digest"]


def test_the_job_ends_with_a_model_that_is_scored_reported_and_on_record(whole, text):
    home, result = whole
    run = run_in(home)
    assert Path(result["run"]) == run
    assert result["reused"] is False
    assert 0 < result["macro_bpb"] < 8
    assert 0 < result["xz_bpb"] < 8
    assert 0 < result["first_loss_s"] < result["total_s"]
    assert result["tokens_per_s"] > 0
    assert 0.1 < result["peak_rss_gb"] < 4

    losses = [line["loss"] for line in read_metrics(run)]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 1
    assert all(line["applied"] == 1.0 for line in read_metrics(run))
    assert all(line["dropped/fraction"] == 0 for line in read_metrics(run))
    assert {path.name for path in (run / "evals").iterdir()} == {"20.json", f"{STEPS}.json"}
    assert verify_chain(run) == []
    for step in checkpoint.steps(run):
        manifest = checkpoint.manifest_of(run, step)
        assert verify_link(run, manifest["link"]) == []
        assert manifest["digest"] in {e.get("digest") for e in read_events(run)}

    page = Path(result["report"]).read_text()
    for name, title, _ in _SECTIONS:
        assert f'id="{name}"' in page
        assert f"<h2>{title}</h2>" in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page), "opens offline"
    assert "own text" in page
    drawn = json.loads((run / f"samples/{STEPS}.json").read_text())
    assert len(drawn) == 4


def test_the_same_again_is_reused_whole(whole, text):
    home, result = whole
    run = run_in(home)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.suffix != ".html"}
    again = result_of(
        shoal(
            "quickstart", "--text", text, "--json", *SETTINGS, seen=environment(home, quick=False)
        )
    )
    assert again["reused"] is True
    for key in ("run", "report", "macro_bpb", "xz_bpb", "first_loss_s", "tokens_per_s"):
        assert again[key] == result[key], key
    assert again["total_s"] < result["total_s"] / 3
    after_ = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.suffix != ".html"}
    assert after_ == before


def test_killed_in_every_part_it_ends_with_the_same_bits(whole, text, tmp_path):
    home, result = whole
    killed = tmp_path / "killed"
    seen = environment(killed, quick=False)
    words = ("quickstart", "--text", text, "--json", *SETTINGS)
    for name, moment in moments(killed).items():
        assert killed_when(moment, *words, seen=seen, log=tmp_path / "log"), name
    run = run_in(killed)
    steps = [line["step"] for line in read_metrics(run)]
    assert steps == list(range(1, STEPS + 1))
    found = result_of(shoal(*words, seen=seen))
    assert found["reused"] is False
    assert "finish" in {event["kind"] for event in read_events(run)}
    assert digest(killed, seen) == digest(home, environment(home, quick=False))
    assert found["macro_bpb"] == result["macro_bpb"]
    for step in (20, STEPS):
        for kind in ("evals", "samples"):
            one, other = (run_in(h) / kind / f"{step}.json" for h in (home, killed))
            assert one.read_bytes() == other.read_bytes()
    straight = read_metrics(run_in(home))
    assert [line["loss"] for line in read_metrics(run)] == [line["loss"] for line in straight]
    assert max(line["attempt"] for line in read_metrics(run)) >= 4
    assert verify_chain(run) == []
    assert [p.name for p in (run / "checkpoints").iterdir() if p.name.startswith(".")] == []
    assert result_of(shoal(*words, seen=seen))["reused"] is True


def test_text_of_which_nothing_can_be_held_out_is_trained_on_and_reported(tmp_path):
    """Every document shares a long run of words with every other."""
    folder = tmp_path / "again"
    folder.mkdir()
    body = " ".join(f"word{n}" for n in range(400))
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"Letter {number}. {body}.\n")
    seen = environment(tmp_path / "home", quick=False)
    words = ("quickstart", "--text", folder, "--json", *SETTINGS)
    done = shoal(*words, seen=seen)
    found = result_of(done)
    assert (found["macro_bpb"], found["xz_bpb"], found["sets"]) == (None, None, {})
    assert "nothing is held out of this corpus, so nothing is scored" in done.stderr
    assert Path(found["report"]).is_file()
    assert result_of(shoal(*words, seen=seen))["reused"] is True


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    """A small model, saved often: kills fall into steps and into saves."""
    text = write_text(tmp_path / "text")
    words = ("train", RECIPE, "--json", "--set", "train.num_steps=150",
             "--set", "train.checkpoint_every_steps=3")  # fmt: skip
    drawn = random.Random(0)
    kills = {"straight": [], "killed": sorted(drawn.sample(range(1, 145), 6))}
    digests = {}
    for name, at in kills.items():
        seen, run = environment(tmp_path / name, text=text), tmp_path / name / "runs/tiny"
        for step in at:
            moment = at_step(run, step, drawn.uniform(0.0, 0.2))
            assert killed_when(moment, *words, seen=seen), step
        assert result_of(shoal(*words, seen=seen))["step"] == 150
        digests[name] = checkpoint.manifest_of(run, 150)["digest"]
        assert verify_chain(run) == []
        assert [line["step"] for line in read_metrics(run)] == list(range(1, 151))
    assert digests["killed"] == digests["straight"]
    assert read_metrics(run)[-1]["attempt"] == 7
