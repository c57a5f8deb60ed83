"""`shoal contamination`: of named evaluations, what stands in the text that is trained on."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.texts import corpus_of
from shoal.core.artifact import build
from shoal.core.files import home, write_atomic
from shoal.core.progress import Silent
from shoal.data.archive import content_digest
from shoal.data.benchmarks import benchmarks
from shoal.data.config import Archive, CorpusConfig, HeldoutConfig, Reader
from shoal.data.decontam import contamination as decontaminate
from shoal.data.dedup import TABLE as DUPLICATES
from shoal.data.dedup import duplicates
from shoal.data.heldout import Unique, heldout
from shoal.data.manifest import CORPUS
from shoal.data.normalize import documents
from shoal.data.settings import Benchmark, DecontamConfig
from shoal.data.source import source_artifact
from shoal.data.training import Split
from shoal.jobs.contamination import contamination, render


def _words(seed: int, count: int = 40) -> str:
    drawn = random.Random(seed)
    return " ".join(f"w{drawn.randrange(10**6)}" for _ in range(count))


def _config(folder: Path, texts: list[str]) -> CorpusConfig:
    path = folder / "web.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    base = corpus_of("web")
    archive = Archive(form="file", sha256=content_digest(path), path=str(path))
    source = replace(base.sources[0], archive=archive, reader=Reader(members=("*",), lines="json"))
    return replace(base, sources=(source,), heldout=HeldoutConfig(max_share=0.3))


def _prepared(folder: Path, texts: list[str], covered: Path) -> str:
    """A corpus without near duplicates, decontaminated against one file."""
    corpus, root = _config(folder, texts), home() / "corpora"
    read = {s.name: source_artifact(root, s, folder, Silent()) for s in corpus.sources}
    written = documents(root, corpus, read, Silent())
    repeated = duplicates(root, corpus, written, Silent())
    unique = Unique(written, [repeated.path / DUPLICATES])
    inputs = {"documents": written.digest, "duplicates": repeated.digest}
    held = heldout(root, corpus, unique, inputs, Silent())
    config = DecontamConfig(benchmarks=(Benchmark(name="known", path=str(covered)),))
    split = Split(unique, held)
    items = benchmarks(root, corpus, config, split, inputs, Silent())
    found = decontaminate(root, corpus, config, split, items, inputs, Silent())
    stages = [written, repeated, held, items, found]
    content = {
        "sources": [{"name": source.name, "usage": source.usage} for source in corpus.sources],
        "stages": [{"ref": a.ref, "stage": a.manifest["stage"], "facts": a.facts} for a in stages],
    }

    def make(out: Path) -> dict[str, Any]:
        write_atomic(out / CORPUS, json.dumps(content))
        return {}

    return build(
        root, "small", stage="corpus", revision=1, literals={}, inputs=inputs, make=make
    ).ref


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """An evaluation that the corpus was held against, and one that it was not."""
    known, other = tmp_path / "known.jsonl", tmp_path / "other.txt"
    known.write_text(json.dumps({"question": _words(1)}) + "\n")
    other.write_text(f"{_words(2)}\n{_words(3)}\n")
    return known, other


def test_an_evaluation_that_was_not_covered_is_seen_and_a_covered_one_is_gone(
    tmp_path: Path, files: tuple[Path, Path]
):
    known, other = files
    texts = [f"{_words(10 + n)} {_words(1 + n)} {_words(20 + n)}" for n in range(2)]
    texts += [_words(100 + n) for n in range(30)]
    ref = _prepared(tmp_path, texts, known)
    result = contamination("small", [str(other), "known"])
    assert result["corpus"] == ref
    assert result["benchmarks"]["known"]["found"] == 0
    assert result["benchmarks"]["other.txt"] == {
        "items": 2,
        "looked_for": 2,
        "found": 1,
        "half": 1,
        "share": 0.5,
        "longest_run": 40,
    }
    [row] = result["items"]
    assert (row["benchmark"], row["item"], row["share"], row["source"]) == (
        "other.txt",
        "1",
        1,
        "web",
    )
    said = render(result)
    assert "other.txt 1: 100% of 28 n-grams, 40 words in a row in web" in said
    assert Path(result["path"]).is_file()
    assert f"    {_words(2)[:160]}..." in said
    everything = contamination("small", [])
    assert {"known", "sources/web"} <= set(everything["benchmarks"])
    assert everything["items"] == []


def test_what_is_no_file_and_no_known_name_is_refused(tmp_path: Path, files: tuple[Path, Path]):
    _prepared(tmp_path, [_words(n) for n in range(20)], files[0])
    with pytest.raises(
        ValueError, match="no such file; give a file, lm-eval:TASK, or one of known"
    ):
        contamination("small", ["nothing"])
    with pytest.raises(ValueError, match="no corpus 'other'"):
        contamination("other", [])


def test_no_evaluation_hides_another(tmp_path: Path):
    texts = [_words(n) for n in range(40)]
    covered, many, few = (tmp_path / name for name in ("known.jsonl", "many.txt", "few.txt"))
    covered.write_text(json.dumps({"question": _words(99)}) + "\n")
    many.write_text("".join(f"{text}\n" for text in texts))
    halves = [f"{' '.join(text.split()[:20])} {_words(1000 + n)}" for n, text in enumerate(texts)]
    few.write_text("".join(f"{half}\n" for half in halves))
    _prepared(tmp_path, texts, covered)
    shown = [row["benchmark"] for row in contamination("small", [str(many), str(few)])["items"]]
    assert shown == ["few.txt"] * 5 + ["many.txt"] * 5
