"""Job `contamination`: how much of evaluations stands in a corpus' training text."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.core.artifact import Artifact, load
from shoal.core.files import canonical_json, home
from shoal.core.progress import progress_for
from shoal.data import table
from shoal.data.benchmarks import TABLE as ITEMS
from shoal.data.benchmarks import as_table, read_items
from shoal.data.contamination import TABLE, overlap
from shoal.data.dedup import TABLE as DUPLICATES
from shoal.data.heldout import Unique
from shoal.data.near import TABLE as NEAR
from shoal.data.settings import Benchmark, DecontamConfig
from shoal.data.training import Split
from shoal.jobs.corpora import Corpus, find_corpus

HARNESS = "lm-eval:"
SHOWN = 5
_SHOWN_CHARACTERS = 160


def contamination(corpus: str, evals: Sequence[str]) -> dict[str, Any]:
    """How much of evaluation items is in what is trained on.

    Args:
        corpus: name or path of a prepared corpus.
        evals: files (JSON lines or text, plain, .gz or .zst), `lm-eval:TASK`, or names of
            benchmarks that the corpus was decontaminated against; none of them: all of these.

    Returns:
        {"corpus", "overlap": the artifact with the whole table, "path", "benchmarks": facts of
        each, "items": rows of the items of which most is found, at most SHOWN of each benchmark}.

    Raises:
        ValueError: there is no such corpus, file, benchmark or task.
    """
    found = find_corpus(corpus)
    stages = {stage: load(folder) for stage, folder in found.folders.items()}
    items = _items(found, stages, evals)
    made = overlap(
        home() / "corpora",
        found.ref.partition("@")[0],
        items,
        found.training,
        _split(stages),
        DecontamConfig(),
        {
            **{name: stages[name].digest for name in _BEHIND if name in stages},
            "items": hashlib.sha256(canonical_json(items.to_pylist()).encode()).hexdigest(),
        },
        progress_for(),
    )
    rows = [row for row in table.read(made.path / TABLE).to_pylist() if row["found_ngrams"]]
    rows.sort(key=lambda row: (-row["share"], -row["longest_run"], row["benchmark"], row["item"]))
    shown = [row for name in made.facts["benchmarks"] for row in _first(rows, name)]
    return {
        "corpus": found.ref,
        "overlap": made.ref,
        "path": str(made.path / TABLE),
        "benchmarks": made.facts["benchmarks"],
        "items": shown,
    }


_BEHIND = ("documents", "duplicates", "near", "heldout", "contamination")


def render(result: dict[str, Any]) -> str:
    """The result of `contamination` for a terminal."""
    lines = [f"corpus {result['corpus']}", ""]
    lines.append(
        f"{'evaluation':28} {'items':>7} {'looked for':>10} {'found':>7} {'half':>7} "
        f"{'share':>7} {'longest':>8}"
    )
    for name, facts in result["benchmarks"].items():
        lines.append(
            f"{name:28} {facts['items']:>7,} {facts['looked_for']:>10,} {facts['found']:>7,} "
            f"{facts['half']:>7,} {facts['share']:>7.1%} {facts['longest_run']:>8,}"
        )
    if result["items"]:
        lines += ["", f"most of it found, {SHOWN} of each at most"]
    for row in result["items"]:
        lines.append(
            f"  {row['benchmark']} {row['item']}: {row['share']:.0%} of {row['num_ngrams']} "
            f"n-grams, {row['longest_run']} words in a row in {row['source']} {row['source_id']}"
        )
        cut = "..." if len(row["passage"]) > _SHOWN_CHARACTERS else ""
        lines.append(f"    {row['passage'][:_SHOWN_CHARACTERS]}{cut}")
    return "\n".join([*lines, "", f"all items: {result['path']}"])


def _first(rows: Sequence[dict[str, Any]], benchmark: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["benchmark"] == benchmark][:SHOWN]


def _split(stages: dict[str, Artifact]) -> Split:
    tables = {"duplicates": DUPLICATES, "near": NEAR}
    copies = [stages[name].path / file for name, file in tables.items() if name in stages]
    unique = Unique(stages["documents"], copies)
    return Split(unique, stages["heldout"], stages.get("contamination"))


def _items(corpus: Corpus, stages: dict[str, Artifact], evals: Sequence[str]) -> pa.Table:
    known = as_table([])
    if "benchmarks" in stages:
        known = table.read(stages["benchmarks"].path / ITEMS)
    names = known["benchmark"].to_pylist()
    if not evals:
        if not names:
            raise ValueError(
                f"corpus {corpus.ref} was held against no benchmark; name a file to look for"
            )
        return known
    parts = []
    for name in evals:
        if name in names:
            parts.append(known.filter(pa.array([name == one for one in names], pa.bool_())))
        else:
            parts.append(as_table(read_items(_benchmark(name, sorted(set(names))))))
    return pa.concat_tables(parts)


def _benchmark(name: str, known: Sequence[str]) -> Benchmark:
    if name.startswith(HARNESS):
        return Benchmark(name=name.removeprefix(HARNESS), form="lm-eval")
    path = Path(name)
    if not path.is_file():
        there = f", or one of {', '.join(known)}" if known else ""
        raise ValueError(f"evaluation {name!r}: no such file; give a file, {HARNESS}TASK{there}")
    lines = {".jsonl", ".json", ".ndjson"}.intersection(path.suffixes)
    return Benchmark(name=path.name, form="jsonl" if lines else "text", path=str(path))
