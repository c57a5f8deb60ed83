"""An audit counts what the tables hold, and says where counts do not add up."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.fake_corpus import REF, TEXTS, id_of, write_corpus
from shoal.core.files import home
from shoal.jobs.audit import audit, render
from shoal.jobs.audit_walk import drawn_by
from shoal.jobs.corpora import find_corpus


@pytest.fixture
def corpus() -> Path:
    """The fake corpus under this test's own home."""
    return write_corpus(home())


def test_documents_are_counted_into_and_out_of_every_stage(corpus: Path):
    flow = {row["stage"]: row for row in audit("small")["flow"]}
    counted = {
        stage: tuple(row[name] for name in ("in", "removed", "held_out", "out", "cut"))
        for stage, row in flow.items()
    }
    assert counted == {
        "documents": (11, 1, 0, 10, 0),
        "duplicates": (10, 1, 0, 9, 0),
        "near": (9, 1, 0, 8, 0),
        "heldout": (8, 0, 1, 7, 0),
        "contamination": (7, 1, 0, 6, 1),
    }


def test_removals_stand_with_reason_sources_evidence_keeper_and_text(corpus: Path):
    found = {(one["stage"], one["outcome"]): one for one in audit("small")["removals"]}
    assert {key: (one["rule"], one["sources"]) for key, one in found.items()} == {
        ("documents", "removed"): ("empty", {"alpha": 1}),
        ("duplicates", "removed"): ("exact across sources", {"beta": 1}),
        ("near", "removed"): ("contained in another", {"beta": 1}),
        ("heldout", "held out"): ("for evaluation", {"alpha": 1, "gamma": 1}),
        ("heldout", "removed"): ("overlap", {"gamma": 1}),
        ("contamination", "removed"): ("benchmark text, spans", {"beta": 1}),
        ("contamination", "cut"): ("benchmark text, spans", {"beta": 1}),
    }
    (near,) = found["near", "removed"]["samples"]
    assert near["source_id"] == "contained.txt"
    assert near["text"] == "a long account of the river and of all who lived"
    assert near["keeper"]["source_id"] == "longest.txt"
    assert near["evidence"]["containment"] == 0.95
    cut = found["contamination", "cut"]
    assert (cut["documents"], cut["rows"], len(cut["samples"])) == (1, 2, 1)


def test_licenses_are_summed_over_sources(corpus: Path):
    licenses = audit("small")["licenses"]
    assert {name: sums["sources"] for name, sums in licenses.items()} == {"CC0-1.0": 2, "MIT": 1}
    assert licenses["CC0-1.0"]["documents"] == 10
    assert licenses["CC0-1.0"]["tokens"] == 200


def test_counts_that_add_up_are_no_problem_and_others_are_named():
    folder = write_corpus(home(), stored=5)
    assert audit("small")["problems"] == [
        "6 documents are left after stage contamination, the token store holds 5"
    ]
    content = json.loads((folder / "corpus.json").read_text())
    content["sources"][0]["documents"] = 7
    (folder / "corpus.json").write_text(json.dumps(content))
    told = render(audit("small"))
    assert "PROBLEM: source alpha: the corpus record says 7 documents, its table has 5" in told


def test_an_older_corpus_without_the_later_stages_is_audited_too():
    write_corpus(home(), later=False)
    result = audit("small")
    assert [row["stage"] for row in result["flow"]] == ["documents", "duplicates", "heldout"]
    assert result["flow"][-1]["out"] == 8
    assert result["problems"] == []


def test_the_result_is_json_and_its_text_and_page_tell_the_same(corpus: Path, tmp_path: Path):
    result = audit("small", tmp_path / "page.html")
    assert json.loads(json.dumps(result)) == result
    told, page = render(result), (tmp_path / "page.html").read_text()
    assert "the counts of all stages add up" in told
    for said in ("alpha", "CC0-1.0", "exact across sources", "longest.txt", "quiz", "0.95"):
        assert said in told
        assert said in page
    assert "PROBLEM" not in told
    made = audit("small")
    assert Path(made["report"]) == home() / "audits" / f"{REF}.html"
    rows = Path(made["provenance"]).read_text().splitlines()
    assert len(rows) == 1 + len(made["sources"])
    described = json.loads(Path(made["croissant"]).read_text())
    assert described["citeAs"] == f"Shoal corpus {REF}"


def test_samples_do_not_depend_on_the_order_of_rows(corpus: Path):
    before = audit("small")["removals"]
    path = find_corpus("small").folders["heldout"] / "heldout.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.take(list(reversed(range(len(rows))))), path)
    assert audit("small")["removals"] == before


def test_of_what_stays_the_smallest_hash_of_each_source_is_shown(corpus: Path):
    gone = {
        "duplicates": ["copy.txt"], "near": ["contained.txt"], "heldout": ["held.txt"],
        "contamination": ["dropped.txt"],
    }  # fmt: skip
    left = {source: dict(texts) for source, texts in TEXTS.items() if source != "gamma"}
    shown = {one["stage"]: one["survivors"] for one in audit("small")["stages"]}
    for stage, names in gone.items():
        for texts in left.values():
            for name in names:
                texts.pop(name, None)
        for row in shown[stage]:
            if row["source"] in left:
                ids = [id_of(text) for text in left[row["source"]].values()]
                assert row["id"] == min(ids, key=lambda one: drawn_by(row["source"], one))


def test_a_removal_of_a_document_that_never_came_so_far_is_named(corpus: Path):
    path = find_corpus("small").folders["near"] / "near.parquet"
    rows = pq.read_table(path).to_pylist()
    ghost = {**rows[0], "id": "f" * 32, "source_id": "ghost.txt"}
    pq.write_table(pa.Table.from_pylist([*rows, ghost]), path)
    assert audit("small")["problems"] == [
        "stage near names 2 documents that it took out, 1 of them came to it"
    ]


def test_a_corpus_is_found_by_name_reference_and_path(corpus: Path):
    for spelled in ("small", REF, str(corpus), os.path.relpath(corpus)):
        assert find_corpus(spelled).path == corpus.resolve()
    with pytest.raises(ValueError, match=rf"no corpus 'smal'; there are: {REF}"):
        find_corpus("smal")


def test_a_corpus_whose_stage_is_gone_is_refused(corpus: Path):
    import shutil

    shutil.rmtree(find_corpus("small").folders["near"])
    with pytest.raises(ValueError, match=r"small-near@.* which is not there; prepare it again"):
        audit("small")
