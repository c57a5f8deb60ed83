"""Job `audit`: a finished corpus told from its own files, for people and as data.

Result: `sources` (cards and counts), `licenses` (sums per license), `flow` (documents and bytes of
training sources into and out of every stage), `by_source` (the same per source), `removals` (per
stage and rule: documents, by source, samples with evidence, keeper and text), `stages` (what each
emitted: tables with columns and types, files; its settings, facts and samples of what it gave on),
`topics`, `levels` and `cells` (counts, samples), `mixture` (epochs per cell of the run that read
the corpus last, if there is one), `problems` (counts that do not add up), and `report`,
`provenance` and `croissant`, the files. Everything is counted in the tables; nothing in them is
taken from run time. What is shown is what has the smallest hash, so it is always the same.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.files import home, write_atomic
from shoal.data import table
from shoal.data.provenance import croissant, provenance_csv
from shoal.jobs import audit_stages
from shoal.jobs.audit_walk import Walk, drawn_by, walk
from shoal.jobs.corpora import (
    CUT,
    ORDER,
    Corpus,
    CorpusRow,
    find_corpus,
    num_rows,
    removals,
)
from shoal.report.corpus import write

SAMPLES = 3
SAMPLE_CHARACTERS = 400
AROUND_CHARACTERS = 120
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
    rules, walked = _rules(corpus), walk(corpus)
    flow = _flow(corpus, walked)
    result = {
        "corpus": corpus.ref,
        "path": str(corpus.path),
        "sources": corpus.sources,
        "licenses": _licenses(corpus.sources),
        "flow": flow,
        "by_source": walked.counts,
        "removals": _removals(rules),
        "stages": audit_stages.described(corpus, walked),
        "topics": audit_stages.topics(corpus),
        "levels": audit_stages.levels(corpus),
        "cells": audit_stages.cells(corpus),
        "mixture": audit_stages.mixed(corpus),
        "problems": [*_problems(corpus, flow, walked, rules)],
    }
    _fill(corpus, result)
    return result


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
    columns = ("stage", "in", "removed", "held_out", "out", "cut", "in_bytes", "out_bytes")
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
            key = drawn_by(*place)
            heapq.heappush(rule.samples, (-key, -number, row))
            if len(rule.samples) > SAMPLES:
                heapq.heappop(rule.samples)
    return dict(found)


def _flow(corpus: Corpus, walked: Walk) -> list[dict[str, Any]]:
    return [
        {
            "stage": stage,
            "ref": corpus.folders[stage].name,
            **walked.total(stage, corpus.training),
        }
        for stage in ORDER[1:-1]
        if stage in walked.counts
    ]


def _licenses(sources: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in sources:
        sums = found.setdefault(one["license"], {"sources": 0, **dict.fromkeys(_SUMS, 0)})
        sums["sources"] += 1
        for name in _SUMS:
            sums[name] += one.get(name, 0)
    return dict(sorted(found.items(), key=lambda item: (-item[1]["bytes"], item[0])))


def _removals(rules: dict[tuple[str, str, str], _Rule]) -> list[dict[str, Any]]:
    order = sorted(rules, key=lambda key: (ORDER.index(key[0]), -len(rules[key].documents), key))
    return [
        {
            "stage": key[0],
            "rule": key[1],
            "outcome": key[2],
            "documents": len(rules[key].documents),
            "rows": rules[key].rows,
            "sources": dict(Counter(source for source, _ in rules[key].documents).most_common()),
            "samples": [
                row
                for _, _, row in sorted(rules[key].samples, key=lambda one: one[:2], reverse=True)
            ],
        }
        for key in order
    ]


def _fill(corpus: Corpus, result: dict[str, Any]) -> None:
    """Gives every sample its text: the beginning, or what surrounds a passage that was cut."""
    removed = [row for one in result["removals"] for row in one["samples"]]
    others = [row for one in result["stages"] for row in one["survivors"]]
    others += [
        row for name in ("topics", "levels") for one in result[name] for row in one["samples"]
    ]
    keepers = [row["keeper"] for row in removed if row["keeper"] and row["stage"] == "near"]
    wanted: dict[str, dict[str, list[CorpusRow]]] = defaultdict(lambda: defaultdict(list))
    for row in (*removed, *others, *keepers):
        row["text"] = ""
        if row["id"]:
            wanted[row["source"]][row["id"]].append(row)
    for source, ids in wanted.items():
        for batch in table.batches(corpus.documents(source), ["id", "source_id", "text"]):
            for place, identity in enumerate(batch["id"].to_pylist()):
                for row in ids.pop(identity, ()):
                    row.setdefault("source_id", batch["source_id"][place].as_py())
                    row.update(_shown(batch["text"][place].as_py(), row))


def _shown(text: str, row: CorpusRow) -> dict[str, Any]:
    if row.get("outcome") != CUT:
        return {"text": text[:SAMPLE_CHARACTERS]}
    start, stop = row["evidence"]["start"], row["evidence"]["stop"]
    first, last = max(0, start - AROUND_CHARACTERS), min(stop, start + SAMPLE_CHARACTERS)
    shown = text[first : last + (AROUND_CHARACTERS if last == stop else 0)]
    return {"text": shown, "passage": [start - first, last - first]}


def _problems(
    corpus: Corpus,
    flow: list[dict[str, Any]],
    walked: Walk,
    rules: dict[tuple[str, str, str], _Rule],
) -> Iterator[str]:
    """Counts of different files that should be the same and are not."""
    for one in corpus.sources:
        counted = num_rows(corpus.documents(one["name"]))
        if counted != one["documents"]:
            yield (
                f"source {one['name']}: the corpus record says {one['documents']} documents, its "
                f"table has {counted}"
            )
    sums = corpus.facts("tokens")
    stored = sum(cell["documents"] for cell in sums.get("cells", {}).values())
    if stored and flow and stored != flow[-1]["out"]:
        yield (
            f"{flow[-1]['out']} documents are left after stage {flow[-1]['stage']}, the token "
            f"store holds {stored}"
        )
    for name, told in sums.get("sources", {}).items():
        left = walked.sizes.get(name, {})
        if (len(left), sum(left.values())) != (told["documents"], told["bytes"]):
            yield (
                f"source {name}: {len(left)} documents of {sum(left.values())} bytes are left, the "
                f"token store was made of {told['documents']} of {told['bytes']}"
            )
    yield from _unfound(corpus, walked, rules)
    yield from audit_stages.miscounted(corpus, walked)


def _unfound(
    corpus: Corpus, walked: Walk, rules: dict[tuple[str, str, str], _Rule]
) -> Iterator[str]:
    """Removals of documents that did not come so far, or are in no table of documents."""
    names = [one["name"] for one in corpus.sources]
    for stage in walked.counts:
        for cut in (False, True):
            of = [
                rule
                for (at, _, what), rule in rules.items()
                if at == stage and (what == CUT) == cut
            ]
            told = len({place for rule in of for place in rule.documents})
            total = walked.total(stage, names)
            taken = total["cut"] if cut else (total["removed"] or 0) + (total["held_out"] or 0)
            if told != taken:
                yield (
                    f"stage {stage} names {told} documents that it {'cut' if cut else 'took out'}, "
                    f"{taken} of them came to it"
                )


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
