"""`shoal verify RUN`: a sound run holds; each way of tampering is caught, and named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from journey.process import RECIPE, environment, result_of, shoal
from journey.tiny import TEXT
from shoal.cli import main
from shoal.core.config import fingerprint, from_plain
from shoal.core.files import home
from shoal.core.progress import Silent
from shoal.core.record import Record, read_events, read_metrics
from shoal.jobs import evaluate, recheck_state
from shoal.jobs.findings import FAILS, HOLDS, NOT_CHECKED, Findings
from shoal.jobs.ladder import conditions
from shoal.jobs.prepare import prepare
from shoal.jobs.recheck_attempts import recheck_attempts
from shoal.jobs.runs import read_config
from shoal.jobs.verify import find, verify
from shoal.scaling.records import Ladder, RungRun, Target
from shoal.train.config import Config
from shoal.train.digest import digest


@pytest.fixture(scope="module")
def scored(trained: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home with the finished run `tiny`, scored at its end by a rule; not to be changed."""
    home = tmp_path_factory.mktemp("scored") / "home"
    shutil.copytree(trained, home, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(home))
        patch.setenv(TEXT, str(text))
        by_rule = lambda params, inputs, targets, segments: 3.0 + 0.001 * targets.astype("float32")  # noqa: E731
        patch.setattr(evaluate, "scorer", lambda *_: by_rule)
        patch.setattr(evaluate, "samples", lambda *_: [])
        evaluate.evaluate_run("tiny")
    return home


@pytest.fixture
def run(scored: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run's folder in a copy that is this test's own."""
    home = tmp_path / "home"
    shutil.copytree(scored, home, symlinks=True)
    monkeypatch.setenv("SHOAL_HOME", str(home))
    monkeypatch.setenv(TEXT, str(text))
    return home / "runs" / "tiny"


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def failures(result: dict[str, Any]) -> list[str]:
    """Check, place and sentence of everything that fails."""
    assert result["ok"] is (result["counts"][FAILS] == 0)
    return [
        f"{line['check']} | {line['where']} | {line['says']}"
        for line in result["lines"]
        if line["state"] == FAILS
    ]


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=1))


def edit_line(path: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    content = json.loads(lines[number - 1])
    change(content)
    lines[number - 1] = json.dumps(content) + "\n"
    path.write_text("".join(lines))


# --- sound ----------------------------------------------------------------------------------------


def test_a_run_is_verified_whole_and_where_it_was_trained_bit_for_bit(run, text):
    before = content_of(run)
    seen = environment(run.parents[1], text=text)
    found = result_of(shoal("verify", "tiny", "--steps", "4", "--json", seen=seen))
    assert (found["kind"], found["ok"]) == ("run", True)
    says = {line["check"]: line["says"] for line in found["lines"] if line["state"] == HOLDS}
    exact = "every metric of the record, bit for bit; the state comes to the digest of checkpoint"
    assert says["replay from the seed"] == f"steps 1 to 4: {exact} 4"
    assert says["replay from checkpoint 8"] == f"steps 9 to 12: {exact} 12"
    assert set(says) >= {
        "config", "settings", "derived numbers", "chain", "order of events", "metrics, steps",
        "metrics, attempts", "metrics, values", "evaluations", "samples", "checkpoint 8",
        "checkpoint 12", "corpus of the run", "evaluated text", "order of the data",
    }  # fmt: skip
    unchecked = {line["check"] for line in found["lines"] if line["state"] == NOT_CHECKED}
    assert unchecked == {"seal", "older checkpoints"}
    assert "1,920 tokens of 12 steps" in says["order of the data"]
    assert content_of(run) == before


@pytest.fixture
def replayed(run: Path) -> Callable[..., list[dict[str, Any]]]:
    """Compare the record of some steps with what a replay is said to have found of step 10."""

    def compare(**found: Any) -> list[dict[str, Any]]:
        lines = read_metrics(run)[8:12]
        anew = {line["step"]: {**line} for line in lines}
        anew[10].update(found)
        findings = Findings()
        with findings.check("replay", "metrics.jsonl") as check:
            recheck_state.compare(run, 8, lines, anew, check)
        return findings.lines

    return compare


def test_where_the_environment_is_the_recorded_one_every_bit_counts(run, replayed, monkeypatch):
    start = read_events(run)[0]
    monkeypatch.setattr(recheck_state, "environment", lambda: start)
    (line,) = replayed()
    assert line["state"] == HOLDS
    assert line["says"] == "steps 9 to 12: every metric of the record, bit for bit"
    loss, norm = (read_metrics(run)[9][name] for name in ("loss", "grad_norm"))
    (line,) = replayed(loss=np.nextafter(np.float32(loss), np.float32(9)))
    assert (line["state"], line["found"]) == (FAILS, loss)
    assert line["where"] == "metrics.jsonl step 10"
    assert line["says"].startswith("loss, bit for bit")
    (line,) = replayed(grad_norm=norm * 1.001)
    assert line["says"].startswith("grad_norm, bit for bit")


@pytest.mark.parametrize("other", ["jaxlib", "cores", "platform", "processor", "xla_flags"])
def test_elsewhere_losses_are_held_to_the_tolerance(run, replayed, monkeypatch, other):
    start = read_events(run)[0]
    monkeypatch.setattr(recheck_state, "environment", lambda: {**start, other: "another"})
    loss = read_metrics(run)[9]["loss"]
    (line,) = replayed(loss=loss * (1 + 5e-6), grad_norm=0.1)
    assert line["state"] == HOLDS
    assert f"bits are not asked for: {other}" in line["says"]
    assert "losses within 5.0e-06 of the record (allowed 1e-05)" in line["says"]
    for wrong in (loss * (1 + 2e-5), float("nan")):
        (line,) = replayed(loss=wrong)
        assert line["state"] == FAILS
        assert line["where"] == "metrics.jsonl step 10"


def test_after_a_change_of_settings_earlier_bits_are_not_asked_for(run, replayed, monkeypatch):
    start = read_events(run)[0]
    monkeypatch.setattr(recheck_state, "environment", lambda: start)
    with Record.open(run) as record:
        record.event("change", why="speed", differences=[])
    (line,) = replayed(grad_norm=0.1)
    assert line["state"] == HOLDS
    assert "the run's settings were changed after these steps" in line["says"]


def test_the_tolerance_grows_with_the_steps_and_ends_at_one_percent():
    allowed = [recheck_state.tolerance(steps) for steps in (1, 8, 12, 16, 32, 64, 10_000)]
    np.testing.assert_allclose(allowed, [1e-5, 1e-5, 2e-5, 4e-5, 6.4e-4, 1e-2, 1e-2])


@pytest.mark.slow
def test_another_number_of_devices_is_within_the_tolerance(run):
    """This process has other compiler settings than the run had, and is seen to have."""
    found = verify("tiny", steps=4)
    assert failures(found) == []
    for name in ("replay from checkpoint 8", "replay from the seed"):
        (line,) = [one for one in found["lines"] if one["check"] == name]
        assert "bits are not asked for: devices" in line["says"]
        assert "xla_flags" in line["says"]


@pytest.mark.slow
def test_a_lie_in_a_record_without_checkpoints_is_found_from_the_seed(run):
    shutil.rmtree(run / "checkpoints")
    edit_line(run / "metrics.jsonl", 2, lambda line: line.update(loss=line["loss"] * 1.001))
    told = failures(verify("tiny", steps=2))
    assert any("replay from the seed | metrics.jsonl step 2 | loss" in one for one in told), told


def test_a_corpus_without_its_store_is_not_checked(run, monkeypatch):
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    for path in (run.parents[1] / "corpora").glob("*-tokens@*"):
        shutil.rmtree(path)
    found = verify("tiny", steps=1)
    assert failures(found) == []
    lines = {line["check"]: line for line in found["lines"]}
    assert lines["corpus of the run"]["state"] == NOT_CHECKED
    assert "which is not there" in lines["corpus of the run"]["says"]


def test_what_is_not_there_is_said_and_does_not_fail(run, monkeypatch):
    monkeypatch.setattr(recheck_state.Steps, "after", lambda *_: ({}, {}))
    monkeypatch.setattr(recheck_state, "compare", lambda *_: False)
    shutil.rmtree(run / "checkpoints" / "8")
    lines = {line["check"]: line for line in verify("tiny", steps=1)["lines"]}
    assert lines["replay from a checkpoint"]["state"] == NOT_CHECKED
    assert "none that is there has a step after it" in lines["replay from a checkpoint"]["says"]
    assert lines["replay from the seed"]["state"] == HOLDS
    shutil.rmtree(run.parents[1] / "corpora")
    found = verify(str(run), steps=1)
    assert found["ok"]
    told = [line["says"] for line in found["lines"] if line["state"] == NOT_CHECKED]
    assert "they need the corpus" in told
    assert any("`shoal prepare` makes it again" in one for one in told)


# --- tampered -------------------------------------------------------------------------------------


def _metric_edited(run: Path) -> None:
    edit_line(run / "metrics.jsonl", 6, lambda line: line.update(loss=line["loss"] - 1e-6))


def _metric_removed(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:6] + lines[7:]))


def _metric_twice(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines, lines[-1]]))


def _metrics_cut(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-2]))


def _event_reordered(run: Path) -> None:
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    lines[1], lines[2] = lines[2], lines[1]
    (run / "events.jsonl").write_text("".join(lines))


def _event_edited(run: Path) -> None:
    edit_line(run / "events.jsonl", 3, lambda event: event.update(time=event["time"][:-1] + "1"))


def _start_removed(run: Path) -> None:
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[1:]))


def _checkpoint_of_another_step(run: Path) -> None:
    shutil.rmtree(run / "checkpoints/12")
    shutil.copytree(run / "checkpoints/8", run / "checkpoints/12")


def _checkpoint_of_another_step_renumbered(run: Path) -> None:
    _checkpoint_of_another_step(run)
    edit_json(run / "checkpoints/12/manifest.json", lambda tree: tree.update(step=12))


def _checkpoint_of_another_run(run: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["fingerprint"] = "0" * 64
        tree["link"]["metrics"]["sha256"] = "0" * 64

    edit_json(run / "checkpoints/8/manifest.json", change)


def _largest(run: Path) -> Path:
    files = [path for path in (run / "checkpoints/8/state").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def _checkpoint_byte_flipped(run: Path) -> None:
    data = bytearray(_largest(run).read_bytes())
    data[len(data) // 2] ^= 1
    _largest(run).write_bytes(data)


def _checkpoint_manifest_edited(run: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        leaf = next(iter(tree["leaves"].values()))
        leaf["sum"] = "0" * 32

    edit_json(run / "checkpoints/8/manifest.json", change)


def _checkpoint_manifest_edited_with_its_digest(run: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        leaf = next(iter(tree["leaves"].values()))
        leaf["sum"] = "0" * 32
        tree["digest"] = digest(tree["leaves"])

    edit_json(run / "checkpoints/8/manifest.json", change)


def _macro_edited(run: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["sets"]["sources"]["macro"]["bpb"] -= 0.01

    edit_json(run / "evals/12.json", change)


def _domain_edited(run: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        next(iter(tree["sets"]["sources"]["domains"].values()))["loss"] -= 0.01

    edit_json(run / "evals/12.json", change)


def _scores_edited_to_agree(run: Path) -> None:
    """Domain and macro alike: only the event knows better."""

    def change(tree: dict[str, Any]) -> None:
        one = tree["sets"]["sources"]
        for scores in [*one["domains"].values(), one["macro"]]:
            scores["loss"], scores["bpb"] = scores["loss"] / 2, scores["bpb"] / 2

    edit_json(run / "evals/12.json", change)


def _scored_text_edited(run: Path) -> None:
    """Half the bytes, at half the tokens and the same bits per byte."""

    def change(tree: dict[str, Any]) -> None:
        for scores in tree["sets"]["sources"]["domains"].values():
            scores["bytes"], scores["tokens"] = scores["bytes"] * 2, scores["tokens"] * 2

    edit_json(run / "evals/12.json", change)


def _scores_removed(run: Path) -> None:
    (run / "evals/12.json").unlink()


def _config_edited(run: Path) -> None:
    edit_json(run / "run.json", lambda tree: tree["config"]["optimizer"].update(muon_lr=0.02))


def _config_edited_with_its_fingerprint(run: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["config"]["data"]["seed"] = 5
        tree["fingerprint"] = fingerprint(from_plain(Config, tree["config"]))

    edit_json(run / "run.json", change)


def _derived_edited(run: Path) -> None:
    edit_json(run / "run.json", lambda tree: tree["derived"].update(flops=1e9))


def _parameters_edited(run: Path) -> None:
    edit_json(run / "run.json", lambda tree: tree["parameters"].update(active=1))


def _corpus_copy_edited(run: Path) -> None:
    edit_json(run / "corpus.json", lambda tree: tree["sources"][0].update(license="MIT"))


def _rate_edited(run: Path) -> None:
    edit_line(run / "metrics.jsonl", 5, lambda line: line.update({"learning_rate/muon": 0.05}))


def _tokens_edited(run: Path) -> None:
    edit_line(run / "metrics.jsonl", 5, lambda line: line.update(tokens=line["tokens"] + 1))


def _drops_hidden(run: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        line["delivered"][1] -= 3

    edit_line(run / "metrics.jsonl", 5, change)


def _loss_not_finite(run: Path) -> None:
    edit_line(run / "metrics.jsonl", 4, lambda line: line.update(loss="nan"))


def _line_of(run: Path, step: int, **values: Any) -> dict[str, Any]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[step - 1]) | values


def _metric_of_a_higher_attempt(run: Path) -> None:
    """Nothing is edited: a line is appended, and of two lines of a step the later one counts."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_line_of(run, 5, attempt=2, loss=1.0)) + "\n")


def _appended(run: Path, steps: range, loss: float, *, resumed: int, finish: bool) -> None:
    """Lines of a second attempt by shoal's own means, so that the chain holds."""
    lines = [_line_of(run, step, loss=loss) for step in steps]
    with Record.open(run) as record:
        if resumed:
            record.event("resume", step=resumed)
        for line in lines:
            line.pop("attempt")
            record.metric(line.pop("step"), line)
        if finish:
            record.event("finish", step=12)


def _attempt_without_a_beginning(run: Path) -> None:
    _appended(run, range(5, 6), 1.0, resumed=0, finish=True)


def _attempt_of_another_course(run: Path) -> None:
    _appended(run, range(9, 11), 1.0, resumed=8, finish=True)


def _attempt_from_no_checkpoint(run: Path) -> None:
    _appended(run, range(8, 13), 1.0, resumed=7, finish=True)


def _attempt_that_leaves_steps_out(run: Path) -> None:
    _appended(run, range(11, 13), 5.0, resumed=8, finish=True)


def _metrics_of_two_attempts_mixed(run: Path) -> None:
    edit_line(run / "metrics.jsonl", 6, lambda line: line.update(attempt=2))


def _metrics_turned_around(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[5], lines[6] = lines[6], lines[5]
    (run / "metrics.jsonl").write_text("".join(lines))


def _numerics_edited(run: Path) -> None:
    edit_json(run / "run.json", lambda tree: tree["config"]["model"].update(remat=True))


def _machine_edited(run: Path) -> None:
    edit_json(run / "run.json", lambda tree: tree["environment"].update(cores=9999))


def _entry_added(run: Path) -> None:
    edit_json(run / "run.json", lambda tree: tree.update(more=1))


def _checkpoint_file_added(run: Path) -> None:
    (run / "checkpoints/8/state/more").write_text("x")


def _checkpoint_tokens_edited(run: Path) -> None:
    edit_json(run / "checkpoints/8/manifest.json", lambda tree: tree.update(tokens_per_step=1))


def _samples_edited(run: Path) -> None:
    edit_json(run / "samples/12.json", lambda tree: tree.append({"prompt": "", "text": "good"}))


def _samples_removed(run: Path) -> None:
    (run / "samples/12.json").unlink()


def _samples_added(run: Path) -> None:
    (run / "samples/8.json").write_text("[]")


def _kind_of_a_domain_edited(run: Path) -> None:
    """Nothing that a mean would tell."""
    edit_json(
        run / "evals/12.json",
        lambda tree: tree["sets"]["sources"]["domains"]["text"].update(kind="code"),
    )


def _scores_of_no_step(run: Path) -> None:
    shutil.copy(run / "evals/12.json", run / "evals/last.json")


TAMPERED = [
    (_metric_of_a_higher_attempt, "attempts | metrics.jsonl | step 5 is of attempt 2, and no"),
    (_attempt_without_a_beginning, "step 5 is of attempt 2, and no event says that it went on"),
    (_attempt_of_another_course, "steps 9 to 10 are of attempt 2, the steps after them of an earl"),
    (_attempt_of_another_course, "loss of step 9 in attempt 2, by attempt 1"),
    (_attempt_from_no_checkpoint, "attempts | events.jsonl | attempt 2 resumed 7, and no"),
    (_attempt_that_leaves_steps_out, "first step of attempt 2, which went on from 8"),
    (_metrics_of_two_attempts_mixed, "attempts | metrics.jsonl | step 7 of attempt 1 stands after"),
    (_metrics_turned_around, "attempts | metrics.jsonl | step 6 of attempt 1 stands after 7"),
    (_numerics_edited, "settings | events.jsonl, the last `start` or `change` | SHA-256 of all"),
    (_machine_edited, "settings | run.json environment.cores | cores of the environment"),
    (_entry_added, "settings | run.json | holds 'more', which no run has"),
    (_checkpoint_file_added, "checkpoint 8 | checkpoints/8/state/more | a file that its manifest"),
    (_checkpoint_tokens_edited, "checkpoint 8 | checkpoints/8 | tokens per step"),
    (_samples_edited, "samples | samples/12.json | SHA-256, as in the `evaluate` event"),
    (_samples_removed, "samples | samples/12.json | is on record and missing"),
    (_samples_added, "samples | samples/8.json | SHA-256, as in the `evaluate` event"),
    (_kind_of_a_domain_edited, "evaluations | evals/12.json | SHA-256, as in the `evaluate` event"),
    (_scores_of_no_step, "evaluations | evals/last.json | its step"),
    (_metric_edited, "chain | metrics.jsonl | was edited in lines 5 to 8 (steps 5 to 8)"),
    (_metric_removed, "metrics, steps | metrics.jsonl | step 7 is missing"),
    (_metric_twice, "metrics, steps | metrics.jsonl | step 12 stands 2 times in attempt 1"),
    (_metrics_cut, "chain | metrics.jsonl | is shorter than it was: after line 8"),
    (_metrics_cut, "metrics, steps | metrics.jsonl | step 12 is missing"),
    (_event_reordered, "events.jsonl line 2 (checkpoint): does not follow the event before it"),
    (_event_reordered, "order of events | events.jsonl line 3 (checkpoint)"),
    (_event_edited, "events.jsonl line 3 (checkpoint): was edited"),
    (_start_removed, "config | events.jsonl | number of `start` events"),
    (_start_removed, "events.jsonl line 1 (checkpoint) | stands before the run's start"),
    (_checkpoint_of_another_step, "checkpoint 12 | checkpoints/12 | its step"),
    (_checkpoint_of_another_step_renumbered, "checkpoint 12 | checkpoints/12 | its digest, in the"),
    (_checkpoint_of_another_run, "checkpoint 8 | checkpoints/8 | fingerprint of its run"),
    (_checkpoint_of_another_run, "the record differs from what it saw"),
    (_checkpoint_byte_flipped, "checkpoint 8 | checkpoints/8/{file} | SHA-256 of a file"),
    (_checkpoint_manifest_edited, "lists other leaves than were saved"),
    (_checkpoint_manifest_edited_with_its_digest, "checkpoint 8 | checkpoints/8 | its digest, in"),
    (_macro_edited, "evaluations | evals/12.json sources/macro bpb | mean over domains"),
    (_domain_edited, "evaluations | evals/12.json sources/text bpb | bits per byte ="),
    (_domain_edited, "evaluations | evals/12.json sources/macro loss | mean over domains"),
    (_scores_edited_to_agree, "evals/12.json sources/macro loss | macro mean, in the `evaluate`"),
    (_scored_text_edited, "evaluated text | evals/12.json sources/text | held-out text"),
    (_scores_removed, "evaluations | evals | the scores of step 12"),
    (_config_edited, "config | run.json | fingerprint of its config"),
    (_config_edited_with_its_fingerprint, "config | events.jsonl, event start | fingerprint of"),
    (_derived_edited, "derived numbers | run.json derived.flops | a derived number"),
    (_parameters_edited, "derived numbers | run.json parameters | parameters"),
    (_corpus_copy_edited, "corpus of the run | corpus.json | differs from that of the corpus in:"),
    (_rate_edited, "metrics, values | metrics.jsonl step 5 | learning rate, muon"),
    (_tokens_edited, "metrics, values | metrics.jsonl step 5 | tokens so far"),
    (_drops_hidden, "metrics, values | metrics.jsonl step 5 | assignments of layer 1"),
    (_loss_not_finite, "metrics, values | metrics.jsonl step 4 | its loss is not finite"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tamper", "named"),
    TAMPERED,
    ids=[f"{t.__name__[1:]}-{n}" for n, (t, _) in enumerate(TAMPERED)],
)
def test_what_was_tampered_with_is_caught_and_named(run, tamper, named, monkeypatch):
    """Without the leaves of the checkpoints, which take longest and are not needed for it."""
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    file = _largest(run).relative_to(run / "checkpoints/8").as_posix()
    tamper(run)
    told = failures(verify("tiny", steps=0))
    assert any(named.format(file=file) in line for line in told), told


def _not_restored(folder: Path, config: Config, step: int, mesh: Any) -> Any:
    return SimpleNamespace(step=step)


def test_a_sound_run_has_no_failure_without_the_leaves_either(run, monkeypatch):
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    assert failures(verify("tiny", steps=0)) == []


def test_a_run_of_another_name_than_its_recipes_holds_as_does_one_that_was_moved(run, monkeypatch):
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    edit_json(run / "run.json", lambda tree: tree.update(name="by --run"))
    run.rename(run.parent / "moved")
    assert failures(verify("moved", steps=0)) == []


def test_bytes_that_were_changed_with_their_hashes_are_caught_by_the_leaves(run):
    (run / "checkpoints/8").rename(run.parent / "eight")
    path = run / "checkpoints/12/manifest.json"

    def change(tree: dict[str, Any]) -> None:
        """As if other parameters had been saved and every file hashed again."""
        name = next(name for name in tree["leaves"] if "params" in name)
        tree["leaves"][name]["sum"] = "0" * 32
        tree["digest"] = digest(tree["leaves"])

    edit_json(path, change)
    lines = (run / "events.jsonl").read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if '"step": 12, "digest"' in line)
    forged = json.loads(path.read_text())["digest"]
    edit_line(run / "events.jsonl", number, lambda event: event.update(digest=forged))
    told = failures(verify("tiny", steps=0))
    assert any("checkpoint 12" in line and "other bytes than were saved" in line for line in told)
    assert any(f"events.jsonl line {number} (checkpoint): was edited" in line for line in told)


def test_an_honest_second_attempt_holds_and_what_it_repeats_is_compared(run, monkeypatch):
    """Killed after step 12 was recorded and before its checkpoint; resumed from 8."""
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    losses = {step: json.loads(lines[step - 1])["loss"] for step in range(9, 13)}

    def attempts(change: float, *, to: int = 12, finish: bool = True) -> list[dict[str, Any]]:
        copy = run.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        with Record.open(copy) as record:
            record.event("resume", step=8)
            for step in range(9, to + 1):
                line = _line_of(run, step, loss=losses[step] * change)
                line = {k: v for k, v in line.items() if k not in {"step", "attempt"}}
                record.metric(step, line)
            if finish:
                record.event("finish", step=12)
        found = verify(str(copy), steps=0)["lines"]
        return [line for line in found if line["check"] == "metrics, attempts"]

    (line,) = attempts(1.0)
    assert line["state"] == HOLDS
    assert "2, each from the start or a checkpoint on record; 4 steps stand twice" in line["says"]
    (line,) = attempts(1 + 9e-3)
    assert line["state"] == HOLDS
    found = attempts(1 - 2e-2)
    assert [line["state"] for line in found] == [FAILS] * 4
    assert found[0]["says"] == "loss of step 9 in attempt 2, by attempt 1"
    assert found[0]["expected"] == losses[9]
    (line,) = attempts(1.0, to=10, finish=False)
    assert line["state"] == HOLDS
    assert line["says"].endswith("the last attempt has not come to steps 11 to 12 again")


def test_a_run_that_was_killed_before_its_first_checkpoint_holds_when_begun_again(tmp_path, run):
    """No event tells of the second attempt then; it has its steps from the start."""
    with Record.open(tmp_path / "r") as record:
        record.event("start", fingerprint="", corpus="")
        record.metric(1, {"loss": 3.0})
        record.metric(2, {"loss": 2.0})
    with Record.open(tmp_path / "r") as record:
        for step in (1, 2, 3, 4):
            record.metric(step, {"loss": 4.0 - step})
        record.event("checkpoint", step=4, digest="0")
    findings = Findings()
    with findings.check("attempts", "") as check:
        recheck_attempts(tmp_path / "r", read_config(run), check)
    assert findings.lines[0]["state"] == HOLDS
    assert findings.lines[0]["says"].startswith("2, each from the start")


def test_a_record_from_before_these_hashes_is_not_checked_for_them(run, monkeypatch):
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    events = read_events(run)
    for path in (run / "events.jsonl", *(run / "checkpoints").glob("*/manifest.json")):
        path.unlink()
    with Record.open(run, attempt=1) as record:
        for event in events:
            rest = {k: v for k, v in event.items() if k not in {"kind", "time", "attempt", "link"}}
            rest.pop("settings", None)
            rest.pop("files", None)
            record.event(event["kind"], **rest)
    lines = {line["check"]: line for line in verify("tiny", steps=0)["lines"]}
    for name in ("settings", "samples"):
        assert lines[name]["state"] == NOT_CHECKED
        assert "this record has no hash of them" in lines[name]["says"]
    assert lines["evaluations"]["state"] == HOLDS


def test_a_checkpoint_whose_event_a_kill_prevented_is_told_at_the_next_start(run, monkeypatch):
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds[-3:] == ["checkpoint", "finish", "evaluate"]
    (run / "events.jsonl").write_text("".join(lines[:-3]))
    shutil.rmtree(run / "evals")
    shutil.rmtree(run / "samples")
    assert any("no `checkpoint` event" in line for line in failures(verify("tiny", steps=0)))
    assert main(["train", RECIPE]) == 0
    assert [event["kind"] for event in read_events(run)][-2:] == ["checkpoint", "finish"]
    assert failures(verify("tiny", steps=0)) == []


def test_a_replay_that_comes_to_another_state_than_was_saved_fails():
    """A checkpoint and its event forged together: only training again knows better."""
    findings = Findings()
    with findings.check("replay", "metrics.jsonl") as check:
        recheck_state.compare_digests({12: "told", 4: "same"}, {4: "same", 12: "anew"}, check)
    (line,) = findings.lines
    assert (line["state"], line["where"]) == (FAILS, "events.jsonl, checkpoint 12")
    assert (line["expected"], line["found"]) == ("anew", "told")


# --- what a forecast is measured under ------------------------------------------------------------


def test_the_conditions_of_a_forecast_are_hashed_anew_from_the_corpus(run):
    config = read_config(run)
    told = conditions(config, prepare(config.data.corpus, home(), Silent()))
    values = {"sources/text/loss": (None,) * 19 + (2.0,)}
    size = {"fingerprint": fingerprint(config), "width": 32, "tokens": 1920, "flops": 1e9}
    rung = RungRun(rung="d32", run="tiny", seed=0, seconds=None, series=values, health={}, **size)
    ladder = Ladder(
        name="tiny", metric="sources/text/loss", runs=(rung,), conditions=told,
        target=Target(name="none", **{**size, "flops": 1e10}),
    )  # fmt: skip
    folder = home() / "forecasts" / "mine"
    folder.mkdir(parents=True)

    def line_of(change: Callable[[Any], object] = lambda _: None) -> dict[str, Any]:
        tree = ladder.plain()
        change(tree["conditions"])
        (folder / "ladder.json").write_text(json.dumps(tree))
        (line,) = [one for one in verify("mine")["lines"] if one["check"] == "conditions"]
        return line

    assert line_of()["says"] == "tokenizer and 1 evaluated domains hashed anew"
    assert line_of()["state"] == HOLDS
    one = next(iter(told["sets"]))
    line = line_of(lambda found: found["sets"][one].update(sha256="0" * 64))
    assert (line["state"], line["says"][:30]) == (FAILS, f"evaluated text: {one}.sha256"[:30])
    assert line_of(lambda found: found.update(tokenizer_sha256="0" * 64))["state"] == FAILS
    assert line_of(lambda found: found.update(sequence_tokens=64))["state"] == FAILS
    assert line_of(lambda found: found.update(corpus="other@0"))["state"] == NOT_CHECKED


# --- the command ----------------------------------------------------------------------------------


def test_the_command_ends_with_one_where_something_fails_and_prints_a_line_for_each(
    run, capsys, monkeypatch
):
    monkeypatch.setattr(recheck_state, "restored", _not_restored)
    assert main(["verify", "tiny", "--steps", "0"]) == 0
    said = capsys.readouterr().out
    assert "VERIFIED: 1" in said
    assert "\nnot checked  replay: --steps 0\n" in said
    _macro_edited(run)
    assert main(["verify", "tiny", "--steps", "0"]) == 1
    said = capsys.readouterr().out
    assert "NOT VERIFIED" in said
    assert "fails        evaluations  [evals/12.json sources/macro bpb]: mean over domains;" in said
    assert main(["verify", str(run), "--steps", "0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["fails"] == 3  # and the file's own hash


def test_what_cannot_be_found_or_is_not_asked_right_is_refused(run, capsys):
    assert main(["verify", "nothing-of-this-name"]) == 2
    assert "no run, forecast or corpus 'nothing-of-this-name'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--steps -1: use 0 or more"):
        verify("tiny", -1)


def test_a_run_that_cannot_be_read_fails_and_breaks_nothing(run):
    (run / "run.json").write_text("{}")
    told = failures(verify("tiny", steps=0))
    assert any(line.startswith("config | run.json | cannot be read") for line in told)
    (run / "events.jsonl").write_text("torn\nand torn\n")
    assert failures(verify("tiny", steps=0))


def test_a_name_that_several_have_is_the_runs(run):
    corpus = next((run.parents[1] / "corpora").glob("*/corpus.json")).parent
    shutil.copytree(run, run.parent / corpus.name.partition("@")[0])
    found = [(kind, path.name) for kind, path in find(corpus.name.partition("@")[0])]
    assert found == [("run", corpus.name.partition("@")[0]), ("corpus", corpus.name)]
    assert [kind for kind, _ in find(corpus.name)] == ["corpus"]
    assert [kind for kind, _ in find(str(corpus))] == ["corpus"]
