"""Stage `benchmarks`: items of files, harness tasks and own held-out sets; coverage by content."""

import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import zstandard

from data.texts import Texts, corpus_of
from shoal.core.artifact import Artifact
from shoal.core.progress import Silent
from shoal.data import benchmarks as module
from shoal.data import table
from shoal.data.benchmarks import TABLE, benchmarks, read_items, uncovered
from shoal.data.normalize import document_id
from shoal.data.settings import Benchmark, DecontamConfig

LINES = [
    {"id": "q-1", "question": "How far?", "choices": ["near", "far away"], "answer": "far away"},
    {"question": "Who sings?", "context": "A bird.", "answer": 2},
]


def _file(path: Path, data: str) -> Path:
    raw = data.encode()
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    elif path.suffix == ".zst":
        raw = zstandard.compress(raw)
    path.write_bytes(raw)
    return path


def _jsonl(path: Path, lines: list[Any] | None = None) -> Path:
    return _file(path, "\n".join(json.dumps(line) for line in lines or LINES) + "\n\n")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_an_item_is_its_strings_and_each_that_is_no_answer_alone(tmp_path: Path, name: str):
    path = _jsonl(tmp_path / name)
    assert read_items(Benchmark(name="exam", path=str(path))) == [
        ("exam", "1:q-1", "", "How far?\nnear\nfar away\nfar away", False),
        ("exam", "1:q-1", "question", "How far?", False),
        ("exam", "2", "", "Who sings?\nA bird.", False),
        ("exam", "2", "question", "Who sings?", False),
        ("exam", "2", "context", "A bird.", False),
    ]


def test_chosen_fields_are_taken_in_their_order(tmp_path: Path):
    path = _jsonl(tmp_path / "a.jsonl", [LINES[0]])
    chosen = Benchmark(name="exam", path=str(path), fields=("answer", "question"))
    assert [row[2:4] for row in read_items(chosen)] == [
        ("", "far away\nHow far?"),
        ("question", "How far?"),
    ]
    missing = Benchmark(name="exam", path=str(path), fields=("prompt",))
    with pytest.raises(ValueError, match=r"item 1:q-1: not all of fields=\['prompt'\]"):
        read_items(missing)


def test_a_line_of_text_is_an_item(tmp_path: Path):
    path = _file(tmp_path / "a.txt", "first\n\n  second one \n")
    rows = read_items(Benchmark(name="sayings", form="text", path=str(path)))
    assert [row[1:4] for row in rows] == [("1", "", "first"), ("3", "", "second one")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"q": "fine"}\n{"q": ', "line 2 is no JSON"),
        ("a.jsonl", b"\xff\xfe", "cannot be read after line 1"),
        ("a.jsonl.gz", b"no gzip", "cannot be read after line 0"),
        ("a.jsonl.gz", gzip.compress(b'{"q": "fine and long"}\n' * 99)[:-9], "cannot be read"),
        ("a.jsonl.zst", b"no zstd file", "cannot be read after line 0"),
        ("a.jsonl", b'{"q": 1}\n', "no text"),
    ],
    ids=["json", "utf8", "gzip", "cut", "zstd", "empty"],
)
def test_a_broken_file_is_named_with_the_line(tmp_path: Path, name: str, data: bytes, message: str):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_items(Benchmark(name="exam", path=str(path)))


def test_a_line_above_the_limit_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LINE_LIMIT_BYTES", 100)
    path = _jsonl(tmp_path / "a.jsonl.zst", [{"q": "fine"}, {"q": "x" * 200}])
    with pytest.raises(ValueError, match="line 2: a line above 100 bytes"):
        read_items(Benchmark(name="exam", path=str(path)))


def _stage(tmp_path: Path, *listed: Benchmark) -> Artifact:
    split = Texts({"web": ["training"]}, {"domains": {"letters": ["a letter"]}})
    config = DecontamConfig(benchmarks=listed)
    return benchmarks(tmp_path / "root", corpus_of("web"), config, split, {}, Silent())


def test_the_table_holds_own_sets_and_every_benchmark(tmp_path: Path):
    path = _jsonl(tmp_path / "a.jsonl")
    made = _stage(tmp_path, Benchmark(name="exam", path=str(path)))
    rows = table.read(made.path / TABLE).to_pylist()
    assert rows[0] == {
        "benchmark": "domains/letters",
        "item": document_id("a letter"),
        "part": "",
        "text": "a letter",
        "own": True,
    }
    assert [row["own"] for row in rows] == [True] + [False] * 5
    assert made.facts["benchmarks"] == {
        "domains/letters": {"items": 1, "bytes": 8},
        "exam": {"items": 2, "bytes": 31 + 18},
    }
    assert made.facts["digests"] == {"exam": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_another_file_is_another_artifact_and_a_pinned_one_must_be_the_same(tmp_path: Path):
    path = _jsonl(tmp_path / "a.jsonl")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    pinned = Benchmark(name="exam", path=str(path), sha256=digest)
    free = Benchmark(name="exam", path=str(path))
    first = _stage(tmp_path, free)
    assert _stage(tmp_path, pinned).reused
    _jsonl(path, [LINES[1]])
    assert _stage(tmp_path, free).digest != first.digest
    with pytest.raises(ValueError, match="has changed"):
        _stage(tmp_path, pinned)
    path.unlink()
    with pytest.raises(ValueError, match="is no file"):
        _stage(tmp_path, free)


class _Task:
    """As `lm_eval.api.task.Task` 0.4.13, as far as it is read."""

    def __init__(self, documents: list[dict[str, Any]], split: str) -> None:
        self.documents = documents
        self.split = split

    def __getattr__(self, name: str) -> Any:
        if name.startswith("has_"):
            return lambda: name == f"has_{self.split}_docs"
        if name == f"{self.split}_docs":
            return lambda: iter(self.documents)
        raise AttributeError(name)

    def doc_to_text(self, document: dict[str, Any]) -> str | int:
        return f"Question: {document['question']}\nAnswer:" if "question" in document else 0


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A module with the interface of lm-eval 0.4.13; yields what managers were asked for."""
    asked: list[Any] = []

    class TaskManager:
        all_tasks = ("exam", "group")

        def __init__(self, include_path: str | None = None) -> None:
            asked.append(include_path)

        def load(self, names: list[str]) -> dict[str, Any]:
            one = _Task([LINES[0], {"choices": ["It rains", "It snows"]}], "test")
            two = _Task([LINES[1]], "validation")
            return {"tasks": {"exam": one} if names == ["exam"] else {"b": two, "a": one}}

    tasks = ModuleType("lm_eval.tasks")
    tasks.TaskManager = TaskManager
    monkeypatch.setitem(sys.modules, "lm_eval", ModuleType("lm_eval"))
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", tasks)
    return asked


def test_a_harness_task_gives_its_documents_and_prompts(harness: list[Any]):
    rows = read_items(Benchmark(name="exam", form="lm-eval"))
    assert [row[1:4] for row in rows] == [
        ("0", "", "How far?\nnear\nfar away\nfar away"),
        ("0", "question", "How far?"),
        ("0", "prompt", "Question: How far?\nAnswer:"),
        ("1", "", "It rains\nIt snows"),
    ]
    group = read_items(Benchmark(name="group", form="lm-eval", path="more"))
    assert list(dict.fromkeys(row[1] for row in group)) == ["a:0", "a:1", "b:0"]
    assert harness == [None, "more"]
    with pytest.raises(ValueError, match="no such task"):
        read_items(Benchmark(name="other", form="lm-eval"))


def test_without_the_harness_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ValueError, match="pip install lm-eval"):
        read_items(Benchmark(name="exam", form="lm-eval"))


def test_a_run_is_covered_by_content_whatever_the_name(tmp_path: Path):
    path = _jsonl(tmp_path / "a.jsonl")
    made = _stage(tmp_path, Benchmark(name="exam", path=str(path)))
    same = Benchmark(name="renamed", path=str(_jsonl(tmp_path / "b.jsonl")))
    part = Benchmark(name="part", path=str(_jsonl(tmp_path / "c.jsonl.gz", [LINES[1]])))
    more = [*LINES, {"question": "What else?"}]
    grown = Benchmark(name="grown", path=str(_jsonl(tmp_path / "d.jsonl", more)))
    assert uncovered(made, [same, part]) == []
    [message] = uncovered(made, [same, grown])
    assert message.startswith("evaluation grown: 1 of 3 items are not in the decontamination")
    assert "allow_uncovered=true" in message
    assert len(uncovered(None, [same])) == 1
    assert uncovered(None, []) == []
