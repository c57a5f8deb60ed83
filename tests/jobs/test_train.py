"""Job `train`: a run goes on to the same bits whatever stopped it, or says why it will not."""

import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from journey.process import RECIPE, environment, result_of, shoal
from shoal.cli import main
from shoal.core.files import folder_lock
from shoal.core.progress import Silent
from shoal.core.record import read_events, read_metrics, verify_chain, verify_link
from shoal.data.load import TokenStore
from shoal.jobs.prepare import prepare
from shoal.jobs.resolve import resolve
from shoal.jobs.runs import read_config
from shoal.jobs.train import mix_of, order_of, store_of
from shoal.train import checkpoint, loop
from shoal.train.digest import digest as digest_of

# A numerics difference that changes no number here: the vocabulary is far below either threshold.
OTHER_NUMERICS = ("--set", "model.loss_block_above_bytes=400000000")


def digest(home):
    return checkpoint.manifest_of(home / "runs/tiny", 12)["digest"]


def kinds(run):
    return [event["kind"] for event in read_events(run)]


def written(run):
    """Every file of a run that training writes, by name."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }


def refused(capsys, *words):
    """The error of a verb that must refuse, run in this process."""
    status = main(["train", RECIPE, *words])
    said = capsys.readouterr().err.splitlines()
    assert status == 2
    assert said[-1].startswith("error: ")
    return said[-1]


# --- going on, in fresh processes -----------------------------------------------------------------


def test_a_run_stopped_three_times_in_an_epoch_ends_with_the_bits_of_one_that_was_not(
    trained, text, tmp_path
):
    """Killed before its first checkpoint, interrupted, killed after; each time a fresh process."""
    seen = environment(tmp_path / "home", text=text)
    run = tmp_path / "home/runs/tiny"
    stops = ((2, signal.SIGKILL, []), (5, signal.SIGINT, [4, 5]), (7, signal.SIGKILL, [4, 5]))
    for stop, by, left in stops:
        done = shoal("train", RECIPE, seen=seen, stop_at=stop, by=by)
        assert done.returncode == (130 if by == signal.SIGINT else -by), done.stderr
        assert checkpoint.steps(run) == left
        if by == signal.SIGINT:
            said = done.stderr.splitlines()[-1]
            assert said.startswith(f"stopped; nothing finished is lost: `shoal train {RECIPE}`")
    words = (*OTHER_NUMERICS, "--change", "to see it", "--set", "train.keep_checkpoints=3")
    result = result_of(shoal("train", RECIPE, *words, "--json", seen=seen))
    assert (result["step"], result["reused"], result["num_steps"]) == (12, False, 7)

    assert digest(tmp_path / "home") == digest(trained)
    assert checkpoint.steps(run) == [5, 8, 12]
    lines, straight = read_metrics(run), read_metrics(trained / "runs/tiny")
    assert [line["attempt"] for line in lines] == [2] * 5 + [4] * 7
    for key in ("step", "tokens", "loss", "grad_norm", "router/load_cv"):
        assert [line[key] for line in lines] == [line[key] for line in straight], key
    assert kinds(run) == [
        "start", "checkpoint", "checkpoint", "stop", "resume",
        "change", "resume", "checkpoint", "checkpoint", "finish",
    ]  # fmt: skip
    change = next(event for event in read_events(run) if event["kind"] == "change")
    assert change["why"] == "to see it"
    assert {d["path"] for d in change["differences"]} == {
        "model.loss_block_above_bytes", "train.keep_checkpoints",
    }  # fmt: skip
    assert verify_chain(run) == []
    assert verify_link(run, checkpoint.manifest_of(run, 12)["link"]) == []


def test_a_finished_run_says_that_it_is(copied, capsys):
    run = copied()
    before = written(run)
    assert main(["train", RECIPE, "--json"]) == 0
    said = capsys.readouterr()
    assert "finished before at step 12, reused" in said.err
    assert '"reused": true' in said.out
    assert written(run) == before


def test_the_page_is_written_anew_after_each_evaluation_and_is_not_worth_the_run(
    copied, capsys, monkeypatch
):
    copied()
    seen = []

    def pages(folder):
        seen.append(folder.name)
        raise ValueError("no page today")

    def steps(*given, every, **_):
        for _ in range(2):
            every[6](given[2])
        return SimpleNamespace(num_steps=12, first_loss_s=1.0, seconds=1.0, tokens_per_s=1.0)

    monkeypatch.setattr("shoal.jobs.train.evaluator", lambda *_: lambda _: seen.append("scored"))
    monkeypatch.setattr("shoal.jobs.report.write_pages", pages)
    monkeypatch.setattr(loop, "train", steps)
    words = ("--run", "second", "--set", "train.seed=1", "--set", "eval.every_steps=6")
    assert main(["train", RECIPE, *words]) == 0
    assert seen == ["scored", "second", "scored", "second"]
    assert "the report of this run was not written: no page today" in capsys.readouterr().err


def test_another_name_is_another_run(copied, capsys, monkeypatch):
    """The corpus is shared, the run is not."""
    run = copied()
    before = written(run)
    monkeypatch.setattr("shoal.jobs.train._run", lambda config, folder, *_: {"run": str(folder)})
    assert main(["train", RECIPE, "--run", "second", "--set", "train.seed=1", "--json"]) == 0
    second = run.with_name("second")
    assert str(second) in capsys.readouterr().out
    assert read_config(second).train.seed == 1
    assert written(run) == before


# --- refusing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "train.seed=1"), "train.seed was 0, is 1"),
        (("--set", "optimizer.muon_lr=0.01"), "optimizer.muon_lr was 0.03, is 0.01"),
        (("--set", "train.seed=1", "--change", "why"), "train.seed was 0, is 1"),
        (("--set", "model.remat=true"), "model.remat was False, is True"),
        (OTHER_NUMERICS, "model.loss_block_above_bytes was 512000000, is 400000000"),
    ],
)
def test_a_difference_that_may_not_be_is_refused_and_changes_nothing(copied, capsys, words, says):
    run = copied(8)
    before = written(run)
    assert says in refused(capsys, *words)
    assert written(run) == before


def test_a_run_whose_checkpoints_vanished_is_never_begun_anew(copied, capsys):
    run = copied()
    before = written(run)
    shutil.move(run / "checkpoints", run.parent / "moved")
    said = refused(capsys)
    assert "had a checkpoint at step 12 and has none now" in said
    assert str(run / "checkpoints") in said
    shutil.move(run.parent / "moved", run / "checkpoints")
    assert written(run) == before


@pytest.mark.parametrize("steps", [(8,), (8, 12)], ids=["unfinished", "finished"])
def test_a_damaged_newest_checkpoint_is_refused_and_nothing_is_lost(copied, capsys, steps):
    run = copied(*steps)
    newest = run / "checkpoints" / str(steps[-1])
    before = written(run)
    payload = next(path for path in sorted((newest / "state").rglob("*")) if path.is_file())
    payload.rename(run.parent / "moved")
    said = refused(capsys)
    assert f"{payload} is missing" in said
    assert str(run) in said
    (run.parent / "moved").rename(payload)
    assert written(run) == before


def test_a_checkpoint_of_another_model_is_refused(copied, capsys):
    """As after a copy between folders: the manifest is sound, but it is not this run's."""
    run = copied(8)
    manifest = checkpoint.manifest_of(run, 8)
    manifest["leaves"]["params.local.moe.router_bias"]["shape"] = [2, 6]
    manifest["digest"] = digest_of(manifest["leaves"])
    (run / "checkpoints/8/manifest.json").write_text(checkpoint.json.dumps(manifest))
    said = refused(capsys)
    assert "params.local.moe.router_bias is float32[2, 6], this model has float32[2, 5]" in said


def test_two_processes_never_train_one_run(copied, capsys):
    run = copied(8)
    with folder_lock(run):
        said = refused(capsys)
    assert "is locked by process" in said


# --- the order of data ----------------------------------------------------------------------------


def test_without_a_mixture_cells_weigh_what_they_hold(copied):
    run = copied()
    config = resolve(RECIPE)
    prepared = prepare(config.data.corpus, run.parents[1], Silent())
    store = TokenStore.open(prepared.store)
    (phase,) = order_of(config, store).phases
    assert dict(phase.weights) == {"text": config.data.table_lanes}
    # Twelve steps see more than one epoch.
    assert 12 * config.train.tokens_per_step < store.units["text"] * store.unit_tokens


def test_a_run_that_simulates_a_larger_one_repeats_its_cells_as_often(copied):
    run = copied()
    config = resolve(RECIPE)
    prepared = prepare(config.data.corpus, run.parents[1], Silent())
    budget = config.train.num_steps * config.train.tokens_per_step
    held = TokenStore.open(prepared.store).units["text"]
    larger = replace(config, data=replace(config.data, simulated_tokens=4 * budget))
    store = store_of(larger, prepared.store)
    assert store.units["text"] == held // 4
    whole = mix_of(config, TokenStore.open(prepared.store)).epochs["text"][0]
    assert mix_of(larger, store).epochs["text"][0] == pytest.approx(whole * held / (held // 4))
    smaller = replace(config, data=replace(config.data, simulated_tokens=budget - 1))
    with pytest.raises(ValueError, match="simulate a run that is at least as long"):
        store_of(smaller, prepared.store)


# --- between the parts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "scored", "due"), [(4, False, [8]), (4, True, []), (5, False, []), (0, False, [])]
)
def test_scores_that_a_kill_after_a_checkpoint_cost_are_made_up_for(
    copied, monkeypatch, capsys, every, scored, due
):
    run, found = copied(8), []
    if scored:
        (run / "evals").mkdir()
        (run / "evals/8.json").write_text("{}")

    def trained(config, step, state, batch_at, **_):
        return loop.Outcome(
            state=state, num_steps=4, first_loss_s=1.0, seconds=2.0, tokens_per_s=3.0
        )

    evaluator = lambda *_: lambda state: found.append(int(state.step))  # noqa: E731
    monkeypatch.setattr("shoal.jobs.train.evaluator", evaluator)
    monkeypatch.setattr(loop, "train", trained)
    assert main(["train", RECIPE, "--set", f"eval.every_steps={every}"]) == 0
    assert found == due


def test_a_record_that_is_not_the_checkpoints_is_said_and_stays_on_record(
    copied, monkeypatch, capsys
):
    run = copied(8)
    metrics = run / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"step": 3,', '"step": 3, ', 1))

    def trained(config, step, state, batch_at, **_):
        return loop.Outcome(
            state=state, num_steps=4, first_loss_s=1.0, seconds=2.0, tokens_per_s=3.0
        )

    monkeypatch.setattr(loop, "train", trained)
    assert main(["train", RECIPE]) == 0
    assert "the record differs from what checkpoint 8 saw" in capsys.readouterr().err
    assert kinds(run)[-3:] == ["resume", "mismatch", "finish"]


def test_a_run_killed_after_its_last_checkpoint_is_finished_by_the_next_call(copied, capsys):
    run = copied()
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    assert kinds(run)[-1] == "finish"
    (run / "events.jsonl").write_text("".join(lines[:-1]))
    (run / "checkpoints/.4.tmp-gone").mkdir()
    assert main(["train", RECIPE, "--json"]) == 0
    assert kinds(run)[-1] == "finish"
    assert '"tokens_per_s": null' in capsys.readouterr().out
    assert verify_chain(run) == []
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["12", "8"]
    assert main(["train", RECIPE]) == 0
    assert kinds(run).count("finish") == 1
