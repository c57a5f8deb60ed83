"""Job `audit`: a finished corpus told from its own files, for people and as data.

Result: `sources` (cards and counts), `licenses` (sums per license), `flow` (documents of training
sources into and out of every stage), `removals` (per stage and rule: documents, by source, samples
with evidence, keeper and the beginning of the text), `problems` (counts that do not add up), and
`report`, `provenance` and `croissant`, the files. Everything is counted in the tables; nothing in
them is taken from run time.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shoal.core.files import home, write_atomic
from shoal.data import table
from shoal.data.provenance import croissant, provenance_csv
from shoal.jobs.corpora import (
    CUT,
    HELD_OUT,
    ORDER,
    REMOVED,
    Corpus,
    CorpusRow,
    find_corpus,
    num_rows,
    removals,
)
from shoal.report.corpus import write

SAMPLES = 3
SAMPLE_CHARACTERS = 400
_SUMS = ("documents", "bytes", "training_documents", "training_bytes", "tokens")


@dataclass(kw_only=True)
class _Rule:
    """What one rule of one stage did; `samples` is a heap of the smallest hashes."""

    documents: set[tuple[str, str]] = field(default_factory=set)
    rows: int = 0
    samples: list[tuple[int, int, CorpusRow]] = field(default_factory=list)


def audit(corpus: str, out: Path | None = None) -> dict[str, Any]:
    """Audit a corpus, write its page and, beside it, its provenance as CSV and as Croissant.

    Args:
        corpus: a path, NAME@HASH12 or NAME.
        out: where the page goes; SHOAL_HOME/audits/NAME@HASH12.html by default. The others have its
            name with `.csv` and `.croissant.json`.

    Raises:
        ValueError: there is no such corpus, or one of its stages is gone.
    """
    found = find_corpus(corpus)
    result = facts(found)
    path = out or home() / "audits" / f"{result['corpus']}.html"
    write(result, path)
    told = {"corpus": found.ref, **found.content}
    table_path, croissant_path = path.with_suffix(".csv"), path.with_suffix(".croissant.json")
    write_atomic(table_path, provenance_csv(told))
    write_atomic(croissant_path, json.dumps(croissant(told), indent=1, ensure_ascii=False) + "\n")
    files = {"report": path, "provenance": table_path, "croissant": croissant_path}
    return {**result, **{name: str(file) for name, file in files.items()}}


def facts(corpus: Corpus) -> dict[str, Any]:
    """What `audit` tells, without the page."""
    rules = _rules(corpus)
    flow = _flow(corpus, rules)
    return {
        "corpus": corpus.ref,
        "path": str(corpus.path),
        "sources": corpus.sources,
        "licenses": _licenses(corpus.sources),
        "flow": flow,
        "removals": _removals(corpus, rules),
        "problems": _problems(corpus, flow),
    }


def render(result: dict[str, Any]) -> str:
    """Return an audit for a terminal."""
    lines = [f"{result['corpus']}  {result['path']}", "", "sources"]
    columns = ("name", "usage", "kind", "license", "documents", "bytes", "tokens")
    lines += _columns([columns, *([one.get(c, "") for c in columns] for one in result["sources"])])
    lines += ["", "licenses"]
    columns = ("license", "sources", "documents", "bytes", "tokens")
    rows = [[name, *(sums[c] for c in columns[1:])] for name, sums in result["licenses"].items()]
    lines += _columns([columns, *rows])
    lines += ["", "documents of training sources, stage by stage"]
    columns = ("stage", "in", "removed", "held_out", "out", "cut")
    lines += _columns([columns, *([one[c] for c in columns] for one in result["flow"])])
    lines += ["", "removals"]
    for one in result["removals"]:
        told = f"{one['outcome']} {one['documents']:,}"
        lines.append(f"  {one['stage']}, {one['rule']}: {told}  ({_told(one['sources'])})")
        for sample in one["samples"]:
            place = f"{sample['source']}/{sample['source_id'] or sample['id']}"
            lines.append(f"    {place}  {_told(sample['evidence'])}")
            if sample["keeper"]:
                keeper = sample["keeper"]
                lines.append(f"      kept: {keeper['source']}/{keeper['source_id']}")
    if not result["removals"]:
        lines.append("  none")
    lines += ["", *(f"PROBLEM: {problem}" for problem in result["problems"])]
    if not result["problems"]:
        lines.append("the counts of all stages add up")
    if "report" in result:
        lines += [f"{name}: {result[name]}" for name in ("report", "provenance", "croissant")]
    return "\n".join(lines)


def _rules(corpus: Corpus) -> dict[tuple[str, str, str], _Rule]:
    """(stage, rule, outcome) -> its documents, and a few of them that no order decides."""
    found: dict[tuple[str, str, str], _Rule] = defaultdict(_Rule)
    for stage in ORDER:
        for number, row in enumerate(removals(corpus, stage)):
            rule = found[stage, row["rule"], row["outcome"]]
            place = (row["source"], row["source_id"] or row["id"])
            rule.rows += 1
            if place in rule.documents:
                continue
            rule.documents.add(place)
            key = xxhash.xxh3_64_intdigest("/".join(place).encode())
            heapq.heappush(rule.samples, (-key, -number, row))
            if len(rule.samples) > SAMPLES:
                heapq.heappop(rule.samples)
    return dict(found)


def _flow(corpus: Corpus, rules: dict[tuple[str, str, str], _Rule]) -> list[dict[str, Any]]:
    training = set(corpus.training)
    documents = sum(num_rows(corpus.documents(name)) for name in training)

    def taken(stage: str, outcome: str) -> int:
        """Distinct documents: one can break several rules of a stage."""
        places = (
            rule.documents
            for (at, _, what), rule in rules.items()
            if (at, what) == (stage, outcome)
        )
        return len({place for found in places for place in found if place[0] in training})

    flow: list[dict[str, Any]] = []
    present = [stage for stage in ORDER[1:-1] if stage in corpus.folders]
    left = documents + taken("documents", REMOVED)
    for stage in present:
        removed, held = taken(stage, REMOVED), taken(stage, HELD_OUT)
        row = {"stage": stage, "ref": corpus.folders[stage].name, "in": left, "removed": removed}
        left -= removed + held
        flow.append({**row, "held_out": held, "out": left, "cut": taken(stage, CUT)})
    return flow


def _licenses(sources: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in sources:
        sums = found.setdefault(one["license"], {"sources": 0, **dict.fromkeys(_SUMS, 0)})
        sums["sources"] += 1
        for name in _SUMS:
            sums[name] += one.get(name, 0)
    return dict(sorted(found.items(), key=lambda item: (-item[1]["bytes"], item[0])))


def _removals(corpus: Corpus, rules: dict[tuple[str, str, str], _Rule]) -> list[dict[str, Any]]:
    order = sorted(rules, key=lambda key: (ORDER.index(key[0]), -len(rules[key].documents), key))
    texts = _beginnings(corpus, [row for key in order for _, _, row in rules[key].samples])
    return [
        {
            "stage": key[0],
            "rule": key[1],
            "outcome": key[2],
            "documents": len(rules[key].documents),
            "rows": rules[key].rows,
            "sources": dict(Counter(source for source, _ in rules[key].documents).most_common()),
            "samples": [
                {**row, "text": texts.get((row["source"], row["id"]), "")}
                for _, _, row in sorted(rules[key].samples, key=lambda one: one[:2], reverse=True)
            ],
        }
        for key in order
    ]


def _beginnings(corpus: Corpus, rows: list[CorpusRow]) -> dict[tuple[str, str], str]:
    wanted: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["id"]:
            wanted[row["source"]].add(row["id"])
    found: dict[tuple[str, str], str] = {}
    for source, ids in wanted.items():
        for batch in table.batches(corpus.documents(source), ["id", "text"]):
            names = batch["id"].to_pylist()
            for place in (place for place, name in enumerate(names) if name in ids):
                found[source, names[place]] = batch["text"][place].as_py()[:SAMPLE_CHARACTERS]
    return found


def _problems(corpus: Corpus, flow: list[dict[str, Any]]) -> list[str]:
    """Counts of different files that should be the same and are not."""
    problems = []
    for one in corpus.sources:
        counted = num_rows(corpus.documents(one["name"]))
        if counted != one["documents"]:
            problems.append(
                f"source {one['name']}: the corpus record says {one['documents']} documents, its "
                f"table has {counted}"
            )
    cells = corpus.facts("tokens").get("cells", {})
    stored = sum(cell["documents"] for cell in cells.values())
    if cells and flow and stored != flow[-1]["out"]:
        problems.append(
            f"{flow[-1]['out']} documents are left after stage {flow[-1]['stage']}, the token "
            f"store holds {stored}"
        )
    return problems


def _columns(rows: Iterable[Iterable[Any]]) -> list[str]:
    spelled = [
        [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows
    ]
    widths = [max(len(cell) for cell in column) for column in zip(*spelled, strict=True)]
    numbers = [
        all(row[place].replace(",", "").isdigit() for row in spelled[1:]) and len(spelled) > 1
        for place in range(len(widths))
    ]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in spelled
    ]


def _told(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    )
