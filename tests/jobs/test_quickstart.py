"""Job `quickstart`: what it makes of the user's own text, and what it says at the end."""

import json
from pathlib import Path

import pytest

from journey.tiny import write_text
from shoal.cli import main
from shoal.core.config import fingerprint, origin
from shoal.jobs import quickstart as job
from shoal.jobs.quickstart import OWN_TEXT, configure
from shoal.recipes.quickstart import quickstart as recipe


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "My Notes")


# --- configure ------------------------------------------------------------------------------------


def test_without_own_text_it_is_the_recipe():
    assert fingerprint(configure(None, ())) == fingerprint(recipe())
    assert configure(None, ["train.num_steps=9"]).train.num_steps == 9


def test_own_text_replaces_the_corpus_and_nothing_else(text):
    config, base = configure(text, ()), recipe()
    assert config.data.corpus.sources[0].archive.path == str(text)
    assert config.data.mix.rule == "natural"
    assert config.data.corpus.unit_tokens == base.data.corpus.unit_tokens
    for part in ("model", "optimizer", "train", "eval"):
        assert getattr(config, part) == getattr(base, part)


def test_another_text_is_another_run_and_the_same_text_the_same(text, tmp_path):
    name = configure(text, ()).name
    assert name.startswith("quickstart-my-notes-")
    assert configure(text, ()).name == name
    moved = text.rename(tmp_path / "elsewhere")
    assert fingerprint(configure(moved.rename(text), ())) == fingerprint(configure(text, ()))
    with (text / "00.txt").open("a") as file:
        file.write("one more line\n")
    assert configure(text, ()).name != name


def test_settings_apply_to_own_text_too(text):
    given = ["train.num_steps=9", "data.corpus.tokenizer.vocab_size=5000", "name=mine"]
    config = configure(text, given)
    assert config.train.num_steps == 9
    assert config.model.vocab_size == config.data.corpus.tokenizer.vocab_size == 5000
    assert config.name == "mine"
    assert config.notes["name"] == config.notes["train.num_steps"] == "given: set for this run"
    assert origin(config.notes, "data.corpus.sources.0.license") == OWN_TEXT


# --- bad text -------------------------------------------------------------------------------------


def _bad_texts(tmp_path: Path) -> dict[str, Path]:
    for name in ("empty", "broken", "hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "a.txt").write_bytes(b"caf\xe9 \xff" * 9000)
    (tmp_path / "hidden" / ".a.txt").write_text("words " * 9000)
    (tmp_path / "short.txt").write_text("too little")
    (tmp_path / "field.jsonl").write_text(json.dumps({"body": "words " * 9000}) + "\n")
    (tmp_path / "cut.jsonl").write_text('{"text": "wor')
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    (tmp_path / "list.jsonl").write_text("[1, 2]\n")
    return {path.name: path for path in tmp_path.iterdir()} | {"absent": tmp_path / "absent"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "is not there; give a folder of text files or a .jsonl file"),
        ("empty", "holds 0 bytes of UTF-8 text"),
        ("broken", "holds 0 bytes of UTF-8 text"),
        ("hidden", "hidden files and links are not read"),
        ("short.txt", "holds 10 bytes of UTF-8 text, fewer than"),
        ("field.jsonl", "line 1"),
        ("cut.jsonl", "line 1"),
        ("bytes.jsonl", "holds 0 bytes of UTF-8 text"),
        ("list.jsonl", "line 1"),
    ],
)
def test_text_that_is_none_is_one_line_and_exit_2(tmp_path, capsys, name, says):
    path = _bad_texts(tmp_path)[name]
    assert main(["quickstart", "--text", str(path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert str(path) in said[0]
    assert says in said[0]


# --- the end --------------------------------------------------------------------------------------

MACRO = {"bpb": 2.0, "xz_bpb": 2.5, "zstd_bpb": 2.6, "loss": 4.0}
SCORED = {"sources": {"domains": {"text": MACRO}, "macro": MACRO}}
KEYS = ["run", "report", "macro_bpb", "xz_bpb", "first_loss_s", "total_s", "peak_rss_gb",
        "tokens_per_s", "reused"]  # fmt: skip


@pytest.fixture
def played(monkeypatch, text):
    """The job with its long parts played: training, evaluation, the page."""
    table = {"sets": SCORED, "reused": False, "evaluations": 0}

    def train(config, folder, prepared, progress, *, seal):
        before = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        table["evaluations"] += not before
        done = {"step": 12, "reused": table["reused"], "first_loss_s": 3.0, "tokens_per_s": 99.0}
        return {**done, "evaluated_before": before}, table["sets"]

    monkeypatch.setattr(job, "trained", train)
    monkeypatch.setattr(job, "write_pages", lambda run: {"report": str(run / "report.html")})
    return table


WORDS = ("--set", "data.corpus.tokenizer.vocab_size=400", "--set", "data.corpus.unit_tokens=256")


def test_the_last_line_is_one_object_with_what_a_script_wants(played, text, capsys):
    assert main(["quickstart", "--text", str(text), "--json", *WORDS]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(KEYS) <= found.keys()
    assert (found["macro_bpb"], found["xz_bpb"]) == (2.0, 2.5)
    assert (found["first_loss_s"], found["tokens_per_s"]) == (3.0, 99.0)
    assert found["reused"] is False
    assert Path(found["report"]).parent == Path(found["run"])


def test_a_second_time_is_reused_only_if_every_part_was(played, text, capsys):
    words = ["quickstart", "--text", str(text), "--json", *WORDS]
    main(words)
    main(words)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["reused"] for line in lines] == [False, False]
    played["reused"] = True
    main(words)
    assert json.loads(capsys.readouterr().out)["reused"] is True
    assert played["evaluations"] == 1
    main([*words, "--set", "data.corpus.unit_tokens=512"])
    assert json.loads(capsys.readouterr().out)["reused"] is False


def test_without_held_out_text_there_are_no_scores_and_no_error(played, text, capsys):
    played["sets"] = {}
    assert main(["quickstart", "--text", str(text), "--json", *WORDS]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["macro_bpb"], found["xz_bpb"], found["sets"]) == (None, None, {})


def test_without_json_the_end_is_said_in_lines(played, text, capsys):
    assert main(["quickstart", "--text", str(text), *WORDS]) == 0
    said = capsys.readouterr().out
    assert "sources: 2.000 bits per byte over 1 domains (xz -9e 2.500, zstd -19 2.600)" in said
    assert "report.html" in said
