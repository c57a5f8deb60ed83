"""Every document of a corpus is explained: by which stage, which rule, which evidence."""

import json

import pytest

from jobs.fake_corpus import TEXTS, id_of, place, write_corpus
from shoal.core.files import home
from shoal.jobs.explain import explain, render

WHY = {
    "alpha/keeper.txt": "Trained on.",
    "alpha/longest.txt": "Trained on.",
    "alpha/quoted.txt": "Trained on.",
    "alpha/plain.txt": "Trained on.",
    "alpha/held.txt": "Not trained on: held out for evaluation, as text of alpha.",
    "alpha/bad.txt": "Not trained on: stage documents removed it (empty).",
    "beta/copy.txt": "Not trained on: stage duplicates removed it (exact across sources); "
    "alpha/keeper.txt stays.",
    "beta/contained.txt": "Not trained on: stage near removed it (contained in another); "
    "alpha/longest.txt stays.",
    "beta/cut.txt": "Trained on, less 2 passages that benchmarks hold.",
    "beta/dropped.txt": "Not trained on: stage contamination removed it (benchmark text, spans).",
    "beta/fine.txt": "Trained on.",
    "gamma/clean.txt": "Not trained on: held out for evaluation, as text of gamma.",
    "gamma/overlap.txt": "Not trained on: stage heldout removed it (overlap).",
}


@pytest.fixture(autouse=True)
def _corpus() -> None:
    write_corpus(home())


def _only(document: str):
    (found,) = explain("small", document)["documents"]
    return found


@pytest.mark.parametrize("document", WHY)
def test_every_document_is_explained(document: str):
    found = _only(document)
    assert found["why"] == WHY[document]
    assert found["in_training"] == WHY[document].startswith("Trained on")
    assert WHY[document] in render(explain("small", document))


def test_all_documents_of_the_corpus_are_among_them():
    known = {f"{source}/{key}" for source, texts in TEXTS.items() for key in texts}
    assert known == set(WHY) - {"alpha/bad.txt"}


def test_an_id_finds_every_place_where_the_text_stands():
    result = explain("small", id_of(TEXTS["alpha"]["keeper.txt"]))
    assert [f"{one['source']}/{one['source_id']}" for one in result["documents"]] == [
        "alpha/keeper.txt",
        "beta/copy.txt",
    ]
    assert [one["in_training"] for one in result["documents"]] == [True, False]
    assert json.loads(json.dumps(result)) == result


def test_stages_say_what_they_did_and_which_did_not_see_it():
    found = _only("beta/contained.txt")
    assert [(one["stage"], one["saw"], one["outcome"]) for one in found["stages"]] == [
        ("documents", True, "kept"),
        ("duplicates", True, "kept"),
        ("near", True, "removed"),
        ("heldout", False, ""),
        ("contamination", False, ""),
    ]
    near = found["stages"][2]
    assert near["keeper"] == place("alpha", "longest.txt")
    assert near["evidence"]["jaccard"] == 0.8
    cuts = [one for one in _only("beta/cut.txt")["stages"] if one["outcome"] == "cut"]
    assert [one["evidence"]["item"] for one in cuts] == ["3", "4"]


def test_a_keeper_names_what_was_removed_for_it():
    assert [row["source_id"] for row in _only("alpha/longest.txt")["keeps"]] == ["contained.txt"]
    assert [row["source_id"] for row in _only("alpha/keeper.txt")["keeps"]] == ["copy.txt"]
    assert _only("alpha/plain.txt")["keeps"] == []


def test_training_text_that_is_quoted_names_the_held_out_document():
    (row,) = _only("alpha/quoted.txt")["held_out_overlap"]
    assert (row["source"], row["rule"]) == ("gamma", "overlap")


def test_evaluation_text_is_not_seen_by_the_stages_of_training_text():
    stages = {one["stage"]: one["saw"] for one in _only("gamma/clean.txt")["stages"]}
    assert stages["heldout"]
    assert not stages["near"]


def test_an_unknown_document_is_refused():
    for document in ("0" * 32, "alpha/none.txt", "delta/keeper.txt", "keeper.txt"):
        with pytest.raises(ValueError, match=r"give an id of 32 hex digits, or SOURCE/source_id"):
            explain("small", document)
