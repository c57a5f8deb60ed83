"""What an audit tells of each stage beside its counts: files, columns, settings, samples, cells."""

import heapq
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from shoal.core.artifact import MANIFEST, MANIFEST_LIMIT_BYTES
from shoal.core.config import from_plain
from shoal.core.files import home, read_limited
from shoal.data import table
from shoal.data.mix import Shape, mixture
from shoal.data.settings import MixConfig
from shoal.jobs.audit_walk import Walk, drawn_by
from shoal.jobs.corpora import Corpus

PER_TOPIC = 2
_CELL = re.compile(r"t(\d+)-q(\d+)")
_RUN_LIMIT_BYTES = 64 * 2**20
# What the artifact's hash covers beside settings: the sources, told elsewhere.
_NO_SETTING = ("sources", "order", "weights")


def described(corpus: Corpus, walked: Walk) -> list[dict[str, Any]]:
    """Every stage in order: `stage`, `refs`, `tables`, `files`, `settings`, `facts`, `survivors`.

    A table is {"file", "files", "rows", "columns"}, its columns as the file has them; stage
    `source` stands once, for all of its artifacts that are still there.
    """
    sources = {one["name"] for one in corpus.sources}
    folders: dict[str, list[Path]] = {"source": list(corpus.inputs.values())}
    folders |= {stage: [path] for stage, path in corpus.folders.items()}
    return [
        {
            "stage": stage,
            "refs": [path.name for path in paths if path.is_dir()],
            **_files([path for path in paths if path.is_dir()], sources),
            "settings": {} if stage == "source" else _settings(paths[0]),
            "facts": {} if stage == "source" else _told(stage, corpus.facts(stage)),
            "survivors": [
                {"source": source, "id": identity}
                for source, (_, identity) in walked.survivors.get(stage, {}).items()
            ],
        }
        for stage, paths in folders.items()
        if paths
    ]


def topics(corpus: Corpus) -> list[dict[str, Any]]:
    """Per topic {"topic", "name", "share", "documents", "bytes", "samples"}; [] without topics."""
    if "topics" not in corpus.folders:
        return []
    fitted = corpus.facts("topic_model").get("topics", [])
    counted, drawn = _drawn(corpus.folders["topics"] / "topics.parquet", ("topic",), PER_TOPIC)
    told = corpus.facts("topics").get("topics", [])
    return [
        {
            "topic": place,
            "name": one["name"],
            "share": fitted[place].get("share") if place < len(fitted) else None,
            "documents": counted.get((place,), 0),
            "bytes": one.get("bytes"),
            "samples": drawn.get((place,), []),
        }
        for place, one in enumerate(told)
    ]


def levels(corpus: Corpus) -> list[dict[str, Any]]:
    """Per kind of text and level {"kind", "level", "documents", "bytes", "samples"}."""
    if "quality" not in corpus.folders:
        return []
    path = corpus.folders["quality"] / "quality.parquet"
    counted, drawn = _drawn(path, ("kind", "level"), 1)
    told = corpus.facts("quality").get("kinds", {})
    return [
        {
            "kind": kind,
            "level": level,
            "documents": counted.get((kind, level), 0),
            "bytes": one.get("bytes"),
            "samples": drawn.get((kind, level), []),
        }
        for kind, rows in told.items()
        for level, one in enumerate(rows)
    ]


def cells(corpus: Corpus) -> list[dict[str, Any]]:
    """Per cell of the token store its counts, and `topic` and `level` where it is of that kind."""
    found = []
    for name, counts in sorted(corpus.facts("tokens").get("cells", {}).items()):
        parts = _CELL.fullmatch(name)
        place = {"topic": int(parts[1]), "level": int(parts[2])} if parts else {}
        found.append({"cell": name, **place, **counts})
    return found


def mixed(corpus: Corpus) -> dict[str, Any]:
    """The run in SHOAL_HOME that read this corpus last, and how often it reads each cell.

    {"run", "rule", "tokens", "epochs": cell -> per phase}; empty where no run read it, or the last
    one simulates a larger one.
    """
    runs = []
    for path in (home() / "runs").glob("*/run.json"):
        run = json.loads(read_limited(path, _RUN_LIMIT_BYTES))
        if run.get("corpus") == corpus.ref and not run["config"]["data"].get("simulated_tokens"):
            runs.append((run.get("created", ""), path.parent.name, run["config"]))
    if not runs:
        return {}
    _, name, config = max(runs, key=lambda one: one[:2])
    units = {name: counts["units"] for name, counts in corpus.facts("tokens")["cells"].items()}
    train, data = config["train"], config["data"]
    shape = Shape(
        num_steps=train["num_steps"],
        batch_sequences=train["batch_sequences"],
        sequence_tokens=train["sequence_tokens"],
        unit_tokens=corpus.facts("tokens")["unit_tokens"],
        table_lanes=data["table_lanes"],
    )
    mix = mixture(from_plain(MixConfig, data["mix"]), units, shape)
    tokens = train["num_steps"] * train["batch_sequences"] * train["sequence_tokens"]
    told = {"run": name, "rule": data["mix"]["rule"], "tokens": tokens}
    return {**told, "epochs": {cell: list(each) for cell, each in mix.epochs.items()}}


def miscounted(corpus: Corpus, walked: Walk) -> Iterator[str]:
    """Where documents by topic and level are not the documents of the token store."""
    left = {(source, name) for source, sizes in walked.sizes.items() for name in sizes}
    values: dict[str, dict[tuple[str, str], int]] = {}
    for stage, column in (("topics", "topic"), ("quality", "level")):
        if stage in corpus.folders:
            rows = table.read(corpus.folders[stage] / f"{stage}.parquet", ["source", "id", column])
            keys = zip(rows["source"].to_pylist(), rows["id"].to_pylist(), strict=True)
            values[stage] = dict(zip(keys, rows[column].to_pylist(), strict=True))
            if values[stage].keys() != left:
                yield (
                    f"stage {stage} names {len(values[stage])} documents, {len(left)} are trained "
                    f"on; {len(left ^ values[stage].keys())} are not in both"
                )
    if len(values) < 2:
        return
    joined: dict[tuple[int, int], int] = defaultdict(int)
    for key, topic in values["topics"].items():
        joined[topic, values["quality"].get(key, -1)] += 1
    for one in cells(corpus):
        place = one.get("topic", -1), one.get("level", -1)
        if "topic" in one and joined[place] != one["documents"]:
            yield (
                f"cell {one['cell']}: {joined[place]} documents have this topic and level, the "
                f"token store holds {one['documents']}"
            )


def _drawn(
    path: Path, columns: tuple[str, ...], number: int
) -> tuple[dict[tuple[Any, ...], int], dict[tuple[Any, ...], list[dict[str, str]]]]:
    """Value of the columns -> how many rows have it, and a few documents that do."""
    counted: dict[tuple[Any, ...], int] = defaultdict(int)
    heaps: dict[tuple[Any, ...], list[tuple[int, str, str]]] = defaultdict(list)
    for batch in table.batches(path, ["source", "id", *columns]):
        rows = (batch[name].to_pylist() for name in ("source", "id", *columns))
        for source, identity, *key in zip(*rows, strict=True):
            counted[tuple(key)] += 1
            heap = heaps[tuple(key)]
            heapq.heappush(heap, (-drawn_by(source, identity), source, identity))
            if len(heap) > number:
                heapq.heappop(heap)
    drawn = {
        key: [{"source": source, "id": identity} for _, source, identity in sorted(heap)[::-1]]
        for key, heap in heaps.items()
    }
    return dict(counted), drawn


def _files(paths: list[Path], sources: set[str]) -> dict[str, Any]:
    """The tables in some folders, those of the same columns as one; and what else lies there."""
    tables: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    others: dict[str, dict[str, Any]] = {}
    for file in sorted(one for path in paths for one in path.rglob("*") if one.is_file()):
        if file.suffix == ".parquet":
            schema = pq.read_schema(file)
            columns = tuple((one.name, str(one.type)) for one in schema)
            name = "SOURCE.parquet" if file.stem in sources else file.name
            found = tables.setdefault(columns, {"file": name, "files": 0, "rows": 0})
            found["files"] += 1
            found["rows"] += pq.read_metadata(file).num_rows
        elif file.name != MANIFEST:
            nested = file.parent not in paths
            name = f"{file.parent.name}/*{file.suffix}" if nested else file.name
            found = others.setdefault(name, {"file": name, "files": 0, "bytes": 0})
            found["files"] += 1
            found["bytes"] += file.stat().st_size
    return {
        "tables": [
            {**one, "columns": [{"name": name, "type": kind} for name, kind in columns]}
            for columns, one in tables.items()
        ],
        "files": list(others.values()),
    }


def _settings(path: Path) -> dict[str, Any]:
    """What decides a stage's result, as its artifact's manifest names it; nested names dotted."""
    file = path / MANIFEST
    if not file.is_file():
        return {}
    literals = json.loads(read_limited(file, MANIFEST_LIMIT_BYTES)).get("literals", {})
    told: dict[str, Any] = {}
    for name, value in literals.items():
        if name in _NO_SETTING:
            continue
        told |= value if isinstance(value, Mapping) else {name: value}
    return told


def _told(stage: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain numbers and names; of the student all that says how far to trust it."""
    if stage == "quality_model":
        return dict(facts)
    return {name: value for name, value in facts.items() if isinstance(value, str | int | float)}
