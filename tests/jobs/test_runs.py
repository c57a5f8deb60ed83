"""Run folders: found by name or path, and what may differ when a run goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.artifact import Artifact
from shoal.core.config import fingerprint, leaves, override
from shoal.core.files import home
from shoal.core.record import Record, read_events, verify_chain
from shoal.jobs import runs
from shoal.jobs.prepare import Prepared
from shoal.jobs.runs import begin, check_corpus, find_run, new_environment, read_config, run_folder
from shoal.recipes.quickstart import quickstart
from shoal.train.derive import derive


def prepared_with(digest="a" * 64, name="corpus"):
    made = Artifact(name=name, digest=digest, path=Path(), manifest={}, reused=False)
    return Prepared(
        corpus=made,
        benchmarks=made,
        store=Path(),
        tokenizer_path=Path(),
        heldout={},
        kinds={},
        facts={"corpus": f"{name}@{digest[:12]}", "sources": []},
        reused={},
    )


CONFIG = quickstart()


def start(folder, config=CONFIG, *, change=None, prepared=None):
    folder.mkdir(parents=True, exist_ok=True)
    with Record.open(folder) as record:
        begin(folder, config, prepared or prepared_with(), record, change=change)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    start(folder)
    return folder


def kinds(folder):
    return [event["kind"] for event in read_events(folder)]


# --- where a run is -------------------------------------------------------------------------------


def test_a_name_is_a_folder_under_home_and_a_path_is_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder("first") == home() / "runs" / "first"
    assert run_folder("some/where") == Path("some/where")
    assert run_folder(str(tmp_path / "r")) == tmp_path / "r"
    assert run_folder("./first") == Path("./first")
    assert run_folder(".") == Path()


def test_a_folder_that_happens_to_have_a_runs_name_is_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert run_folder("quickstart") == home() / "runs" / "quickstart"
    start(tmp_path / "quickstart")
    assert run_folder("quickstart") == Path("quickstart")
    start(home() / "runs" / "quickstart")
    assert run_folder("quickstart") == home() / "runs" / "quickstart"


def test_a_run_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(
        ValueError, match=r"no run 'frist' .* there is none yet; `shoal quickstart`"
    ):
        find_run("frist")
    for name in ("second", "first"):
        start(home() / "runs" / name)
    with pytest.raises(ValueError, match=r"no run 'frist' .*there are: first, second"):
        find_run("frist")
    assert find_run("first") == home() / "runs" / "first"


# --- a new run ------------------------------------------------------------------------------------


def test_a_new_run_writes_what_it_is_and_says_that_it_started(run):
    content = json.loads((run / "run.json").read_text())
    assert content.keys() == {
        "name", "fingerprint", "config", "notes", "environment", "created", "corpus", "derived",
        "parameters",
    }  # fmt: skip
    assert content["name"] == "run"
    assert content["fingerprint"] == fingerprint(CONFIG)
    assert content["notes"] == dict(CONFIG.notes)
    assert content["derived"] == derive(CONFIG)
    assert content["parameters"]["tensors"] > content["parameters"]["active"] > 0
    assert content["environment"]["jax"]
    assert content["environment"]["cores"] >= 1
    assert json.loads((run / "corpus.json").read_text())["corpus"] == "corpus@aaaaaaaaaaaa"
    (started,) = read_events(run)
    assert started["kind"] == "start"
    assert started["fingerprint"] == fingerprint(CONFIG)
    assert started["corpus"] == "corpus@aaaaaaaaaaaa"
    assert read_config(run) == CONFIG
    assert new_environment(run) == {}


def test_a_run_that_was_killed_before_it_said_that_it_started_says_so_later(run):
    (run / "events.jsonl").unlink()
    start(run)
    assert kinds(run) == ["start"]


def test_the_same_again_changes_nothing(run):
    before = (run / "run.json").read_bytes()
    start(run)
    assert (run / "run.json").read_bytes() == before
    assert kinds(run) == ["start"]


# --- what may differ ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("train.seed=7", f"train.seed was {CONFIG.train.seed}, is 7"),
        ("train.num_steps=71", f"train.num_steps was {CONFIG.train.num_steps}, is 71"),
        ("optimizer.muon_lr=0.07", f"optimizer.muon_lr was {CONFIG.optimizer.muon_lr}, is 0.07"),
        ("data.corpus.heldout.key=5", "data.corpus.heldout.key was 0, is 5"),
    ],
)
def test_another_identity_is_refused_with_the_path_and_the_way_out(run, assignment, says):
    before = (run / "run.json").read_bytes()
    with pytest.raises(ValueError, match="was started with another config: ") as refused:
        start(run, override(CONFIG, [assignment]), change="however good the reason")
    assert says in str(refused.value)
    assert "--run NAME" in str(refused.value)
    assert (run / "run.json").read_bytes() == before
    assert kinds(run) == ["start"]


def test_every_value_of_identity_is_held(run):
    config = read_config(run)
    paths = [leaf.path for leaf in leaves(config) if leaf.kind == "identity"]
    assert {"model.embed_dim", "data.mix.size_exponent", "eval.sequence_tokens"} <= set(paths)
    mix = replace(config.data.mix, size_exponent=0.25)
    changed = replace(config, data=replace(config.data, mix=mix))
    with pytest.raises(ValueError, match=r"data\.mix\.size_exponent was"):
        start(run, changed)


def test_many_differences_are_named_up_to_four(run):
    given = ["model.num_layers=8", "model.embed_dim=64", "model.window=32", "train.seed=3",
             "data.seed=4", "optimizer.decay=0.1"]  # fmt: skip
    with pytest.raises(ValueError, match="and 2 more;"):
        start(run, override(CONFIG, given))


def test_other_numerics_need_a_reason_which_is_recorded(run):
    changed = override(CONFIG, ["model.remat=true", "train.accumulation=2"])
    with pytest.raises(ValueError, match="goes on with other numerics: ") as refused:
        start(run, changed)
    said = str(refused.value)
    assert "model.remat was False, is True" in said
    assert "train.accumulation was 1, is 2" in said
    assert "--change" in said
    assert kinds(run) == ["start"]
    start(run, changed, change="memory ran out")
    event = read_events(run)[-1]
    assert event["kind"] == "change"
    assert event["why"] == "memory ran out"
    assert {d["path"]: (d["before"], d["after"], d["kind"]) for d in event["differences"]} == {
        "model.remat": (False, True, "numerics"),
        "train.accumulation": (1, 2, "numerics"),
    }
    assert read_config(run) == changed
    start(run, changed)
    with pytest.raises(ValueError, match=r"model\.remat was True, is False"):
        start(run)
    assert verify_chain(run) == []


def test_another_placement_is_free_and_recorded(run):
    created = json.loads((run / "run.json").read_text())["created"]
    changed = override(CONFIG, ["train.checkpoint_every_steps=7"])
    start(run, changed)
    event = read_events(run)[-1]
    assert (event["kind"], event["why"]) == ("change", None)
    assert [d["path"] for d in event["differences"]] == ["train.checkpoint_every_steps"]
    assert read_config(run) == changed
    content = json.loads((run / "run.json").read_text())
    assert content["created"] == created
    assert content["fingerprint"] == fingerprint(CONFIG)


def test_a_change_that_is_killed_while_it_is_told_is_told_again(run, monkeypatch):
    """The event comes before the file: never a config that no event explains."""

    def kill(*_, **__):
        raise KeyboardInterrupt

    changed = override(CONFIG, ["model.remat=true"])
    with monkeypatch.context() as patched:
        patched.setattr(runs, "_write", kill)
        with pytest.raises(KeyboardInterrupt):
            start(run, changed, change="why")
    assert read_config(run) == CONFIG
    start(run, changed, change="why")
    assert kinds(run) == ["start", "change", "change"]
    assert read_config(run) == changed


def test_notes_may_differ_without_a_word(run):
    start(run, replace(CONFIG, notes={}))
    assert kinds(run) == ["start"]


def test_another_corpus_of_the_same_settings_is_refused(run):
    with pytest.raises(ValueError, match=r"trained on corpus corpus@a{12}, .* make corpus@b{12}"):
        start(run, prepared=prepared_with("b" * 64))
    start(run, prepared=prepared_with(name="renamed"))
    with pytest.raises(ValueError, match="a stage of the corpus has changed since"):
        check_corpus(run, prepared_with("b" * 64))


def test_another_environment_is_seen(run, monkeypatch):
    real = runs.environment()
    monkeypatch.setattr(runs, "environment", lambda: {**real, "jax": "0.0.1", "cores": 99})
    assert new_environment(run) == {"jax": "0.0.1", "cores": 99}


# --- damaged --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"config": 3}', '{"config": {"name": 3}}', "{}", '{"config": {"x": 1}}',
     "\udcff"],
)  # fmt: skip
def test_a_damaged_run_file_is_refused_by_name(run, text):
    (run / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"run\.json cannot be read .*restore it from a copy"):
        start(run)


def test_a_record_without_its_run_file_is_never_a_new_run(run):
    (run / "run.json").unlink()
    with pytest.raises(ValueError, match=r"has a record but no run\.json; restore it or remove"):
        start(run)
    assert kinds(run) == ["start"]
