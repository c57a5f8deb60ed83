"""The provenance table: every source with its whole card, as CSV and as valid Croissant."""

import csv
import io
import json
from typing import Any

import mlcroissant
import pytest

from shoal.data.provenance import COLUMNS, NUMBERS, card, croissant, permissive_only, provenance_csv
from shoal.recipes.corpus import quickstart_corpus

# mlcroissant builds its graph with a class that rdflib is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")


@pytest.fixture
def facts() -> dict[str, Any]:
    counts = {"retrieved": "2026-12-01"} | {name: n for n, name in enumerate(sorted(NUMBERS), 7)}
    sources = [card(source) | counts for source in permissive_only(quickstart_corpus()).sources]
    return {"corpus": "quickstart@0123456789ab", "sources": sources}


def test_the_csv_has_a_row_per_source_with_its_whole_card(facts: dict[str, Any]):
    rows = list(csv.DictReader(io.StringIO(provenance_csv(facts))))
    assert [row["name"] for row in rows] == [source["name"] for source in facts["sources"]]
    for row, source in zip(rows, facts["sources"], strict=True):
        assert list(row) == list(COLUMNS)
        for name, cell in row.items():
            value = source[name]
            assert cell == (
                {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            )


def test_a_blocked_source_stays_in_the_table_with_its_reason(facts: dict[str, Any]):
    rows = list(csv.DictReader(io.StringIO(provenance_csv(facts))))
    blocked = {row["name"]: row["usage_reason"] for row in rows if row["usage"] == "blocked"}
    assert blocked == {"wikipedia": "license CC-BY-SA-3.0 is copyleft, not permissive"}


def test_a_table_of_an_older_corpus_has_empty_cells(facts: dict[str, Any]):
    for source in facts["sources"]:
        del source["generator"], source["heldout_bytes"]
    rows = list(csv.DictReader(io.StringIO(provenance_csv(facts))))
    assert {(row["generator"], row["heldout_bytes"]) for row in rows} == {("", "")}


def test_the_croissant_is_valid_and_gives_the_rows_back(
    facts: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    found = json.loads(json.dumps(croissant(facts)))
    dataset = mlcroissant.Dataset(jsonld=found)
    assert not dataset.metadata.issues.errors
    assert not dataset.metadata.issues.warnings
    assert caplog.records == []
    records = list(dataset.records("sources"))
    assert len(records) == len(facts["sources"])
    for record, source in zip(records, facts["sources"], strict=True):
        for name in COLUMNS:
            value = record[f"sources/{name}"]
            assert (value.decode() if isinstance(value, bytes) else value) == source[name]


def test_the_croissant_lists_each_file_once_with_its_hash(facts: dict[str, Any]):
    files = croissant(facts)["distribution"]
    assert sorted(file["sha256"] for file in files) == sorted(
        {source["sha256"] for source in facts["sources"]}
    )
    assert len({file["@id"] for file in files}) == len(files) == 4


def test_a_broken_croissant_is_found_to_be(facts: dict[str, Any]):
    """The validator does look: without it the tests above would say nothing."""
    found = croissant(facts)
    del found["recordSet"][0]["field"][0]["dataType"]
    with pytest.raises(mlcroissant.ValidationError):
        mlcroissant.Dataset(jsonld=found)
