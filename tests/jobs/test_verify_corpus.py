"""`shoal verify CORPUS`: a sound one holds; what was changed in its files is caught and named."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from journey.tiny import TEXT, topical, write_text
from shoal.cli import main
from shoal.core.artifact import MANIFEST, digest_of, reference
from shoal.core.files import home
from shoal.core.progress import Silent
from shoal.jobs import recheck_tables
from shoal.jobs.findings import FAILS, HOLDS, NOT_CHECKED
from shoal.jobs.prepare import prepare
from shoal.jobs.verify import verify


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a corpus of topics and qualities, with a copy and a near copy in its text."""
    root = tmp_path_factory.mktemp("corpus")
    text = write_text(root / "text", num_files=24)
    first, second = (text / f"{number:02d}.txt" for number in (3, 4))
    shutil.copy(first, text / "copy.txt")
    (text / "near.txt").write_text(second.read_text()[:-40])
    (text / "empty.txt").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEXT, str(text))
        prepare(topical().data.corpus, root / "home", Silent())
    return root / "home"


@pytest.fixture
def corpus(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The corpus' folder in a copy that is this test's own."""
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    (found,) = (path.parent for path in (home() / "corpora").glob("*/corpus.json"))
    return found


def failures(result: dict[str, Any]) -> list[str]:
    """Check, place and sentence of everything that fails, with the two values."""
    return [
        f"{line['check']} | {line['where']} | {line['says']}"
        f" | {line.get('expected')} | {line.get('found')}"
        for line in result["lines"]
        if line["state"] == FAILS
    ]


def stage(corpus: Path, name: str) -> Path:
    """The folder of a stage."""
    told = json.loads((corpus / "corpus.json").read_text())["stages"]
    return corpus.parent / next(one["ref"] for one in told if one["stage"] == name)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    """Write a manifest anew to fit the files, as a forger would."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(manifest)
    path.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def rewrite_corpus(corpus: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((corpus / "corpus.json").read_text())
    change(content)
    (corpus / "corpus.json").write_text(json.dumps(content, indent=1) + "\n")
    rewrite(corpus)


def edit_rows(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def test_a_sound_corpus_holds_in_all_its_counts(corpus):
    found = verify(corpus.name)
    assert failures(found) == []
    unchecked = {line["check"] for line in found["lines"] if line["state"] == NOT_CHECKED}
    assert (found["kind"], unchecked) == ("corpus", {"origins and licenses"})
    says = {line["check"]: line["says"] for line in found["lines"] if line["state"] == HOLDS}
    documents = int(says["documents"].partition(" ")[0])
    copies, near = (int(says[name].partition(" ")[0]) for name in ("duplicates", "near"))
    assert min(copies, near) >= 1
    store = json.loads((stage(corpus, "tokens") / "store.json").read_text())["cells"]
    trained = sum(cell["documents"] for cell in store.values())
    held = int(says["heldout"].partition(" ")[0])
    assert documents == trained + held + copies + near
    assert held >= 1
    assert f"of {trained:,} documents in {len(store)} cells" in says["token store"]
    assert f"{trained:,} documents encoded again, the same" in says["token store"]
    assert len(store) > 1
    assert main(["verify", str(corpus)]) == 0


def test_a_large_corpus_is_encoded_in_part_and_its_documents_still_counted(corpus, monkeypatch):
    monkeypatch.setattr(recheck_tables, "ENCODED_BYTES", 20_000)
    found = verify(corpus.name)
    assert failures(found) == []
    (line,) = [one for one in found["lines"] if one["check"] == "token store"]
    again = int(line["says"].split("held out; ")[1].split(" ")[0])
    documents = int(line["says"].split("tokens of ")[1].split(" ")[0])
    assert 1 <= again < documents


def test_sources_that_are_gone_are_not_checked(corpus):
    for path in corpus.parent.glob("source-*"):
        shutil.rmtree(path)
    found = verify(corpus.name)
    assert failures(found) == []
    unchecked = {line["check"] for line in found["lines"] if line["state"] == NOT_CHECKED}
    assert unchecked == {"artifact", "records", "source cards", "origins and licenses"}


def _byte_flipped(corpus: Path) -> None:
    path = stage(corpus, "near") / "near.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _manifest_edited(corpus: Path) -> None:
    rewrite(stage(corpus, "near"), lambda tree: tree["literals"].update(more=1))


def _manifest_edited_with_its_digest(corpus: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["literals"]["more"] = 1
        parts = {name: tree[name] for name in ("stage", "revision", "literals", "inputs")}
        tree["digest"] = digest_of(**parts)

    rewrite(stage(corpus, "near"), change)


def _stage_of_other_inputs(corpus: Path) -> None:
    """A whole artifact that was made of something else, put in the place of one."""
    old = stage(corpus, "quality")
    named: list[str] = []

    def change(tree: dict[str, Any]) -> None:
        tree["inputs"]["near"] = "0" * 64
        parts = {name: tree[name] for name in ("stage", "revision", "literals", "inputs")}
        tree["digest"] = digest_of(**parts)
        named.append(reference(tree["name"], tree["digest"]))

    rewrite(old, change)
    old.rename(old.parent / named[0])

    def say(content: dict[str, Any]) -> None:
        for one in content["stages"]:
            if one["ref"] == old.name:
                one["ref"] = named[0]

    rewrite_corpus(corpus, say)


def _file_added(corpus: Path) -> None:
    (stage(corpus, "heldout") / "more.parquet").write_bytes(b"")


def _document_removed(corpus: Path) -> None:
    folder = stage(corpus, "documents")
    edit_rows(folder / "text.parquet", lambda rows: rows.pop(5))
    rewrite(folder)


def _document_removed_and_recounted(corpus: Path) -> None:
    """Of the table and of the facts that its own stage and the corpus tell."""
    folder, gone = stage(corpus, "documents"), []
    edit_rows(folder / "text.parquet", lambda rows: gone.append(rows.pop(_trained(corpus))))

    def change(facts: dict[str, Any]) -> None:
        facts["sources"]["text"]["documents"] -= 1
        facts["sources"]["text"]["bytes"] -= gone[0]["bytes"]

    rewrite(folder, lambda tree: change(tree["facts"]))

    def say(content: dict[str, Any]) -> None:
        (one,) = [found for found in content["stages"] if found["stage"] == "documents"]
        change(one["facts"])
        content["sources"][0]["documents"] -= 1
        content["sources"][0]["bytes"] -= gone[0]["bytes"]

    rewrite_corpus(corpus, say)


def _trained(corpus: Path) -> int:
    """The row of a document that no stage takes out."""
    out = {
        row["id"] for row in pq.read_table(stage(corpus, "heldout") / "heldout.parquet").to_pylist()
    }
    out |= {row["id"] for row in pq.read_table(stage(corpus, "near") / "near.parquet").to_pylist()}
    rows = pq.read_table(stage(corpus, "documents") / "text.parquet")["id"].to_pylist()
    return next(n for n, one in enumerate(rows) if one not in out and rows.count(one) == 1)


def _document_edited(corpus: Path) -> None:
    folder = stage(corpus, "documents")

    def change(rows: list[dict[str, Any]]) -> None:
        rows[2]["text"] = rows[2]["text"].swapcase()

    edit_rows(folder / "text.parquet", change)
    rewrite(folder)


def _heldout_row_removed(corpus: Path) -> None:
    folder = stage(corpus, "heldout")
    edit_rows(folder / "heldout.parquet", lambda rows: rows.pop(0))
    rewrite(folder)


def _duplicate_invented(corpus: Path) -> None:
    folder, row = stage(corpus, "duplicates"), _trained(corpus)
    document = pq.read_table(stage(corpus, "documents") / "text.parquet").to_pylist()[row]

    def change(rows: list[dict[str, Any]]) -> None:
        rows.append({**rows[0], "id": document["id"], "source_id": document["source_id"]})

    edit_rows(folder / "duplicates.parquet", change)
    rewrite(folder)


def _token_changed(corpus: Path) -> None:
    folder = stage(corpus, "tokens")
    path = max((folder / "cells").iterdir(), key=lambda one: one.stat().st_size)
    ids = np.fromfile(path, "<u2")
    ids[7] = 1 + ids[7] % 300
    ids.tofile(path)
    rewrite(folder)


def _heldout_text_in_the_store(corpus: Path) -> None:
    """A document is replaced by a held-out one of no other length in documents."""
    folder = stage(corpus, "tokens")
    path = max((folder / "cells").iterdir(), key=lambda one: one.stat().st_size)
    ids = np.fromfile(path, "<u2")
    ends = np.flatnonzero(ids == 0)
    ids[: ends[0]] = ids[: ends[0]][::-1]
    ids.tofile(path)
    rewrite(folder)


def _topic_changed(corpus: Path) -> None:
    folder = stage(corpus, "topics")

    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["topic"] = (rows[0]["topic"] + 1) % 3

    edit_rows(folder / "topics.parquet", change)
    rewrite(folder)


def _facts_of_the_store_edited(corpus: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        next(iter(tree["facts"]["cells"].values()))["documents"] += 1

    rewrite(stage(corpus, "tokens"), change)


def _provenance_edited(corpus: Path) -> None:
    rewrite_corpus(corpus, lambda content: content["sources"][0].update(training_documents=3))


def _edit_source(corpus: Path, **values: str) -> None:
    rewrite_corpus(corpus, lambda content: content["sources"][0].update(values))


def _archive_of_a_source_edited(corpus: Path) -> None:
    _edit_source(corpus, sha256="0" * 64)


def _revision_of_a_source_edited(corpus: Path) -> None:
    _edit_source(corpus, revision="another", retrieved="2020-01-01")


def _stage_renamed(corpus: Path) -> None:
    """A stage's folder is "not there": nothing of it can be checked, and it must not be missed."""
    rewrite_corpus(
        corpus, lambda content: content["stages"][2].update(ref="text-near@0123456789ab")
    )


def _stage_left_out(corpus: Path) -> None:
    rewrite_corpus(corpus, lambda content: content["stages"].pop(2))


def _bytes_per_token_edited(corpus: Path) -> None:
    rewrite_corpus(corpus, lambda content: content["tokenizer"].update(bytes_per_token=9.5))


TAMPERED = [
    (_archive_of_a_source_edited, "source cards | corpus.json, source text | SHA-256 of its arch"),
    (_revision_of_a_source_edited, "source cards | corpus.json, source text | its revision"),
    (_revision_of_a_source_edited, "source cards | corpus.json, source text | its retrieved"),
    (_stage_renamed, "corpus.json | text-near@0123456789ab | a stage that the corpus was not made"),
    (_stage_renamed, "does not list its stage duplicates"),
    (_stage_left_out, "does not list its stage duplicates"),
    (_stage_left_out, "refs in its manifest"),
    (_bytes_per_token_edited, "bytes per token"),
    (_byte_flipped, "artifacts | {near}/near.parquet | SHA-256 of a file"),
    (_manifest_edited, "artifacts | {near}/manifest.json | damaged artifact"),
    (_manifest_edited, "does not match its own digest"),
    (_manifest_edited_with_its_digest, "artifacts | {near}/manifest.json | folder and the digest"),
    (_stage_of_other_inputs, "inputs | {quality} | its digest, as the corpus names it"),
    (_stage_of_other_inputs, "digest of the near that it was made of"),
    (_file_added, "artifacts | {heldout}/more.parquet | a file that its manifest does not list"),
    (
        _document_removed,
        "documents | {documents}/text.parquet | documents of source text |",
    ),
    (_document_removed_and_recounted, "records = documents + rejected + empty"),
    (
        _document_removed_and_recounted,
        "provenance sums | corpus.json, source text | documents = tr",
    ),
    (_document_removed_and_recounted, "token store"),
    (_document_edited, "documents | {documents}/text.parquet | hash of the text of text/"),
    (_heldout_row_removed, "heldout | {heldout} | candidates of source text"),
    (_heldout_row_removed, "token store"),
    (_duplicate_invented, "duplicates | {duplicates} | the keeper of text/"),
    (_duplicate_invented, "duplicates | {duplicates} | duplicates of source text |"),
    (_token_changed, "does not hold document"),
    (_heldout_text_in_the_store, "does not hold document"),
    (_topic_changed, "does not hold document"),
    (_facts_of_the_store_edited, "corpus.json | {tokens} | facts of stage tokens"),
    (_facts_of_the_store_edited, "documents, by their ends"),
    (_provenance_edited, "provenance sums | corpus.json, source text | training_documents, by the"),
]


@pytest.mark.parametrize(
    ("tamper", "named"),
    TAMPERED,
    ids=[f"{tamper.__name__[1:]}-{number}" for number, (tamper, _) in enumerate(TAMPERED)],
)
def test_what_was_tampered_with_is_caught_and_named(corpus, tamper, named):
    names = ("near", "heldout", "documents", "duplicates", "tokens")
    refs = {name: stage(corpus, name).name for name in names}
    tamper(corpus)
    told = failures(verify(corpus.name))
    spelled = named.format(**refs, quality=stage(corpus, "quality").name)
    assert any(spelled in line for line in told), told


def test_a_corpus_record_that_is_no_json_fails_and_nothing_breaks(corpus):
    (corpus / "corpus.json").write_text("{")
    assert failures(verify(str(corpus)))
    (corpus / MANIFEST).unlink()
    assert failures(verify(str(corpus)))
