"""An audit of a corpus that every stage worked on: what it shows is in the files, and adds up."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from journey.tiny import TEXT, topical, write_text
from shoal.core.config import plain
from shoal.core.files import home
from shoal.core.progress import Silent
from shoal.data.settings import Benchmark
from shoal.jobs.audit import facts
from shoal.jobs.corpora import Corpus, find_corpus
from shoal.jobs.prepare import prepare
from shoal.report.corpus import render
from shoal.report.corpus_schema import column_sentence, file_sentence

COUNTS = ("removed", "held_out", "out")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny recipe over text with copies, an empty file and benchmark items in it."""
    root = tmp_path_factory.mktemp("audited")
    text = write_text(root / "text", num_files=30)
    first, second, third = ((text / f"{n:02d}.txt").read_text() for n in range(3))
    (text / "copy.txt").write_text(first)
    (text / "near.txt").write_text(second + "One more sentence, of other words.\n")
    (text / "void.txt").write_text(" \n \n")
    items = root / "exam.jsonl"
    passage = " ".join(third.split()[20:50])
    items.write_text(json.dumps({"question": passage, "answer": "a harbor"}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEXT, str(text))
        made = topical()
    exam = Benchmark(name="exam", path=str(items))
    corpus = made.data.corpus
    corpus = replace(corpus, decontam=replace(corpus.decontam, benchmarks=(exam,)))
    return replace(made, data=replace(made.data, corpus=corpus))


@pytest.fixture(scope="module")
def corpus(config: Any, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """That corpus, prepared; not to be changed."""
    root = tmp_path_factory.mktemp("home")
    prepare(config.data.corpus, root, Silent())
    (path,) = (one.parent for one in (root / "corpora").glob("*/corpus.json"))
    return find_corpus(str(path))


@pytest.fixture(scope="module")
def found(corpus: Corpus) -> dict[str, Any]:
    """Its audit; not to be changed."""
    return facts(corpus)


def test_every_stage_had_work_and_its_documents_and_bytes_add_up(found: dict[str, Any]):
    assert found["problems"] == []
    flow = {row["stage"]: row for row in found["flow"]}
    taken = {name: row["removed"] + row["held_out"] + row["cut"] for name, row in flow.items()}
    assert all(taken.values()), taken
    for rows in (found["flow"], *(each.values() for each in found["by_source"].values())):
        for row in rows:
            assert row["in"] == sum(row[name] for name in COUNTS)
            assert row["in_bytes"] == sum(row[f"{name}_bytes"] for name in (*COUNTS, "cut"))
    for before, after in zip(found["flow"], found["flow"][1:], strict=False):
        assert (before["out"], before["out_bytes"]) == (after["in"], after["in_bytes"])


def test_what_is_left_is_what_the_token_store_was_made_of(corpus: Corpus, found: dict[str, Any]):
    (told,) = corpus.facts("tokens")["sources"].values()
    last = found["flow"][-1]
    assert (last["out"], last["out_bytes"]) == (told["documents"], told["bytes"])
    assert last["cut_bytes"] > 0
    (record,) = [one for one in corpus.content["stages"] if one["stage"] == "source"]
    assert found["flow"][0]["in"] == record["facts"]["records"]
    for name in ("topics", "levels", "cells"):
        assert sum(one["documents"] for one in found[name]) == last["out"]
    assert sum(one["bytes"] for one in found["topics"]) == last["out_bytes"]


def test_columns_are_those_of_the_files_and_each_has_a_sentence(
    corpus: Corpus, found: dict[str, Any]
):
    for one in found["stages"]:
        folders = [corpus.path.parent / ref for ref in one["refs"]]
        files = {path.name for folder in folders for path in folder.iterdir() if path.is_file()}
        told = {each["file"] for each in one["tables"]} | {each["file"] for each in one["files"]}
        told -= {"cells/*.bin", "SOURCE.parquet"}
        assert files - told - {f"{corpus.training[0]}.parquet"} == {"manifest.json"}
        for each in one["tables"]:
            assert all(column_sentence(each["file"], c["name"]) for c in each["columns"]), each
        assert all(file_sentence(each["file"]) for each in one["files"]), one["files"]
    near = next(one for one in found["stages"] if one["stage"] == "near")
    path = corpus.folders["near"] / "near.parquet"
    assert near["tables"][0]["rows"] == pq.read_metadata(path).num_rows
    schema = {column["name"]: column["type"] for column in near["tables"][0]["columns"]}
    assert schema == {field.name: str(field.type) for field in pq.read_schema(path)}
    assert near["settings"]["min_containment"] == 0.75


def test_samples_are_of_what_they_say(corpus: Corpus, found: dict[str, Any]):
    rows = pq.read_table(corpus.documents(corpus.training[0])).to_pylist()
    texts = {row["id"]: row["text"] for row in rows}
    topics = pq.read_table(corpus.folders["topics"] / "topics.parquet").to_pylist()
    topic = {row["id"]: row["topic"] for row in topics}
    source = corpus.training[0]
    for one in found["topics"]:
        of = [name for name, place in topic.items() if place == one["topic"]]
        drawn = sorted(of, key=lambda name: xxhash.xxh3_64_intdigest(f"{source}/{name}".encode()))
        assert [row["id"] for row in one["samples"]] == drawn[:2]
        for row in one["samples"]:
            assert topic[row["id"]] == one["topic"]
            assert row["text"] == texts[row["id"]][:400]
    left = set(topic)
    (last,) = [one for one in found["stages"] if one["stage"] == "contamination"]
    assert {row["id"] for row in last["survivors"]} <= left
    removed = {one["stage"]: one["samples"] for one in found["removals"]}
    assert removed["near"][0]["keeper"]["text"] == texts[removed["near"][0]["keeper"]["id"]][:400]
    cut = removed["contamination"][0]
    start, stop = cut["passage"]
    evidence = cut["evidence"]
    whole = texts[cut["id"]][evidence["start"] : evidence["stop"]]
    assert cut["text"][start:stop] == whole[:400]


def test_epochs_are_those_of_the_run_that_read_the_corpus_last(corpus: Corpus, config: Any):
    for name, created, steps in (("old", "2026-01-01", 6), ("new", "2026-02-01", 12)):
        tree = plain(replace(config, train=replace(config.train, num_steps=steps)))
        (home() / "runs" / name).mkdir(parents=True)
        run = {"corpus": corpus.ref, "created": created, "config": tree}
        (home() / "runs" / name / "run.json").write_text(json.dumps(run))
    mix = facts(corpus)["mixture"]
    tokens = 12 * config.train.batch_sequences * config.train.sequence_tokens
    assert (mix["run"], mix["rule"], mix["tokens"]) == ("new", "natural", tokens)
    units = {name: one["units"] for name, one in corpus.facts("tokens")["cells"].items()}
    read = sum(sum(each) * units[cell] * 64 for cell, each in mix["epochs"].items())
    assert read == pytest.approx(tokens)


def _without_one(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def _other_topic(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("topic")
    other = [topic + 1 for topic in rows["topic"].to_pylist()]
    return rows.set_column(place, "topic", pa.array(other, pa.int32()))


@pytest.mark.parametrize(
    ("stage", "change", "said"),
    [
        ("duplicates", _without_one, "documents are left after stage contamination, the token"),
        ("near", _without_one, "are left, the token store was made of"),
        ("contamination", _without_one, "bytes are left, the token store was made of"),
        ("topics", _without_one, "stage topics names"),
        ("topics", _other_topic, "have this topic and level"),
    ],
)
def test_a_table_that_was_changed_is_told(
    corpus: Corpus, tmp_path: Path, stage: str, change: Callable[[pa.Table], pa.Table], said: str
):
    folder = tmp_path / corpus.folders[stage].name
    folder.mkdir()
    for path in corpus.folders[stage].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    table = folder / f"{stage}.parquet"
    pq.write_table(change(pq.read_table(table)), table)
    changed = replace(corpus, folders={**corpus.folders, stage: folder})
    assert any(said in problem for problem in facts(changed)["problems"])


def test_the_page_has_a_section_per_stage_and_stays_small(found: dict[str, Any]):
    page = render(found)
    stages = ("documents", "duplicates", "near", "heldout", "benchmarks", "contamination")
    for stage in (*stages, "topics", "quality", "tokens"):
        assert f'id="stage-{stage}"' in page
    assert len(page) < 3_000_000
    assert page == render(found)
