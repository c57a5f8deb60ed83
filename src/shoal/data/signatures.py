"""Stage `near-signatures`: the MinHash bands of one source, an artifact of its own.

Table `signatures.parquet`, sorted by (id, source_id), one row per document:
  id         string
  source_id  string
  bytes      int64
  key        uint64        the first 64 bits of id
  bands      list<uint64>  see `data.minhash`; empty for a text without words
Facts: documents.

An artifact's inputs are the source's own file of documents and the settings of candidates, so a
change of another source, or of what is done with candidates, leaves it as it is; and a rerun after
a crash makes only those that are not there.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.core.artifact import Artifact, build
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.components import Components, components
from shoal.data.config import CorpusConfig
from shoal.data.engine import Engine
from shoal.data.settings import NearConfig

REVISION = 1
TABLE = "signatures.parquet"
# About two hundred bytes each while they are grouped.
ROWS_PER_PASS = 2**21
MOST_PASSES = 16
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source_id", pa.string()),
        ("bytes", pa.int64()),
        ("key", pa.uint64()),
        ("bands", pa.list_(pa.uint64())),
    ]
)


def signatures(
    root: Path,
    corpus: CorpusConfig,
    documents: Artifact,
    progress: Progress,
    config: NearConfig,
    engine: Engine,
) -> dict[str, Artifact]:
    """Finds or makes the bands of every training source: source -> artifact."""
    counts = documents.facts["sources"]
    total = sum(counts[source.name]["bytes"] for source in corpus.training)
    found: dict[str, Artifact] = {}
    with progress.task("near-duplicate signatures", total, "bytes") as task:
        for source in corpus.training:
            task.say(source.name)
            found[source.name] = _one(root, corpus.name, source.name, documents, config, engine)
            task.advance(counts[source.name]["bytes"])
        task.say("")
    return found


def _one(
    root: Path, corpus: str, source: str, documents: Artifact, config: NearConfig, engine: Engine
) -> Artifact:
    file = f"{source}.parquet"

    def make(folder: Path) -> Mapping[str, Any]:
        signed = engine.map(
            documents.path / file,
            partial(_bands, config=config),
            over="text",
            into=SCHEMA.field("bands"),
            keep=["id", "source_id", "bytes"],
        )
        signed = signed.sort_by([("id", "ascending"), ("source_id", "ascending")])
        prefixes = [int(identity[:16], 16) for identity in signed["id"].to_pylist()]
        signed = signed.add_column(3, "key", pa.array(prefixes, pa.uint64()))
        table.write(folder / TABLE, signed.cast(SCHEMA).combine_chunks())
        return {"documents": signed.num_rows}

    return build(
        root,
        f"{corpus}-signatures-{source}",
        stage="near-signatures",
        revision=REVISION,
        literals={
            "shingles": config.shingles,
            "shingle_length": config.shingle_length,
            "bands": config.bands,
            "rows": config.rows,
            "max_characters": config.max_characters,
            "seed": config.seed,
        },
        inputs={"documents": documents.manifest["files"][file]["sha256"]},
        make=make,
    )


def _bands(column: pa.Array, config: NearConfig) -> pa.Array:
    # Loaded where it runs, which may be a worker of a cluster.
    from shoal.data.minhash import bands_of

    return bands_of(column, config)


def join(signed: Sequence[Artifact], engine: Engine) -> Components:
    """The components of documents (by key) that share a band, across all sources.

    Bands are grouped in passes of about `ROWS_PER_PASS` rows, but in no more than `MOST_PASSES`.
    """
    paths = [artifact.path / TABLE for artifact in signed]
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    rows *= int(signed[0].manifest["literals"]["bands"])
    passes = min(MOST_PASSES, max(1, -(-rows // ROWS_PER_PASS)))
    found = engine.pairs(paths, lists="bands", value="key", passes=passes)
    return components((one.to_numpy(), other.to_numpy()) for one, other in found)
