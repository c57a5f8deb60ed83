"""Stages `topic_model` and `topics`: what documents are about.

Stage `topic_model` is fitted on a sample of training documents, of every source in proportion to
its text, the first in id order (ids are hashes of the text). Embeddings (`data.embed`) are gathered
around many centroids, and these into topics (`data.grouping`), balanced by weight. Files:
  model.npz    hashes uint64[V], idf float32[V], directions float32[E, V]: of the words;
               centroids float32[K, E]; topic int64[K]: the topic of each centroid
  words.json   the words of the vocabulary
  topics.json  per topic: name (its most telling words), share of the sample, centroids
Facts: the content of topics.json, sampled documents, centroids and topics, and how many of them
were asked for: there is at least `ROWS_PER_CENTROID` sampled documents per centroid, and where no
further division leaves every topic `min_share`, there are fewer.

Stage `topics` writes `topics.parquet`, one row per training document, by source, then id:
  id        string
  source    string
  centroid  int32
  topic     int32    number of the topic, by falling share of the sample
  score     float32  closeness to the centroid, 1 at most; 0 for text without a known word
Facts: per topic its documents and bytes. A killed stage goes on at the shard that it was at.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.core.artifact import Artifact, build
from shoal.core.config import plain
from shoal.core.files import read_limited, write_atomic
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.config import CorpusConfig
from shoal.data.settings import TopicsConfig
from shoal.data.shards import shards
from shoal.data.training import Split

REVISION = 1
MODEL, WORDS, TOPICS = "model.npz", "words.json", "topics.json"
TABLE = "topics.parquet"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("centroid", pa.int32()),
        ("topic", pa.int32()),
        ("score", pa.float32()),
    ]
)
ROWS_PER_CENTROID = 8
NAME_WORDS = 5
FILE_LIMIT_BYTES = 2**30


def topic_model(
    root: Path, corpus: CorpusConfig, split: Split, inputs: dict[str, str], progress: Progress
) -> Artifact:
    """Finds or makes the model that gives a document its topic.

    Raises:
        ValueError: the sample shares no words, or as `embed.embedder`.
    """
    config = corpus.cells.topics

    def make(folder: Path) -> dict[str, Any]:
        texts, sizes = _sample(corpus, split, config)
        with progress.task("topics", len(texts), "documents") as task:
            facts = _fit(folder, config, texts, sizes)
            task.advance(len(texts))
        return facts

    return build(
        root,
        f"{corpus.name}-topic-model",
        stage="topic_model",
        revision=REVISION,
        literals={"topics": plain(config), "sources": [s.name for s in corpus.training]},
        inputs={**inputs, **_model_input(config)},
        make=make,
    )


def topics(
    root: Path,
    corpus: CorpusConfig,
    split: Split,
    model: Artifact,
    inputs: dict[str, str],
    progress: Progress,
) -> Artifact:
    """Finds or makes the table of topics."""
    config = corpus.cells.topics

    def make(folder: Path) -> dict[str, Any]:
        total = sum(len(split.sizes(source.name)) for source in corpus.training)
        documents: Counter[int] = Counter()
        size: Counter[int] = Counter()
        with (
            progress.task("assign topics", total, "documents") as task,
            pq.ParquetWriter(folder / TABLE, SCHEMA, compression="zstd") as writer,
        ):
            write = partial(_write, assign=_assigner(model.path, config))
            for source in corpus.training:
                batches = split.batches(source.name, ["id", "source", "text", "bytes"])
                for shard in shards(folder, source.name, batches, write):
                    table.append(writer, shard.path / TABLE)
                    for one, (number, length) in shard.facts["topics"].items():
                        documents[int(one)] += number
                        size[int(one)] += length
                        task.advance(number)
        named = model.facts["topics"]
        return {
            "topics": [
                {"name": one["name"], "documents": documents[number], "bytes": size[number]}
                for number, one in enumerate(named)
            ]
        }

    return build(
        root,
        f"{corpus.name}-topics",
        stage="topics",
        revision=REVISION,
        literals={"sources": [source.name for source in corpus.training]},
        inputs={**inputs, "topic_model": model.digest},
        make=make,
    )


def _write(folder: Path, batches: Iterable[pa.RecordBatch], assign: Any) -> dict[str, Any]:
    """One shard of the table: topic -> its documents and bytes."""
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    with pq.ParquetWriter(folder / TABLE, SCHEMA, compression="zstd") as writer:
        for batch in batches:
            centroid, topic, score = assign(batch["text"].to_pylist())
            columns = [batch["id"], batch["source"], centroid, topic, score]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
            writer.write_batch(pa.record_batch(arrays, SCHEMA))
            for one, length in zip(topic.tolist(), batch["bytes"].to_pylist(), strict=True):
                counts[one][0] += 1
                counts[one][1] += length
    return {"topics": {str(one): found for one, found in sorted(counts.items())}}


def _model_input(config: TopicsConfig) -> dict[str, str]:
    from shoal.data.embed import model_digest

    digest = model_digest(config)
    return {"embedding": digest} if digest else {}


def _sample(
    corpus: CorpusConfig, split: Split, config: TopicsConfig
) -> tuple[list[str], np.ndarray]:
    """Texts of the sample, and how many bytes or documents each stands for."""
    from shoal.data.embed import shorten

    sizes = {source.name: split.sizes(source.name) for source in corpus.training}
    total = sum(sum(found.values()) for found in sizes.values())
    texts: list[str] = []
    weights: list[float] = []
    for name, found in sizes.items():
        held = sum(found.values())
        wanted = min(len(found), -(-config.sample_documents * held // max(1, total)))
        taken = 0
        for batch in split.batches(name, ["text"]) if wanted else ():
            new = batch["text"].slice(0, wanted - taken).to_pylist()
            texts += shorten(new)
            taken += len(new)
            if taken == wanted:
                break
        own = np.fromiter(list(found.values())[:wanted], np.float64)
        if config.weight == "documents":
            own, held = np.ones(wanted), len(found)
        weights += (own * (held / max(1.0, own.sum()))).tolist()
    return texts, np.array(weights)


def _fit(folder: Path, config: TopicsConfig, texts: list[str], sizes: np.ndarray) -> dict[str, Any]:
    from shoal.data import grouping, lexical
    from shoal.data.embed import embedder

    words = lexical.fit(texts, config.dimensions, config.seed)
    weighted = words.weights(texts)
    rows = words.project(weighted) if config.embedding == "lexical" else embedder(config)(texts)
    count = max(1, min(config.centroids, len(rows) // ROWS_PER_CENTROID))
    centroids = grouping.k_means(rows, count, config.seed)
    place, _ = grouping.nearest(rows, centroids)
    mass = np.bincount(place, sizes, count)
    topic = grouping.divide(centroids, mass, config.num_topics, config.min_share, config.seed)
    num_topics = int(topic.max()) + 1
    share = np.bincount(topic, mass, num_topics) / mass.sum()
    named = _names(words, weighted, topic[place], num_topics)
    members = np.bincount(topic, minlength=num_topics)
    found = [
        {"name": name, "share": round(float(part), 6), "centroids": int(number)}
        for name, part, number in zip(named, share, members, strict=True)
    ]
    np.savez(
        folder / MODEL,
        hashes=words.hashes,
        idf=words.idf,
        directions=words.directions,
        centroids=centroids,
        topic=topic,
    )
    write_atomic(folder / WORDS, json.dumps(list(words.words)) + "\n")
    write_atomic(folder / TOPICS, json.dumps(found, indent=1) + "\n")
    return {
        "topics": found,
        "sampled_documents": len(texts),
        "words": len(words.words),
        "centroids": count,
        "centroids_asked": config.centroids,
        "topics_asked": config.num_topics,
    }


def _names(words: Any, weighted: Any, topic: np.ndarray, count: int) -> list[str]:
    """The words that a topic's documents hold more of than all documents do."""
    import scipy.sparse as sp

    from shoal.data import grouping

    ones = np.ones(len(topic), np.float32)
    member = sp.csr_matrix((ones, (topic, np.arange(len(topic)))), (count, len(topic)))
    sums = np.asarray((member @ weighted).todense(), np.float64)
    means = sums / np.maximum(1, np.bincount(topic, minlength=count))[:, None]
    return grouping.names(words.words, means - sums.sum(0) / len(topic), NAME_WORDS)


def _assigner(folder: Path, config: TopicsConfig) -> Any:
    """The function from texts to (centroid, topic, score) of each."""
    from shoal.data import grouping, lexical
    from shoal.data.embed import embedder, shorten

    with np.load(folder / MODEL, allow_pickle=False) as found:
        hashes, idf, directions = found["hashes"], found["idf"], found["directions"]
        centroids, topic = found["centroids"], found["topic"]
    words = tuple(json.loads(read_limited(folder / WORDS, FILE_LIMIT_BYTES)))
    fitted = lexical.Lexical(hashes=hashes, words=words, idf=idf, directions=directions)
    embed = fitted.embed if config.embedding == "lexical" else embedder(config)

    def assign(texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place, close = grouping.nearest(embed(shorten(texts)), centroids)
        return place, topic[place], close

    return assign
