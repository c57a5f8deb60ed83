import errno
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from shoal import __version__
from shoal.cli import build_parser, main
from shoal.cli.results import as_lines, flat
from shoal.cli.verbs import VERBS


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch):
    """Put a function in the place of a job's, for one test."""

    def put(module: str, name: str, function: Any) -> None:
        fake = types.ModuleType(f"shoal.jobs.{module}")
        setattr(fake, name, function)
        monkeypatch.setitem(sys.modules, f"shoal.jobs.{module}", fake)

    return put


def _raise(error: BaseException):
    def job(*_: Any, **__: Any) -> None:
        raise error

    return job


MADE = {"engine": None, "permissive_only": False, "as_found": False}
ALONE = {"coordinator": None, "num_processes": None, "process_id": None}
CALLS = [
    ("quickstart", "quickstart", "quickstart --text notes --set train.seed=1",
     (), {"text": Path("notes"), "overrides": ["train.seed=1"], "json": True}),
    ("show", "show", "show d512 --set a.b=c --set d=e", ("d512", ["a.b=c", "d=e"]), {}),
    ("count", "count", "count flagship", ("flagship", []), {}),
    ("prepare", "prepare_recipe", "prepare my.py:mine", ("my.py:mine", []), MADE),
    ("prepare", "prepare_recipe",
     "prepare corpus-large --engine ray --permissive-only --as-found --set near.bands=9",
     ("corpus-large", ["near.bands=9"]),
     {"engine": "ray", "permissive_only": True, "as_found": True}),
    ("audit", "audit", "audit corpus --out page.html", ("corpus", Path("page.html")), {}),
    ("planted", "planted", "audit --planted", (), {}),
    ("explain", "explain", "explain corpus owt/12", ("corpus", "owt/12"), {}),
    ("label", "label_corpus", "label c --endpoint http://h/v1 --model m --count 9 --out f",
     ("c",), {"endpoint": "http://h/v1", "model": "m", "count": 9, "form": "rating", "gguf": None,
              "out": Path("f")}),
    ("contamination", "contamination", "contamination corpus a.jsonl b.txt",
     ("corpus", ["a.jsonl", "b.txt"]), {}),
    ("train", "train", "train d512 --run r --change why", ("d512", [], "r", "why"), ALONE),
    ("train", "train", "train d512 --coordinator a:1 --num-processes 2 --process-id 1",
     ("d512", [], None, None), {"coordinator": "a:1", "num_processes": 2, "process_id": 1}),
    ("plan", "plan", "plan flagship --chips 704",
     ("flagship", []), {"chips": 704, "chip": "gb200", "mesh": [], "search": False}),
    ("plan", "plan",
     ("plan d512 --chips 8 --chip h100 --mesh expert=4 --mesh data=-1 --search --compile --step-s 2"
     " --mfu 25% --deadline 2027-01-31 --start 2026-12-01 --lost 25% --at-step 9"
     " --failures-per-chip-year 0.1 --restart-minutes 20 --price 3 --power 1200 --set a=1"),
     ("d512", ["a=1"]),
     {"chips": 8, "chip": "h100", "mesh": ["expert=4", "data=-1"], "search": True, "compile": True,
      "step_s": 2.0, "mfu": "25%", "deadline": "2027-01-31", "start": "2026-12-01", "lost": "25%",
      "at_step": 9, "failures_per_chip_year": 0.1, "restart_minutes": 20.0, "price": 3.0,
      "power": 1200.0}),
    ("launch", "launch", "launch slurm d512 --nodes 2 --gpus-per-node 8",
     ("slurm", "d512", []),
     {"nodes": 2, "gpus_per_node": 8, "run": None, "name": None, "out": None}),
    ("launch", "launch",
     ("launch slurm d512 --nodes 2 --gpus-per-node 8 --run r --name n --time 1:00 --partition p"
     " --account a --image i --gpu H100 --home /h --restarts 3 --out f --set a=1"),
     ("slurm", "d512", ["a=1"]),
     {"nodes": 2, "gpus_per_node": 8, "run": "r", "name": "n", "out": Path("f"), "time": "1:00",
      "partition": "p", "account": "a", "image": "i", "gpu": "H100", "home": "/h", "restarts": 3}),
    ("cutover", "cutover", "cutover r --set moe.transport=ragged --steps 9 --step 40",
     ("r", ["moe.transport=ragged"]), {"steps": 9, "step": 40}),
    ("probe", "probe", "probe r --set a=1", ("r", ["a=1"]), {}),
    ("evaluate", "evaluate_run", "eval r --step 40", ("r", 40), {}),
    ("report", "report", "report r", ("r",), {}),
    ("generate", "generate", "generate r --prompt 'To be' --tokens 5 --temperature 0 --seed 3",
     ("r", "To be", 5, 0.0, 3), {}),
    ("hash", "hash_run", "hash r", ("r",), {}),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "line", "args", "kwargs"), CALLS)
def test_each_verb_calls_its_job_with_what_was_given(module, name, line, args, kwargs, job):
    import shlex

    calls = []

    def record(*given: Any, **named: Any) -> dict[str, str]:
        calls.append((given, named))
        return {"go": True}

    job(module, name, record)
    assert main([*shlex.split(line), "--json"]) == 0
    assert calls == [(args, kwargs)]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_each_verb_shows_an_example_that_it_understands(verb, capsys):
    import shlex

    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    example = VERBS[verb].example
    assert " ".join(f"example: {example}".split()) in " ".join(capsys.readouterr().out.split())
    given = build_parser().parse_args(shlex.split(example)[1:])
    assert given.verb == verb


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"shoal {__version__}\n"


@pytest.mark.parametrize("words", [[], ["trian"], ["show"], ["show", "d512", "--sett", "a=b"]])
def test_a_wrong_command_line_exits_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "error" in capsys.readouterr().err


def test_with_json_stdout_is_one_object_whatever_the_job_says(job, capsys):
    def chatty(recipe: str, overrides: list[str]) -> dict[str, Any]:
        print("working")
        return {"active": 5, "name": "é"}

    job("count", "count", chatty)
    assert main(["count", "d512", "--json"]) == 0
    said = capsys.readouterr()
    assert said.out == '{"active": 5, "name": "é"}\n'
    assert said.err == "working\n"


def test_a_users_error_is_one_line_and_exit_2(job, capsys):
    job("show", "show", _raise(ValueError("unknown recipe 'd51'; nearest: d512")))
    assert main(["show", "d51"]) == 2
    said = capsys.readouterr()
    assert said.err == "error: unknown recipe 'd51'; nearest: d512\n"
    assert said.out == ""


def test_debug_shows_where_a_users_error_came_from(job, capsys, monkeypatch):
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    job("show", "show", _raise(ValueError("no")))
    assert main(["show", "d512"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_exit_2(job, capsys):
    full = OSError(errno.ENOSPC, "No space left on device", "runs/r/metrics.jsonl")
    job("train", "train", _raise(full))
    assert main(["train", "d512"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "No space left" in said
    assert "metrics.jsonl could not be written" in said
    assert "MB are free there; make room" in said
    assert len(said.splitlines()) == 1


def test_our_own_mistakes_are_not_hidden(job):
    job("show", "show", _raise(AssertionError("ours")))
    with pytest.raises(AssertionError, match="ours"):
        main(["show", "d512"])
    job("show", "show", _raise(FileNotFoundError(errno.ENOENT, "No such file", "x")))
    with pytest.raises(FileNotFoundError):
        main(["show", "d512"])


def test_an_interrupt_says_how_to_go_on_and_exits_130(job, capsys):
    job("quickstart", "quickstart", _raise(KeyboardInterrupt()))
    assert main(["quickstart", "--text", "my notes"]) == 130
    said = capsys.readouterr().err
    assert "shoal quickstart --text 'my notes'" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("go", [True, False])
def test_a_no_go_is_an_exit_status_that_scripts_can_read(go, job):
    job("cutover", "cutover", lambda *_: {"go": go})
    assert main(["cutover", "r", "--set", "a=1", "--json"]) == (0 if go else 1)


def test_a_closed_pipe_ends_quietly(repository: Path):
    program = (
        "import sys, types; from shoal import cli\n"
        "fake = types.ModuleType('shoal.jobs.report')\n"
        "fake.report = lambda run: {'x': 'y' * 1_000_000}\n"
        "sys.modules['shoal.jobs.report'] = fake\n"
        "sys.exit(cli.main(['report', 'r']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    said = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert said.stderr == b""
    assert said.returncode == 141


def test_results_read_as_the_paths_that_set_takes():
    result = {"model": {"num_heads": 4}, "data": {"sources": [{"name": "web"}, {"name": "law"}]},
              "stages": [1, 2], "resumed": True, "rate": None, "empty": {}}  # fmt: skip
    assert flat(result) == [
        ("model.num_heads", 4),
        ("data.sources.0.name", "web"),
        ("data.sources.1.name", "law"),
        ("stages", [1, 2]),
        ("resumed", True),
        ("rate", None),
        ("empty", {}),
    ]
    lines = as_lines({"tensors": 535_477_106_688, "ok": False}).splitlines()
    assert lines == ["tensors  535,477,106,688", "ok       false"]


def test_scores_read_as_a_table_of_domains_beside_the_compressors(job, capsys):
    row = {"bpb": 2.0, "xz_bpb": 2.5, "zstd_bpb": 2.61, "loss": 4.0}
    sets = {"sources": {"domains": {"web": row, "law": row | {"bpb": 1.5}}, "macro": row}}
    job("evaluate", "evaluate_run", lambda run, step: {"step": 9, "tokens": 1800, "sets": sets})
    assert main(["eval", "r"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["step", "9,", "1,800", "tokens;", "bits", "per", "byte"]
    assert lines[2:] == [
        ["sources", "model", "xz", "zstd"],
        ["web", "2.000", "2.500", "2.610"],
        ["law", "1.500", "2.500", "2.610"],
        ["macro", "mean", "2.000", "2.500", "2.610"],
    ]


def test_generated_text_follows_its_prompt(job, capsys):
    job("generate", "generate", lambda *_: {"prompt": "To be", "text": " or not"})
    assert main(["generate", "r", "--prompt", "To be"]) == 0
    assert capsys.readouterr().out == "To be or not\n"


@pytest.mark.parametrize("verb", ["show", "count"])
def test_real_recipes_are_shown_and_counted(verb, capsys):
    assert main([verb, "quickstart"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 5
    assert main([verb, "quikstart"]) == 2
    assert "quickstart" in capsys.readouterr().err


def test_json_stays_readable_by_machines(job, capsys):
    job("hash", "hash_run", lambda run: {"hash": "ab", "step": 3})
    assert main(["hash", "r", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"hash": "ab", "step": 3}


@pytest.mark.parametrize("words", [["audit"], ["audit", "corpus", "--planted"]])
def test_an_audit_is_of_a_corpus_or_of_planted_text(words, capsys):
    assert main(words) == 2
    assert "say which corpus, or --planted" in capsys.readouterr().err
