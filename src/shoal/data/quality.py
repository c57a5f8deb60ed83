"""Stages `quality_model` and `quality`: how good an example of its kind each document is.

Stage `quality_model` fits the student (`data.student`) on the judge's labels whose documents are in
this corpus. Where fewer than `MIN_LABELS` are, or where held-out labels show that nothing can be
learned from them (rank correlation below `MIN_CORRELATION`), documents against damaged ones teach
instead. Files:
  model.npz     what words and looks are turned into, and the line over them
  student.json  calibrations and cut points per kind of text
Facts: student (`labels` or `controls`), judge (model, rubric, prompt and date of the labels),
labels: how many documents there are, found in this corpus, missing from it, rejected;
judge_separation: how well the judge itself told documents from damaged ones; held_out: the student
on examples that it had not seen, within kinds (rank_correlation with labels, the same of scores
lowered for short texts, within_one_level; separation from damaged documents, 0.5 is a guess);
labels_held_out: the same of the labels where they were tried, null elsewhere; weakness: what to
think of it, in words.

Stage `quality` writes `quality.parquet`, one row per training document, by source, then id:
  id      string
  source  string
  kind    string   the source's, within which it is compared
  score   float32  0 to 1
  level   int8     0 (worst) to num_buckets - 1: equal text of each kind in each
Facts: per level its documents and bytes; the same per kind. A killed stage goes on at the shard
that it was at.

A kind with fewer than `MIN_KIND_DOCUMENTS` sampled documents is cut with all others.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.resources import files as packaged
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.core.artifact import Artifact, build
from shoal.core.files import read_limited, write_atomic
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.config import CorpusConfig
from shoal.data.judge import MAX_LABELS_BYTES, Label, read_labels
from shoal.data.shards import shards
from shoal.data.training import Split

REVISION = 3
MODEL, STUDENT = "model.npz", "student.json"
TABLE = "quality.parquet"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("kind", pa.string()),
        ("score", pa.float32()),
        ("level", pa.int8()),
    ]
)
PACKAGED = "quickstart.jsonl"
MIN_LABELS = 100
# The shipped labels shuffled within kinds reach -0.08 on average, and 0.08 once in twenty.
MIN_CORRELATION = 0.1
MIN_KIND_DOCUMENTS = 25
SAMPLE_DOCUMENTS = 20_000
CONTROL_DOCUMENTS = 600
LIMIT_BYTES = 2**30


def quality_model(
    root: Path, corpus: CorpusConfig, split: Split, inputs: dict[str, str], progress: Progress
) -> Artifact:
    """Finds or makes the student.

    Raises:
        ValueError: the labels cannot be read, or the corpus has no word that repeats.
    """
    config = corpus.cells.quality
    path = labels_path(config.labels)
    digest = hashlib.sha256(read_limited(path, MAX_LABELS_BYTES)).hexdigest()

    def make(folder: Path) -> dict[str, Any]:
        return _make_model(folder, corpus, split, read_labels(path), progress)

    return build(
        root,
        f"{corpus.name}-quality-model",
        stage="quality_model",
        revision=REVISION,
        literals={
            "num_buckets": config.num_buckets,
            "seed": config.seed,
            "sources": [[source.name, source.kind] for source in corpus.training],
        },
        inputs={**inputs, "labels": digest},
        make=make,
    )


def quality(
    root: Path,
    corpus: CorpusConfig,
    split: Split,
    model: Artifact,
    inputs: dict[str, str],
    progress: Progress,
) -> Artifact:
    """Finds or makes the table of quality."""

    def make(folder: Path) -> dict[str, Any]:
        return _make_table(folder, corpus, split, model.path, progress)

    return build(
        root,
        f"{corpus.name}-quality",
        stage="quality",
        revision=REVISION,
        literals={
            "num_buckets": corpus.cells.quality.num_buckets,
            "sources": [[source.name, source.kind] for source in corpus.training],
        },
        inputs={**inputs, "quality_model": model.digest},
        make=make,
    )


def labels_path(labels: str) -> Path:
    """The file of labels: the one that ships with Shoal, or the user's.

    Raises:
        ValueError: there is no such file.
    """
    if labels == "packaged":
        return Path(str(packaged("shoal.data") / "labels" / PACKAGED))
    path = Path(labels)
    if not path.is_file():
        raise ValueError(
            f"quality.labels={labels!r} is no file; make one with `shoal label`, or use 'packaged'"
        )
    return path


def _make_table(
    folder: Path, corpus: CorpusConfig, split: Split, model: Path, progress: Progress
) -> dict[str, Any]:
    student = load_student(model)
    total = sum(len(split.sizes(source.name)) for source in corpus.training)
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    size: dict[str, Counter[int]] = defaultdict(Counter)
    with (
        progress.task("quality", total, "documents") as task,
        pq.ParquetWriter(folder / TABLE, SCHEMA, compression="zstd") as writer,
    ):
        for source in corpus.training:
            write = partial(_write, student=student, kind=source.kind)
            batches = split.batches(source.name, ["id", "source", "text", "bytes"])
            documents, lengths = counts[source.kind], size[source.kind]
            for shard in shards(folder, source.name, batches, write):
                table.append(writer, shard.path / TABLE)
                for level, (number, length) in shard.facts["levels"].items():
                    documents[int(level)] += number
                    lengths[int(level)] += length
                    task.advance(number)

    def levels_of(kinds: list[str]) -> list[dict[str, int]]:
        return [
            {
                "documents": sum(counts[kind][level] for kind in kinds),
                "bytes": sum(size[kind][level] for kind in kinds),
            }
            for level in range(corpus.cells.quality.num_buckets)
        ]

    kinds = sorted(counts)
    return {"levels": levels_of(kinds), "kinds": {kind: levels_of([kind]) for kind in kinds}}


def _write(
    folder: Path, batches: Iterable[pa.RecordBatch], student: Any, kind: str
) -> dict[str, Any]:
    """One shard of the table: level -> its documents and bytes."""
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    with pq.ParquetWriter(folder / TABLE, SCHEMA, compression="zstd") as writer:
        for batch in batches:
            scores = student.scores(batch["text"].to_pylist(), kind)
            levels = student.levels(scores, kind)
            columns = [batch["id"], batch["source"], [kind] * batch.num_rows, scores, levels]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
            writer.write_batch(pa.record_batch(arrays, SCHEMA))
            for level, length in zip(levels.tolist(), batch["bytes"].to_pylist(), strict=True):
                found[level][0] += 1
                found[level][1] += length
    return {"levels": {str(level): pair for level, pair in sorted(found.items())}}


def _make_model(
    folder: Path, corpus: CorpusConfig, split: Split, labels: list[Label], progress: Progress
) -> dict[str, Any]:
    from shoal.data import lexical, student
    from shoal.data.surface import pair_table

    config = corpus.cells.quality
    usable = {one.id: one for one in labels if not one.rejected and not one.control}
    texts, rows = _read(corpus, split, set(usable))
    with progress.task("quality model", len(texts), "documents") as task:
        words = lexical.fit(texts, student.DIRECTIONS, config.seed)
        features = student.Features(words=words, pairs=pair_table(texts))
        found = [row for row in rows if row["id"] in usable]
        told, examples, lesson, tried = _taught(found, usable, rows, features, config.seed)
        line, steps, agreement = lesson
        task.advance(len(texts))
        fitted = student.Student(features=features, line=line, steps=steps, cuts={})
        fitted = replace(fitted, cuts=_cuts(fitted, rows, config.num_buckets))
        student.check(fitted)
    _save(folder, fitted)
    judged = [one for one in labels if not one.rejected]
    return {
        "student": told.split()[0],
        "judge": sorted({(one.model, one.rubric, one.prompt, one.date) for one in labels}),
        "labels": {
            "all": len({one.id for one in labels}),
            "found": len({row["id"] for row in found}),
            "missing": len(usable.keys() - {row["id"] for row in found}),
            "rejected": sum(bool(one.rejected) for one in labels),
        },
        "judge_separation": _separation(judged),
        "examples": sum(not one.control for one in examples),
        "sampled_documents": len(texts),
        "held_out": agreement,
        "labels_held_out": tried,
        "weakness": WEAKNESS[told],
    }


WEAKNESS = {
    "labels": "a student of the judge named here is no better than that judge: read "
    "judge_separation and held_out before levels are given weight",
    "controls": "too few labelled documents are in this corpus: documents are ranked by how "
    "unlike damaged text they look, which says little about what is worth learning",
    "controls instead of labels": "the judge's labels are no guide to other labels of the same "
    "judge (labels_held_out), so they were not followed: documents are ranked by how unlike "
    "damaged text they look, which says little about what is worth learning",
}


def _taught(
    found: list[dict[str, Any]],
    usable: dict[str, Label],
    rows: list[dict[str, Any]],
    features: Any,
    seed: int,
) -> tuple[str, list[Any], tuple[Any, dict[str, Any], dict[str, Any]], dict[str, Any] | None]:
    """Who taught, the examples, what was learned, and what came of labels if tried."""
    from shoal.data import student

    told, tried = "controls", None
    if len(found) >= MIN_LABELS:
        shown, kinds, ids = _columns(found)
        examples = student.labelled(shown, kinds, ids, [usable[one].score for one in ids])
        lesson = student.fit(examples, features, seed)
        tried = lesson[2]
        if (tried.get("rank_correlation") or 0.0) >= MIN_CORRELATION:
            return "labels", examples, lesson, tried
        told = "controls instead of labels"
    examples = student.unlabelled(*_columns(_evenly(rows)))
    return told, examples, student.fit(examples, features, seed), tried


def _columns(rows: list[dict[str, Any]]) -> tuple[list[str], list[str], list[str]]:
    """Texts, kinds and ids."""
    shown, kinds, ids = ([row[name] for row in rows] for name in ("text", "kind", "id"))
    return shown, kinds, ids


def _separation(judged: list[Label]) -> dict[str, float | None]:
    """Of documents from damaged ones: over all, and of each from its own damaged copy."""
    from shoal.data.agreement import separation

    good = {one.id: one.score for one in judged if not one.control}
    bad = [one for one in judged if one.control]
    pairs = [(good[one.id], one.score) for one in bad if one.id in good]
    wins = sum((high > low) + (high == low) / 2 for high, low in pairs)
    return {
        "over_all": separation(list(good.values()), [one.score for one in bad]),
        "own_copy": round(wins / len(pairs), 4) if pairs else None,
    }


def _read(
    corpus: CorpusConfig, split: Split, wanted: set[str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The sample's texts, shortened, and its rows with those of all wanted ids."""
    from shoal.data.surface import shorten

    counts = {source.name: len(split.sizes(source.name)) for source in corpus.training}
    total = max(1, sum(counts.values()))
    texts: list[str] = []
    rows: list[dict[str, Any]] = []
    for source in corpus.training:
        left = -(-min(SAMPLE_DOCUMENTS, total) * counts[source.name] // total)
        for row in _rows(split, source.name):
            sampled = left > 0
            if not sampled and row["id"] not in wanted:
                continue
            row["text"] = shorten([row["text"]])[0]
            rows.append({**row, "kind": source.kind, "sampled": sampled})
            if sampled:
                texts.append(row["text"])
            left -= 1
    return texts, rows


def _rows(split: Split, source: str) -> Iterator[dict[str, Any]]:
    for batch in split.batches(source, ["id", "text", "bytes"]):
        yield from batch.to_pylist()


def _evenly(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """About as many documents of every kind, the first in id order."""
    kinds = sorted({row["kind"] for row in rows})
    each = -(-CONTROL_DOCUMENTS // max(1, len(kinds)))
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}
    return [
        row for kind in kinds for row in sorted(by_kind[kind], key=lambda row: row["id"])[:each]
    ]


def _cuts(fitted: Any, rows: list[dict[str, Any]], num_levels: int) -> dict[str, tuple[float, ...]]:
    """Kind -> cut points of the sample's scores; those of all kinds together for rare ones."""
    from shoal.data.student import ALL, cut_points

    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["sampled"]:
            by_kind[row["kind"]].append(row)
    found: dict[str, tuple[float, ...]] = {}
    scores: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    for kind, mine in sorted(by_kind.items()):
        scores.append(fitted.scores([row["text"] for row in mine], kind))
        sizes.append(np.array([row["bytes"] for row in mine], np.float64))
        if len(mine) >= MIN_KIND_DOCUMENTS:
            found[kind] = cut_points(scores[-1], sizes[-1], num_levels)
    found[ALL] = cut_points(np.concatenate(scores), np.concatenate(sizes), num_levels)
    return found


def _save(folder: Path, fitted: Any) -> None:
    words, line = fitted.features.words, fitted.line
    np.savez(
        folder / MODEL,
        hashes=words.hashes,
        idf=words.idf,
        directions=words.directions,
        pairs=fitted.features.pairs,
        means=line.means,
        scales=line.scales,
        slopes=line.slopes,
        start=np.float64(line.start),
    )
    content = {
        "steps": {
            kind: {"raw": steps.raw.tolist(), "aim": steps.aim.tolist()}
            for kind, steps in fitted.steps.items()
        },
        "cuts": fitted.cuts,
    }
    write_atomic(folder / STUDENT, json.dumps(content, indent=1) + "\n")


def load_student(folder: Path) -> Any:
    """The student of a finished model artifact."""
    from shoal.data import lexical, student

    with np.load(folder / MODEL, allow_pickle=False) as found:
        data = dict(found)
    words = lexical.Lexical(
        hashes=data["hashes"], words=(), idf=data["idf"], directions=data["directions"]
    )
    line = student.Line(
        means=data["means"],
        scales=data["scales"],
        slopes=data["slopes"],
        start=float(data["start"]),
    )
    content = json.loads(read_limited(folder / STUDENT, LIMIT_BYTES))
    return student.Student(
        features=student.Features(words=words, pairs=data["pairs"]),
        line=line,
        steps={
            kind: student.Steps(raw=np.array(one["raw"]), aim=np.array(one["aim"]))
            for kind, one in content["steps"].items()
        },
        cuts={kind: tuple(cuts) for kind, cuts in content["cuts"].items()},
    )
