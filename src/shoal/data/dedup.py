"""Stage `duplicates`: documents whose text is there already.

Table `duplicates.parquet`, one row per dropped document:
  id                string  of the text, shared with the keeper
  source            string  the dropped copy
  source_id         string
  keeper_source     string  the copy that stays
  keeper_source_id  string
  rule              string  `exact within source` or `exact across sources`
Facts: duplicates per source.

The keeper is in the source that stands first in the corpus; within a source it is the copy with the
smallest source_id.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.core.artifact import Artifact, build
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.config import CorpusConfig

REVISION = 1
TABLE = "duplicates.parquet"
SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in ("id", "source", "source_id", "keeper_source", "keeper_source_id", "rule")
    ]
)


def duplicates(
    root: Path, corpus: CorpusConfig, documents: Artifact, progress: Progress
) -> Artifact:
    """Finds or makes the table of exact duplicates."""

    def make(folder: Path) -> dict[str, Any]:
        total = sum(facts["documents"] for facts in documents.facts["sources"].values())
        keepers: dict[str, tuple[str, str]] = {}
        dropped: list[tuple[str, ...]] = []
        with progress.task("exact duplicates", total, "documents") as task:
            for source in corpus.read:
                path = documents.path / f"{source.name}.parquet"
                for batch in table.batches(path, ["id", "source_id"]):
                    dropped += _repeats(batch, source.name, keepers)
                    task.advance(batch.num_rows)
        columns = list(zip(*dropped, strict=True)) or [()] * len(SCHEMA)
        arrays = [pa.array(column, pa.string()) for column in columns]
        table.write(folder / TABLE, pa.Table.from_arrays(arrays, schema=SCHEMA))
        counts = Counter(row[1] for row in dropped)
        return {"sources": {source.name: counts[source.name] for source in corpus.read}}

    return build(
        root,
        f"{corpus.name}-duplicates",
        stage="duplicates",
        revision=REVISION,
        literals={"order": [source.name for source in corpus.read]},
        inputs={"documents": documents.digest},
        make=make,
    )


def _repeats(
    batch: pa.RecordBatch, source: str, keepers: dict[str, tuple[str, str]]
) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    columns = zip(batch["id"].to_pylist(), batch["source_id"].to_pylist(), strict=True)
    for identity, source_id in columns:
        keeper = keepers.setdefault(identity, (source, source_id))
        if keeper != (source, source_id):
            rule = "exact within source" if keeper[0] == source else "exact across sources"
            found.append((identity, source, source_id, *keeper, rule))
    return found
