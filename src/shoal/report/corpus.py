"""The page of a corpus: counts through the stages, provenance, licenses, a section per stage.

It is made of what `shoal audit` found, plain values, and reads no corpus itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shoal
from shoal.core.files import write_atomic
from shoal.report.corpus_schema import stage_title
from shoal.report.corpus_stages import emitted, stage_sections
from shoal.report.frame import frame
from shoal.report.markup import (
    Html,
    compact,
    count,
    el,
    join,
    missing,
    number,
    pairs,
    plain,
    size,
    table,
)
from shoal.report.plots import bar

type AuditFacts = Mapping[str, Any]

_CARD = ("origin", "license", "license_evidence", "revision", "retrieved")


def write(found: AuditFacts, path: Path) -> None:
    """Writes the page, whole or not at all."""
    write_atomic(path, render(found))


def render(found: AuditFacts) -> str:
    """The page of an audit."""
    sections = [
        ("stages", "Stages", _flow(found)),
        ("sources", "Sources", _sources(found)),
        ("licenses", "Licenses", _licenses(found)),
        *stage_sections(found),
    ]
    return frame(
        f"{found.get('corpus', 'Corpus')} · Shoal corpus audit",
        _header(found),
        sections,
        f"Made by Shoal {shoal.__version__} from the corpus' own tables.",
    )


def _header(found: AuditFacts) -> Html:
    sources = found.get("sources") or []
    training = [one for one in sources if one.get("usage") != "evaluation"]
    flow = found.get("flow") or []
    left = flow[-1]["out"] if flow else None
    problems = [el("li", problem) for problem in found.get("problems") or []]
    numbers = {
        "Training sources": (
            count(len(training)),
            f"{len(sources) - len(training)} for evaluation",
        ),
        "Documents": (count(left), f"of {count(flow[0]['in'])} records" if flow else ""),
        "Tokens": (compact(sum(number(one.get("tokens")) or 0 for one in training)), ""),
    }
    return el(
        "header",
        el("p", "Shoal corpus audit", class_="brand"),
        el("h1", str(found.get("corpus") or "Unnamed corpus")),
        el("p", _sentence(flow), class_="summary"),
        el("div", el("p", "Counts that do not add up:"), el("ul", problems), class_="problems")
        if problems
        else None,
        el(
            "dl",
            [
                el("div", el("dt", name), el("dd", value), el("dd", note, class_="note"))
                for name, (value, note) in numbers.items()
            ],
            class_="facts",
        ),
    )


def _sentence(flow: list[AuditFacts]) -> str:
    if not flow or not flow[0]["in"]:
        return "Nothing is counted in this corpus."
    share = flow[-1]["out"] / flow[0]["in"]
    return (
        f"{share:.1%} of the training sources' records are trained on. Every document that is not "
        "is named in a table of the stage that took it out, with the rule and the evidence."
    )


def _flow(found: AuditFacts) -> Html:
    flow = found.get("flow") or []
    if not flow:
        return missing("this corpus has no stage with documents.")
    total = flow[0]["in"] or 1
    columns = {
        "Stage": "", "In": "n", "Removed": "n", "Held out": "n", "Out": "n", "Cut": "n",
        "Size out": "n", "Left": "s",
    }  # fmt: skip
    rows = [
        [
            el("a", stage_title(one["stage"]), href=f"#stage-{one['stage']}"),
            *(count(one[name]) for name in ("in", "removed", "held_out", "out", "cut")),
            size(one.get("out_bytes")),
            join(bar(one["out"] / total, f"{one['out'] / total:.1%} left"), _share(one, total)),
        ]
        for one in flow
    ]
    told = (
        "Documents of training sources. Held out: kept whole for evaluation. Cut: the document "
        "stays, without a passage that a benchmark holds. Samples are those with the smallest "
        "hashes, so they are the same in every audit of this corpus."
    )
    return join(table("Stages", columns, rows, named=False), el("p", told, class_="note"))


def _share(one: AuditFacts, total: int) -> str:
    return f"{one['out'] / total:.1%}"


def _sources(found: AuditFacts) -> Html:
    sources = found.get("sources") or []
    if not sources:
        return missing("no source is recorded.")
    columns = {
        "Source": "", "Use": "", "Kind": "", "License": "s", "Documents": "n", "Size": "n",
        "Tokens": "n",
    }  # fmt: skip
    rows = [
        [
            str(one.get("name", "unnamed")),
            one.get("usage"),
            one.get("kind"),
            one.get("license"),
            count(one.get("documents")),
            size(one.get("bytes")),
            count(one.get("tokens")),
        ]
        for one in sources
    ]
    return join(
        table("Sources", columns, rows, named=False),
        el("details", el("summary", "Source cards"), [_card(one) for one in sources]),
        [emitted(one) for one in found.get("stages") or [] if one["stage"] == "source"],
    )


def _card(one: AuditFacts) -> Html:
    first = [(name.replace("_", " "), plain(one[name])) for name in _CARD if one.get(name)]
    rest = [
        (name.replace("_", " "), plain(value))
        for name, value in one.items()
        if name not in (*_CARD, "name") and value not in (None, "", [], {})
    ]
    return el("div", el("h4", str(one.get("name"))), pairs([*first, *rest]), class_="card")


def _licenses(found: AuditFacts) -> Html:
    licenses = found.get("licenses") or {}
    if not licenses:
        return missing("no license is recorded.")
    columns = {"License": "", "Sources": "n", "Documents": "n", "Size": "n", "Tokens": "n"}
    rows = [
        [
            name,
            count(sums["sources"]),
            count(sums["documents"]),
            size(sums["bytes"]),
            count(sums["tokens"]),
        ]
        for name, sums in licenses.items()
    ]
    return table("Licenses", columns, rows, named=False)
