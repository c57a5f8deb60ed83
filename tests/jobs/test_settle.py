"""`shoal settle` and `shoal forecast --list`: what is refused, what is said, what is marked."""

import json
import signal
from dataclasses import replace

import pytest

from jobs import sealing
from jobs.sealing import CONFIG, STEPS, ladder_of, rewritten, run_of, written
from journey.process import RECIPE, environment, shoal
from journey.tiny import tiny
from scaling.ladders import made
from shoal.cli import main
from shoal.core.config import override
from shoal.core.files import home
from shoal.core.record import Record, read_events, verify_chain
from shoal.jobs import outcomes as listed
from shoal.jobs.seal import seal
from shoal.jobs.sealed import find_seal
from shoal.jobs.settle import render, settle
from shoal.scaling.records import HEADLINE
from shoal.scaling.seal import flagged

FLAGGED = {"sources/leaked": {"looked_for": 10, "half": 5, "share": 0.4}}


@pytest.fixture
def sealed():
    """A ladder's forecast, sealed."""
    return sealing.sealed()


def read(name="small"):
    return json.loads((home() / "forecasts" / name / "settlement.json").read_text())


# --- the score ------------------------------------------------------------------------------------


def test_a_run_that_began_with_the_seal_settles_it(sealed, capsys):
    run_of(seal=sealed)
    assert main(["settle", "target"]) == 0
    said = capsys.readouterr().out
    found = read()
    head, end = found["headline"], sealed.forecast.headline.central[-1]
    law = 0.6 + 2.0 * (sealed.target.flops / 1e12) ** -0.12
    assert head["seen"] == pytest.approx(law)
    assert head["error"] == pytest.approx(law - end, abs=1e-6)
    assert head["inside_90"]
    assert not found["miss"]
    assert found["finished"]
    assert found["fraction"] == 1.0
    assert found["retroactive"] is None
    assert found["sealed"] == {"sha256": sealed.sha256, "date": sealed.date}
    assert found["record"] == read_events(home() / "runs/target")[-1]["link"]["link"]
    assert found["series"].keys() == {HEADLINE, "sources/fine/bpb", "sources/leaked/bpb"}
    assert found["premises"] == []
    assert f"sealed {sealed.date}, first in the run's record" in said
    assert "no miss" in said
    assert "no broken premise is on record" in said
    assert "RETROACTIVE" not in said
    assert settle("target", "small", write=False)["headline"] == head


def test_a_miss_is_called_one(sealed):
    run_of(seal=sealed, shift=0.2)
    found = settle("target")
    assert found["miss"]
    assert not found["headline"]["inside_90"]
    text = render(found)
    assert "outside 90 %" in text
    assert "  a miss\n" in text
    assert "0 of 2 other series are inside 90 %" in text


def test_an_unfinished_run_is_settled_so_far_and_that_is_said(sealed):
    run_of(seal=sealed, upto=11)
    found = settle("target")
    assert (found["finished"], found["fraction"]) == (False, 0.55)
    assert "at 55% of it, not its end" in render(found)
    assert "no miss so far" in render(found)


def test_a_finished_run_whose_end_is_not_evaluated_is_not_settled_whole(sealed):
    folder = run_of(seal=sealed, upto=19)
    with Record.open(folder) as record:
        record.event("finish", step=STEPS)
    found = settle("target")
    assert (found["finished"], found["fraction"]) == (False, 0.95)
    assert any("its end not evaluated" in note for note in found["notes"])


def test_a_run_without_any_evaluation_is_not_settled(sealed):
    run_of(seal=sealed, upto=0)
    with pytest.raises(ValueError, match="no value of 'sources/macro/bpb' at any fraction"):
        settle("target")


# --- contaminated domains -------------------------------------------------------------------------


def test_with_a_sealed_table_it_is_settled_without_the_flagged_domains_too(monkeypatch):
    table = flagged("t@1", FLAGGED)
    monkeypatch.setattr("shoal.jobs.seal.contamination_of", lambda *_: table)
    written(ladder_of())
    made = find_seal(seal("small")["seal"])
    run_of(seal=made, leak=0.4)
    found = settle("target")
    clean = found["clean"]
    assert found["headline"]["error"] == pytest.approx(-0.2, abs=0.05)
    assert not found["headline"]["inside_90"]
    assert clean["flagged"] == ["sources/leaked"]
    assert (clean["table"], clean["whence"]) == ("t@1", "the sealed table")
    assert clean["scores"].keys() == {HEADLINE}
    score = clean["scores"][HEADLINE]
    assert score["seen"] == pytest.approx(found["series"]["sources/fine/bpb"]["seen"])
    assert score["central"] == pytest.approx(found["series"]["sources/fine/bpb"]["central"])
    assert score["inside_90"]
    assert "without sources/leaked (the sealed table)" in render(found)
    with pytest.raises(ValueError, match="a contamination table is sealed already: t@1"):
        settle("target", contamination="other@1")


def test_a_domain_named_afterwards_is_said_to_be(sealed, capsys):
    run_of(seal=sealed, leak=0.4)
    assert main(["settle", "target", "--without", "sources/leaked"]) == 0
    assert "without sources/leaked (named or found after the seal)" in capsys.readouterr().out
    assert settle("target")["clean"] is None
    with pytest.raises(ValueError, match="'sources/leak' is no domain of this run"):
        settle("target", extra=["sources/leak"])
    (home() / "forecasts/small/ladder.json").write_text(json.dumps(ladder_of(noise=0.01).plain()))
    with pytest.raises(ValueError, match=r"ladder.json is not the ladder that was sealed"):
        settle("target", extra=["sources/leaked"])
    (home() / "forecasts/small/ladder.json").unlink()
    found = settle("target", extra=["sources/leaked"])
    assert found["clean"]["scores"] == {}
    assert any("ladder.json is missing" in note for note in found["notes"])


# --- premises -------------------------------------------------------------------------------------


def test_premises_that_broke_on_the_way_are_printed(sealed):
    moved = {"path": "moe.transport", "before": "local", "after": "ragged", "kind": "numerics"}
    folder = run_of(seal=sealed, upto=11, events=[("checkpoint", {"step": 500})])
    with Record.open(folder) as record:
        record.event("change", why="faster", differences=[moved])
        record.event("resume", step=500)
        record.event("nonfinite", step=509, loss="nan", in_a_row=1)
    found = settle("target")
    assert [(one["what"], one["step"]) for one in found["premises"]] == [
        ("transport", 500),
        ("steps not applied", 509),
    ]
    text = render(found)
    assert "transport at step 500: moe.transport was 'local', is 'ragged' (faster)" in text
    assert "no broken premise" not in text


def test_a_condition_that_did_not_hold_is_a_broken_premise():
    ladder = ladder_of()
    sets = {"sources/fine": {"bytes": 8, "documents": None}}
    conditions = {"sequence_tokens": 64, "corpus": f"corpus@{'b' * 12}", "sets": sets}
    written(replace(ladder, conditions=conditions))
    run_of(seal=find_seal(seal("small")["seal"]))
    assert [one["says"] for one in settle("target")["premises"]] == [
        f"sequence_tokens was to be 64, is {CONFIG.eval.sequence_tokens}",
        f"corpus was to be {'b' * 12}, is {'a' * 12}",
        "sources/fine bytes was to be 8, is 9",
    ]


# --- retroactive ----------------------------------------------------------------------------------


def test_without_the_seal_in_its_chain_a_forecast_is_retroactive_everywhere(capsys):
    written(ladder_of())
    run_of()
    found = settle("target")
    assert found["retroactive"] == "the forecast was not sealed"
    assert found["sealed"] is None
    assert "RETROACTIVE: the forecast was not sealed" in render(found)
    seal("small")
    assert main(["settle", "target", "--forecast", "small"]) == 0
    assert "RETROACTIVE: the run's record does not begin with" in capsys.readouterr().out
    assert read()["retroactive"] == "the run's record does not begin with the seal"
    assert main(["forecast", "--list"]) == 0
    assert "RETROACTIVE: the run's record does not begin with" in capsys.readouterr().out


def test_another_forecast_of_a_sealed_run_is_retroactive_sealed_or_not(sealed):
    run_of(seal=sealed)
    written(ladder_of("other", noise=0.002))
    assert settle("target", "other")["retroactive"] == "the forecast was not sealed"
    seal("other")
    found = settle("target", "other")
    assert found["retroactive"] == "the run's record does not begin with the seal"
    assert found["finished"]
    assert settle("target")["retroactive"] is None
    rows = {row["name"]: row["outcome"] for row in listed.outcomes()["forecasts"]}
    assert rows["other"]["retroactive"]
    assert rows["small"]["retroactive"] is None


def test_a_run_that_several_forecasts_are_about_asks_which():
    written(ladder_of())
    written(ladder_of("other", noise=0.002))
    run_of()
    with pytest.raises(ValueError, match=r"2 forecasts are about .*there are: other, small"):
        settle("target")
    assert settle("target", "other")["forecast"] == "other"


# --- refusals -------------------------------------------------------------------------------------


def test_another_run_settles_nothing(sealed):
    run_of("other", config=override(CONFIG, ["train.seed=7"]))
    with pytest.raises(ValueError, match=r"run other has a config .* another run, which settles"):
        settle("other", "small")
    with pytest.raises(ValueError, match="0 forecasts are about the config of run other"):
        settle("other")
    assert not (home() / "forecasts/small/settlement.json").exists()


def test_a_run_whose_start_says_another_config_is_refused(sealed):
    folder = run_of(seal=sealed)
    lines = read_events(folder)
    rewritten(folder, [{**line, "fingerprint": "f" * 64} if line["kind"] == "start" else line
                       for line in lines])  # fmt: skip
    with pytest.raises(ValueError, match=r"fingerprint ffffffffffff, and forecast small is about"):
        settle("target")


def test_a_run_whose_config_was_edited_is_refused(sealed):
    path = run_of(seal=sealed) / "run.json"
    content = json.loads(path.read_text())
    content["config"]["train"]["seed"] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="another run, which settles nothing"):
        settle("target")


@pytest.mark.parametrize("what", ["metric", "edited", "swapped", "removed"])
def test_a_broken_record_settles_nothing(sealed, what):
    folder = run_of(seal=sealed)
    name = "metrics.jsonl" if what == "metric" else "events.jsonl"
    lines = (folder / name).read_text().splitlines()
    if what == "metric":
        lines[3] = lines[3].replace('"loss": ', '"loss": 1')
    elif what == "edited":
        lines[0] = lines[0].replace(sealed.sha256, "0" * 64)
    elif what == "swapped":
        lines[0], lines[1] = lines[1], lines[0]
    else:
        del lines[0]
    (folder / name).write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="the record of run target is broken: "):
        settle("target")


def test_a_seal_event_moved_removed_or_of_another_seal_is_caught_though_every_link_holds(sealed):
    written(ladder_of("other", noise=0.002))
    other = find_seal(seal("other")["seal"])
    folder = run_of(seal=sealed)
    first, start, *rest = read_events(folder)

    rewritten(folder, [start, first, *rest])
    assert verify_chain(folder) == []
    with pytest.raises(ValueError, match="the seal stands in the run's events after 'start'"):
        settle("target", "small")

    rewritten(folder, [start, *rest])
    assert verify_chain(folder) == []
    assert settle("target", "small")["retroactive"]

    rewritten(folder, [{**first, "sha256": other.sha256}, start, *rest])
    assert verify_chain(folder) == []
    says = f"begins with seal {other.sha256[:12]} of forecast small"
    with pytest.raises(ValueError, match=says):
        settle("target")
    with pytest.raises(ValueError, match=f"{says}, and .*small has seal {sealed.sha256[:12]}"):
        settle("target", "small")


def test_a_record_written_anew_no_longer_fits_the_checkpoints_that_are_kept(sealed):
    folder = run_of(seal=sealed)
    with Record.open(folder) as record:
        link = record.link()
    (folder / "checkpoints/9").mkdir(parents=True)
    (folder / "checkpoints/9/manifest.json").write_text(json.dumps({"link": link}))
    assert settle("target")["finished"]
    rewritten(folder, read_events(folder))
    assert verify_chain(folder) == []
    with pytest.raises(ValueError, match=r"is broken: checkpoint 9: .*events.jsonl was changed"):
        settle("target")


def test_a_seal_that_was_sealed_anew_is_another_one(sealed):
    folder = run_of(seal=sealed)
    (home() / "forecasts/small/seal.json").unlink()
    made = ladder_of(noise=0.02)
    (home() / "forecasts/small/forecast.json").unlink()
    (home() / "forecasts/small/ladder.json").write_text(json.dumps(made.plain()))
    assert seal("small")["sha256"] != sealed.sha256
    with pytest.raises(ValueError, match="another seal, or this one altered as a whole"):
        settle("target", "small")
    # The run keeps the seal that it began with.
    assert settle("target")["file"] == str(folder / "settlement.json")
    (folder / "seal.json").unlink()
    with pytest.raises(ValueError, match=r"which is not here; .*small/seal.json is"):
        settle("target")


def test_an_evaluation_that_the_record_does_not_have_settles_nothing(sealed):
    folder = run_of(seal=sealed)
    path = folder / f"evals/{STEPS}.json"
    content = json.loads(path.read_text())
    kept = json.dumps(content)
    for edit in (
        lambda one: one["domains"]["fine"].update(kind="prose"),
        lambda one: one["macro"].update(bpb=one["macro"]["bpb"] - 0.01),
        lambda one: one["domains"]["fine"].update(bpb=one["domains"]["fine"]["bpb"] - 0.01),
    ):
        content = json.loads(kept)
        edit(content["sets"]["sources"])
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"{STEPS}.json\]: SHA-256, as in the `evaluate`"):
            settle("target")
    path.unlink()
    with pytest.raises(ValueError, match=f"the scores of step {STEPS}, .* are missing; nothing"):
        settle("target")


def test_a_line_of_an_attempt_that_no_event_tells_of_settles_nothing(sealed):
    folder = run_of(seal=sealed, upto=11)
    with Record.open(folder) as record:
        record.event("checkpoint", step=100)
    with Record.open(folder, attempt=5) as record:
        record.metric(500, {"loss": 0.1})
    with pytest.raises(ValueError, match=r"of attempt 5, and no event says .*nothing is settled"):
        settle("target")


# --- the list -------------------------------------------------------------------------------------


def test_every_forecast_is_listed_with_its_score(sealed, capsys):
    assert main(["forecast", "--list"]) == 0
    assert "not settled" in capsys.readouterr().out
    written(ladder_of("late", noise=0.002))
    written(made("elsewhere"))
    broken = written(made("broken"))
    (broken / "forecast.json").write_text("{}")
    run_of(seal=sealed, shift=0.2)
    rows = {row["name"]: row for row in listed.outcomes()["forecasts"]}
    assert sorted(rows) == ["broken", "elsewhere", "late", "small"]
    # Scored without being asked, and nothing is written for it.
    assert not (home() / "forecasts/small/settlement.json").exists()
    found = rows["small"]
    assert found["sealed"] == sealed.date
    assert found["outcome"]["run"] == "target"
    assert found["outcome"]["retroactive"] is None
    assert not found["outcome"]["inside_90"]
    assert found["problem"] is None
    assert rows["late"]["outcome"]["retroactive"] == "the forecast was not sealed"
    assert rows["elsewhere"]["outcome"] is None
    assert "is no forecast" in rows["broken"]["problem"]
    settle("target")
    again = {row["name"]: row for row in listed.outcomes()["forecasts"]}
    assert again["small"] == found
    assert main(["forecast", "--list"]) == 0
    said = capsys.readouterr().out
    assert f"sealed {sealed.date}" in said
    assert "0 of 1 that were sealed before their run are inside 90 %" in said
    assert "PROBLEM" in said


def test_a_forecast_that_is_no_longer_what_was_sealed_is_listed_as_a_problem(sealed):
    (home() / "forecasts/small/ladder.json").write_text(json.dumps(ladder_of(noise=0.01).plain()))
    (row,) = listed.outcomes()["forecasts"]
    assert row["problem"] == "ladder.json is not the one that was sealed"


def test_a_ladder_or_the_list_is_asked_for(capsys):
    assert main(["forecast"]) == 2
    assert main(["forecast", "small", "--list"]) == 2
    assert "say which ladder, or --list" in capsys.readouterr().err


# --- with real training ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sealed_run_killed_and_resumed_keeps_its_seal_first_and_settles(
    copied, text, monkeypatch, capsys
):
    run = copied().with_name("second")
    written(ladder_of("of-tiny", config=tiny()))
    made = find_seal(seal("of-tiny")["seal"])
    words = ("train", RECIPE, "--run", "second", "--set", "eval.every_steps=3")
    seen = environment(home(), text=text)
    done = shoal(*words, "--forecast", "of-tiny", seen=seen, stop_at=6, by=signal.SIGKILL)
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = shoal(*words, seen=seen)
    assert done.returncode == 0, done.stderr
    assert shoal("eval", "second", seen=seen).returncode == 0
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds[:2] == ["seal", "start"]
    assert kinds.count("seal") == 1
    assert "resume" in kinds
    assert read_events(run)[0]["sha256"] == made.sha256
    assert main(["settle", "second"]) == 0
    said = capsys.readouterr().out
    assert "at its end" in said
    assert "RETROACTIVE" not in said
    refused = shoal("train", RECIPE, "--forecast", "of-tiny", seen=seen)
    assert refused.returncode == 2
    assert "run tiny began without seal of-tiny" in refused.stderr
