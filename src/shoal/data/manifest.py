"""Stage `corpus`: the artifact that names every other one, with what a stranger wants to know.

File `corpus.json`: {"sources": [card and counts], "tokenizer", "unit_tokens", "cells", "stages"};
the copy in a run folder has the artifact's own reference at `corpus` as well. Counts of a source:
  documents, bytes         after normalizing
  rejected, empty          records that are no documents
  duplicates               documents whose text an earlier copy holds
  heldout_documents, heldout_bytes, overlap_dropped
  training_documents, training_bytes, tokens (ends of text included)
Counts of a cell: tokens, documents, units, tail_tokens (what is left below a unit).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.artifact import Artifact, build
from shoal.core.files import read_limited, write_atomic
from shoal.data.config import CorpusConfig, Source

REVISION = 2
CORPUS = "corpus.json"
LIMIT_BYTES = 64 * 2**20
_NOTHING = {"documents": 0, "bytes": 0, "tokens": 0}


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The artifacts of a corpus; `sources` maps a source's name to its artifact."""

    sources: Mapping[str, Artifact]
    documents: Artifact
    duplicates: Artifact
    heldout: Artifact
    tokenizer: Artifact
    tokens: Artifact

    def all(self) -> list[Artifact]:
        """In the order of the work."""
        later = (self.documents, self.duplicates, self.heldout, self.tokenizer, self.tokens)
        return [*self.sources.values(), *later]


def corpus_artifact(root: Path, corpus: CorpusConfig, stages: Stages) -> Artifact:
    """Finds or makes the artifact that stands for the whole corpus."""

    def make(folder: Path) -> dict[str, Any]:
        content = corpus_facts(corpus, stages)
        write_atomic(folder / CORPUS, json.dumps(content, indent=1) + "\n")
        return {"refs": [artifact.ref for artifact in stages.all()]}

    return build(
        root,
        corpus.name,
        stage="corpus",
        revision=REVISION,
        literals={"order": [source.name for source in corpus.sources]},
        inputs={
            **{f"source {name}": artifact.digest for name, artifact in stages.sources.items()},
            "documents": stages.documents.digest,
            "duplicates": stages.duplicates.digest,
            "heldout": stages.heldout.digest,
            "tokenizer": stages.tokenizer.digest,
            "tokens": stages.tokens.digest,
        },
        make=make,
    )


def corpus_facts(corpus: CorpusConfig, stages: Stages) -> dict[str, Any]:
    """The content of `corpus.json`, without the corpus' own reference."""
    facts = stages.tokens.facts
    sources = facts["sources"].values()
    tokens = sum(source["tokens"] - source["documents"] for source in sources)
    return {
        "sources": [_source(source, stages) for source in corpus.sources],
        "tokenizer": {
            "ref": stages.tokenizer.ref,
            "vocab_size": facts["vocab_size"],
            "bytes_per_token": round(sum(source["bytes"] for source in sources) / tokens, 4),
        },
        "unit_tokens": corpus.unit_tokens,
        "cells": [{"name": name, **cell} for name, cell in facts["cells"].items()],
        "stages": [
            {
                "ref": artifact.ref,
                "stage": artifact.manifest["stage"],
                "seconds": artifact.manifest["provenance"]["seconds"],
                "facts": artifact.facts,
            }
            for artifact in stages.all()
        ],
    }


def read_corpus(artifact: Artifact) -> dict[str, Any]:
    """The content of `corpus.json` as a run folder holds it."""
    content = json.loads(read_limited(artifact.path / CORPUS, LIMIT_BYTES))
    return {"corpus": artifact.ref, **content}


def _source(source: Source, stages: Stages) -> dict[str, Any]:
    records = stages.sources[source.name].facts
    documents = stages.documents.facts["sources"][source.name]
    heldout = stages.heldout.facts["sources"][source.name]
    trained = stages.tokens.facts["sources"].get(source.name, _NOTHING)
    return {
        "name": source.name,
        "kind": source.kind,
        "usage": source.usage,
        "domain": source.domain or source.name,
        "origin": source.origin,
        "license": source.license,
        "license_evidence": source.license_evidence,
        "revision": records["revision"],
        "retrieved": records["retrieved"],
        "documents": documents["documents"],
        "bytes": documents["bytes"],
        "rejected": documents["rejected"],
        "empty": documents["empty"],
        "duplicates": stages.duplicates.facts["sources"][source.name],
        "heldout_documents": heldout["kept"],
        "heldout_bytes": heldout["kept_bytes"],
        "overlap_dropped": heldout["overlap_dropped"],
        "training_documents": trained["documents"],
        "training_bytes": trained["bytes"],
        "tokens": trained["tokens"],
    }
