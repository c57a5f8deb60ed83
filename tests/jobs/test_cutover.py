"""Replays of a run under other settings: the verdict, the comparison, and what is refused."""

import json

import numpy as np
import pytest

from shoal.cli import main
from shoal.core.record import read_events, read_metrics, verify_chain
from shoal.jobs.cutover import cutover, render
from shoal.jobs.probe import probe
from shoal.jobs.probe import render as render_probe
from shoal.train.cutover import Limits

POOLED = ["moe.transport=pooled", "moe.capacity_sender=9", "moe.capacity_receiver=9"]


def everything(run):
    """Bytes of what a replay must not change."""
    names = ("run.json", "metrics.jsonl", "checkpoints/8/manifest.json")
    return {name: (run / name).read_bytes() for name in names}


def test_a_replay_repeats_the_runs_own_losses_and_a_harmless_change_goes(copied):
    """At any speed: this machine has other work."""
    run = copied(4, 8)
    before = everything(run)
    found = cutover("tiny", POOLED, steps=4, step=8, limits=Limits(speed=1.0))
    recorded = [line["loss"] for line in read_metrics(run)[8:12]]
    np.testing.assert_allclose(found["losses"]["old"], recorded, rtol=1e-6)
    np.testing.assert_allclose(found["losses"]["new"], recorded, rtol=1e-5)
    assert found["go"]
    assert found["dropped"]["all"] == {"old": 0.0, "new": 0.0}
    assert everything(run) == before
    verdict = json.loads(next((run / "cutovers").glob("8-*.json")).read_text())
    assert verdict["loss"] == found["loss"]
    event = read_events(run)[-1]
    assert (event["kind"], event["go"], event["step"], event["steps"]) == ("cutover", True, 8, 4)
    assert {d["path"] for d in event["differences"]} == {p.partition("=")[0] for p in POOLED}
    assert verify_chain(run) == []
    told = render(found)
    assert told.startswith("GO: ")
    assert "moe.transport local -> pooled" in told


def test_a_change_that_drops_half_is_no_go_says_why_and_ends_with_one(copied, capsys):
    copied(8)
    small = ("moe.transport=pooled", "moe.capacity_receiver=0.5", "moe.waves=1")
    words = [word for change in small for word in ("--set", change)]
    assert main(["cutover", "tiny", *words, "--steps", "2"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("NO-GO")
    assert main(["cutover", "tiny", *words, "--steps", "2", "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["go"]
    assert "of the assignments are dropped, 0.000% before" in said


def test_gradients_of_the_same_numbers_are_parallel_and_of_the_dropping_ones_are_not(copied):
    run = copied(8)
    before = everything(run)
    same = probe("tiny", POOLED, steps=2)
    for row in [*same["groups"].values(), *same["weights"].values()]:
        assert row["ratio"] == pytest.approx(1.0, rel=1e-4)
        assert row["cosine"] == pytest.approx(1.0, abs=1e-5)
    assert [batch["step"] for batch in same["batches"]] == [8, 9]
    assert everything(run) == before
    assert not (run / "cutovers").exists()
    other = probe("tiny", ["moe.transport=pooled", "moe.capacity_receiver=0.3", "moe.waves=1"])
    worst = min(row["cosine"] for row in other["weights"].values())
    assert worst < 0.99
    assert "muonh" in render_probe(other)


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        (["optimizer.muon_lr=0.1"], {}, "optimizer.muon_lr cannot change within run tiny"),
        ([], {}, "nothing would change; say what with --set"),
        (["moe.transport=pooled"], {"steps": 9}, "the run ends at step 12; use 1 to 4"),
        (["moe.transport=pooled"], {"steps": 1}, "a spread needs 2 or more"),
        (["moe.transport=pooled"], {"step": 7}, "no checkpoint at step 7"),
        (["moe.transport=teleport"], {}, "moe.transport"),
        (["mesh.expert=5"], {}, "needs a multiple of 5 devices, there are 1"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_words(copied, changes, arguments, said):
    copied(8)
    with pytest.raises(ValueError, match=said):
        cutover("tiny", changes, **{"steps": 2, **arguments})
