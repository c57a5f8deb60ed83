"""Finished corpora as `audit` and `explain` read them: where they are, and every removal in them.

A removal is a row {"stage", "rule", "outcome", "source", "source_id", "id", "evidence", "keeper"}:
`outcome` is `removed`, `held out` (kept whole for evaluation) or `cut` (the document stays without
a passage); `keeper` is {"source", "source_id", "id"} or None. Stages that a corpus does not have
are passed over, so older and smaller corpora read the same.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from shoal.core.artifact import MANIFEST, MANIFEST_LIMIT_BYTES
from shoal.core.files import home, read_limited
from shoal.data import table
from shoal.data.manifest import CORPUS, LIMIT_BYTES

type CorpusRow = dict[str, Any]

REMOVED, HELD_OUT, CUT = "removed", "held out", "cut"
ORDER = ("source", "documents", "duplicates", "near", "heldout", "contamination", "tokens")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A finished corpus.

    Attributes:
        content: of `corpus.json`.
        folders: stage -> folder, for the stages with one artifact each.
        inputs: source -> folder of its records, where that is still there.
    """

    path: Path
    content: Mapping[str, Any]
    folders: Mapping[str, Path]
    inputs: Mapping[str, Path]

    @property
    def ref(self) -> str:
        return self.path.name

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Cards and counts, in order of precedence."""
        return list(self.content["sources"])

    @property
    def training(self) -> list[str]:
        """Names of the sources that are trained on."""
        return [one["name"] for one in self.sources if one["usage"] == "training"]

    def documents(self, source: str) -> Path:
        """The table of a source's documents."""
        return self.folders["documents"] / f"{source}.parquet"

    def facts(self, stage: str) -> Mapping[str, Any]:
        """What a stage counted; empty where the corpus does not have it."""
        for one in self.content["stages"]:
            if one["stage"] == stage:
                return one["facts"]
        return {}


def find_corpus(corpus: str) -> Corpus:
    """The corpus given by path, by NAME@HASH12 or by NAME (the one made last).

    Raises:
        ValueError: there is none, or a stage that it names is gone.
    """
    root = home() / "corpora"
    if os.sep in corpus or corpus in (".", ".."):
        found = [Path(corpus)] if (Path(corpus) / CORPUS).is_file() else []
    else:
        pattern = corpus if "@" in corpus else f"{corpus}@*"
        found = [path.parent for path in root.glob(f"{pattern}/{CORPUS}")]
    if not found:
        names = sorted(path.parent.name for path in root.glob(f"*/{CORPUS}"))
        there = f"there are: {', '.join(names)}" if names else "there is none yet; `shoal prepare`"
        raise ValueError(f"no corpus {corpus!r}; {there}")
    path = max(found, key=lambda one: (_created(one), one.name)).resolve()
    content = json.loads(read_limited(path / CORPUS, LIMIT_BYTES))
    folders, inputs = {}, {}
    for stage in content["stages"]:
        folder = path.parent / stage["ref"]
        if stage["stage"] == "source":
            inputs[stage["ref"].partition("@")[0].removeprefix("source-")] = folder
        elif folder.is_dir():
            folders[stage["stage"]] = folder
        else:
            raise ValueError(
                f"corpus {path.name} names {folder}, which is not there; prepare it again"
            )
    return Corpus(path=path, content=content, folders=folders, inputs=inputs)


def removals(corpus: Corpus, stage: str) -> Iterator[CorpusRow]:
    """What one stage took out, row by row; nothing where the corpus does not have it."""
    if stage not in corpus.folders or stage not in _TABLES:
        return
    name, read = _TABLES[stage]
    path = corpus.folders[stage] / name
    if path.is_file():
        for batch in table.batches(path):
            for row in batch.to_pylist():
                yield {"stage": stage, **read(row)}


def num_rows(path: Path) -> int:
    """Rows of a Parquet file, from its footer."""
    with pq.ParquetFile(path) as file:
        return file.metadata.num_rows


def _created(path: Path) -> str:
    manifest = json.loads(read_limited(path / MANIFEST, MANIFEST_LIMIT_BYTES))
    return str(manifest.get("provenance", {}).get("created", ""))


def _place(row: CorpusRow) -> CorpusRow:
    return {"source": row["source"], "source_id": row.get("source_id", ""), "id": row.get("id", "")}


def _rejected(row: CorpusRow) -> CorpusRow:
    told = {"evidence": {"why": row["evidence"]}, "keeper": None}
    return {**_place(row), "rule": row["rule"], "outcome": REMOVED, **told}


def _duplicate(row: CorpusRow) -> CorpusRow:
    keeper = {"source": row["keeper_source"], "source_id": row["keeper_source_id"]}
    told = {"evidence": {"text": "the same"}, "keeper": {**keeper, "id": row["id"]}}
    return {**_place(row), "rule": row["rule"], "outcome": REMOVED, **told}


def _near(row: CorpusRow) -> CorpusRow:
    keeper = {name: row[f"keeper_{name}"] for name in ("source", "source_id", "id")}
    names = ("containment", "jaccard", "novel_words", "component_documents")
    evidence = {name: row[name] for name in names if name in row}
    told = {"rule": "contained in another", "outcome": REMOVED}
    return {**_place(row), **told, "evidence": evidence, "keeper": keeper}


def _heldout(row: CorpusRow) -> CorpusRow:
    evidence = {"set": row["set"], "domain": row["domain"]}
    if row["ngram"]:
        evidence |= {"ngram": row["ngram"], "training_id": row["training_id"]}
    rule, outcome = ("for evaluation", HELD_OUT) if row["kept"] else (row["rule"], REMOVED)
    return {**_place(row), "rule": rule, "outcome": outcome, "evidence": evidence, "keeper": None}


def _contaminated(row: CorpusRow) -> CorpusRow:
    names = ("benchmark", "item", "start", "stop", "num_words", "ngram", "share")
    evidence = {name: row[name] for name in names if name in row}
    outcome = CUT if row["action"] == "cut" else REMOVED
    told = {"rule": f"benchmark text, {row['rule']}", "outcome": outcome}
    return {**_place(row), **told, "evidence": evidence, "keeper": None}


_TABLES: Mapping[str, tuple[str, Callable[[CorpusRow], CorpusRow]]] = {
    "documents": ("rejected.parquet", _rejected),
    "duplicates": ("duplicates.parquet", _duplicate),
    "near": ("near.parquet", _near),
    "heldout": ("heldout.parquet", _heldout),
    "contamination": ("contamination.parquet", _contaminated),
}
