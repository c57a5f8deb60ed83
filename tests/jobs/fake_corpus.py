"""A finished corpus as the stages leave it, small enough to know what became of each document."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

REF = "small@0123456789ab"
CARD = {
    "kind": "prose", "origin": "a <test>", "license_evidence": "written here",
    "revision": "sha256:0", "retrieved": "2026-11-30",
}  # fmt: skip
# source -> source_id -> text; what becomes of each is its name
TEXTS = {
    "alpha": {
        "keeper.txt": "the harbor lights were lit before the storm",
        "longest.txt": "a long account of the river and of all who lived beside it",
        "quoted.txt": "words that an evaluation document quotes at length",
        "held.txt": "kept whole for evaluation",
        "plain.txt": "nothing happens to this one",
    },
    "beta": {
        "copy.txt": "the harbor lights were lit before the storm",
        "contained.txt": "a long account of the river and of all who lived",
        "cut.txt": "some text, then an item of a benchmark, then more text",
        "dropped.txt": "nothing but an item of a benchmark",
        "fine.txt": "<script>alert('fine')</script>",
    },
    "gamma": {
        "clean.txt": "an evaluation document",
        "overlap.txt": "an evaluation document that quotes alpha",
    },
}


def id_of(text: str) -> str:
    """As the stage `documents` has it."""
    return xxhash.xxh3_128_hexdigest(text.encode())


def place(source: str, source_id: str) -> dict[str, str]:
    """The columns that name a document."""
    return {"source": source, "source_id": source_id, "id": id_of(TEXTS[source][source_id])}


def write_corpus(home: Path, *, later: bool = True, stored: int | None = None) -> Path:
    """Writes the corpus under `home`; returns its folder.

    Args:
        home: SHOAL_HOME.
        later: with near duplicates and contamination, which an older corpus does not have.
        stored: documents that the token store claims to hold; the right number by default.
    """
    root = home / "corpora"
    stages: list[dict[str, Any]] = []

    def stage(name: str, tables: dict[str, list[dict[str, Any]]], facts: dict[str, Any]) -> None:
        ref = f"small-{name}@{len(stages):012x}"
        (root / ref).mkdir(parents=True)
        for file, rows in tables.items():
            pq.write_table(pa.Table.from_pylist(rows), root / ref / f"{file}.parquet")
        stages.append({"ref": ref, "stage": name, "seconds": 1.0, "facts": facts})

    documents = {
        source: sorted(
            (
                {**place(source, key), "text": text, "bytes": len(text.encode()), "language": "en"}
                for key, text in texts.items()
            ),
            key=lambda row: row["id"],
        )
        for source, texts in TEXTS.items()
    }
    rejected = [{"source": "alpha", "source_id": "bad.txt", "rule": "empty", "evidence": "0 bytes"}]
    stage("documents", {**documents, "rejected": rejected}, {})
    stage("duplicates", {"duplicates": [_copy()]}, {})
    if later:
        stage("near", {"near": [_contained()]}, {})
    stage("heldout", {"heldout": _heldout()}, {})
    if later:
        stage("contamination", {"contamination": _contamination()}, {})
    held = 6 if later else 8
    cells = {"alpha": {"documents": 4}, "beta": {"documents": held - 4}}
    if stored is not None:
        cells["beta"]["documents"] = stored - 4
    stage("tokens", {}, {"cells": cells})
    folder = root / REF
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"provenance": {"created": "2026-12-01"}}))
    content = {"sources": [_card(name) for name in TEXTS], "stages": stages}
    (folder / "corpus.json").write_text(json.dumps(content))
    return folder


def _card(name: str) -> dict[str, Any]:
    training = name != "gamma"
    return {
        "name": name,
        "usage": "training" if training else "evaluation",
        "license": "CC0-1.0" if training else "MIT",
        **CARD,
        "documents": len(TEXTS[name]),
        "bytes": sum(len(text) for text in TEXTS[name].values()),
        "tokens": 100 if training else 0,
    }


def _copy() -> dict[str, Any]:
    return {
        **place("beta", "copy.txt"),
        "keeper_source": "alpha",
        "keeper_source_id": "keeper.txt",
        "rule": "exact across sources",
    }


def _contained() -> dict[str, Any]:
    keeper = {f"keeper_{key}": value for key, value in place("alpha", "longest.txt").items()}
    numbers = {"containment": 0.95, "jaccard": 0.8, "novel_words": 0, "component_documents": 2}
    return {**place("beta", "contained.txt"), **keeper, **numbers}


def _heldout() -> list[dict[str, Any]]:
    def row(source: str, key: str, **told: Any) -> dict[str, Any]:
        found = {name: value for name, value in place(source, key).items() if name != "source_id"}
        domain = {"set": "sources" if source == "alpha" else "domains", "domain": source}
        return {**found, **domain, "kept": True, "rule": "", "ngram": "", "training_id": "", **told}

    quoted = place("alpha", "quoted.txt")["id"]
    overlap = {"rule": "overlap", "ngram": "words that an evaluation", "training_id": quoted}
    return [
        row("alpha", "held.txt"),
        row("gamma", "clean.txt"),
        row("gamma", "overlap.txt", kept=False, **overlap),
    ]


def _contamination() -> list[dict[str, Any]]:
    def row(key: str, item: str, action: str, start: int) -> dict[str, Any]:
        told = {"benchmark": "quiz", "item": item, "start": start, "stop": start + 9}
        proof = {"num_words": 13, "ngram": "an item of a benchmark", "share": 0.5, "rule": "spans"}
        return {**place("beta", key), **told, **proof, "action": action}

    return [
        row("cut.txt", "3", "cut", 11),
        row("cut.txt", "4", "cut", 30),
        row("dropped.txt", "5", "drop", 0),
    ]
