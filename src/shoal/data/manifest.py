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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shoal.core.artifact import Artifact, build
from shoal.core.files import read_limited, write_atomic
from shoal.data.config import CorpusConfig, Source
from shoal.data.provenance import card

REVISION = 2
CORPUS = "corpus.json"
LIMIT_BYTES = 64 * 2**20
_NOTHING = {"documents": 0, "bytes": 0, "tokens": 0}


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The artifacts of a corpus, in the order of the work; what is None is not made (yet).

    Attributes:
        sources: source -> its artifact.
    """

    sources: Mapping[str, Artifact]
    documents: Artifact
    duplicates: Artifact
    near: Artifact
    heldout: Artifact | None = None
    benchmarks: Artifact | None = None
    contamination: Artifact | None = None
    topic_model: Artifact | None = None
    topics: Artifact | None = None
    quality_model: Artifact | None = None
    quality: Artifact | None = None
    tokenizer: Artifact | None = None
    tokens: Artifact | None = None

    def named(self) -> dict[str, Artifact]:
        """Stage -> artifact, of those that read the documents of all sources, and of these."""
        found = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {name: artifact for name, artifact in found.items() if artifact is not None}

    def digests(self) -> dict[str, str]:
        """Stage -> digest: what the next stage goes on from."""
        return {name: artifact.digest for name, artifact in self.named().items()}

    def all(self) -> list[Artifact]:
        """Every artifact, those of the sources first."""
        return [*self.sources.values(), *self.named().values()]


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
            **stages.digests(),
        },
        make=make,
    )


def corpus_facts(corpus: CorpusConfig, stages: Stages) -> dict[str, Any]:
    """The content of `corpus.json`, without the corpus' own reference."""
    done = stages.named()
    facts = done["tokens"].facts
    sources = facts["sources"].values()
    tokens = sum(source["tokens"] - source["documents"] for source in sources)
    return {
        "sources": [_source(source, stages) for source in corpus.sources],
        "tokenizer": {
            "ref": done["tokenizer"].ref,
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
    """A source's card and its counts; of a blocked one there is nothing to count."""
    said = card(source)
    if source.usage == "blocked":
        return said
    done, name = stages.named(), source.name
    documents = done["documents"].facts["sources"][name]
    heldout = done["heldout"].facts["sources"][name]
    near = done["near"].facts["sources"].get(name, {"removed": 0, "removed_bytes": 0})
    contaminated = done["contamination"].facts["sources"].get(name, {})
    trained = done["tokens"].facts["sources"].get(name, _NOTHING)
    return {
        **said,
        "domain": source.domain or name,
        "retrieved": stages.sources[name].facts["retrieved"],
        "documents": documents["documents"],
        "bytes": documents["bytes"],
        "rejected": documents["rejected"],
        "empty": documents["empty"],
        "duplicates": done["duplicates"].facts["sources"][name],
        "near_duplicates": near["removed"],
        "near_duplicate_bytes": near["removed_bytes"],
        "heldout_documents": heldout["kept"],
        "heldout_bytes": heldout["kept_bytes"],
        "overlap_dropped": heldout["overlap_dropped"],
        "contaminated_documents": contaminated.get("contaminated", 0),
        "contaminated_dropped": contaminated.get("dropped", 0),
        "contaminated_characters": contaminated.get("characters", 0),
        "training_documents": trained["documents"],
        "training_bytes": trained["bytes"],
        "tokens": trained["tokens"],
    }
