"""The sections about held-out text: bits per byte against compressors, by domain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shoal.report.folder import RunFolder, at
from shoal.report.markup import (
    MINUS,
    Html,
    compact,
    count,
    el,
    fixed,
    join,
    missing,
    number,
    signed,
    table,
)
from shoal.report.plots import Series, strip, strip_key

SETS = {
    "sources": ("Held-out documents of the training sources", "held-out, sources", "c2"),
    "domains": ("Domain-labeled set, held out as a whole", "held-out, domains", "c3"),
}
COMPRESSORS = {"xz_bpb": "xz -9e", "zstd_bpb": "zstd -19"}
_COUNTS = ("documents", "bytes", "tokens")


def sets(evaluation: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The sets of one evaluation."""
    found = evaluation.get("sets")
    found = found if isinstance(found, Mapping) else {}
    return {str(name): one for name, one in found.items() if isinstance(one, Mapping)}


def _newest(run: RunFolder) -> dict[str, Mapping[str, Any]]:
    return sets(run.evals[-1]) if run.evals else {}


def _title(name: str) -> str:
    return SETS[name][0] if name in SETS else f"Set {name}"


def over_evaluations(run: RunFolder, key: str) -> list[Series]:
    """One series per set: a macro value over tokens."""
    points: dict[str, list[tuple[float, float]]] = {}
    for evaluation in run.evals:
        tokens = number(evaluation.get("tokens"))
        for name, one in sets(evaluation).items():
            value = number(at(one, "macro", key))
            if tokens is not None and value is not None:
                points.setdefault(name, []).append((tokens, value))
    series: list[Series] = []
    for name, known in points.items():
        x, y = np.array(known, np.float64).T
        _, label, style = SETS.get(name, ("", name, "c4"))
        series.append(Series(name=label, x=x, y=y, style=style, marks=len(x) <= 60))
    return series


def references(run: RunFolder) -> list[tuple[str, float]]:
    """What xz makes of each set."""
    found = {name: number(at(one, "macro", "xz_bpb")) for name, one in _newest(run).items()}
    return [(f"xz -9e, {name}", value) for name, value in found.items() if value is not None]


def headline(run: RunFolder) -> Html:
    """Macro bits per byte of every set against the compressors."""
    found = {
        name: ours
        for name, one in _newest(run).items()
        if (ours := number(at(one, "macro", "bpb"))) is not None
    }
    if not found:
        return missing("bits per byte appear here after the first evaluation.")
    others = {name: _others(at(_newest(run)[name], "macro")) for name in found}
    values = [*found.values(), *(value for known in others.values() for _, value in known)]
    low, high = _padded(values, 0.12)
    return el(
        "div",
        [_score(name, ours, others[name], low, high) for name, ours in found.items()],
        class_="scores",
    )


def _score(
    name: str, ours: float, others: list[tuple[str, float]], low: float, high: float
) -> Html:
    against = [
        join(
            ", " if place else None,
            el("span", fixed(abs(ours - value), 2), class_="better" if ours < value else "worse"),
            f" {'below' if ours < value else 'above'} {label} ({value:.2f})",
        )
        for place, (label, value) in enumerate(others)
    ]
    return el(
        "section",
        el("h3", _title(name)),
        el("p", el("strong", fixed(ours, 2)), " bits per byte", class_="score"),
        strip(ours, others, low, high),
        el("p", against, class_="against"),
        class_="set",
    )


def _others(domain: object) -> list[tuple[str, float]]:
    """The compressors' values that a domain or macro has."""
    found = {label: number(at(domain, key)) for key, label in COMPRESSORS.items()}
    return [(label, value) for label, value in found.items() if value is not None]


def _padded(values: list[float], share: float) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = share * (high - low) or 0.5
    return low - margin, high + margin


def evaluation(run: RunFolder) -> Html:
    """One table per set of the newest evaluation."""
    found = _newest(run)
    if not found:
        return missing("held-out text has not been evaluated yet.")
    newest = run.evals[-1]
    intro = el(
        "p",
        f"After step {count(newest.get('step'))}, {compact(newest.get('tokens'))} tokens. "
        "Bits per byte of the raw text, lower is better. Every token is scored once; xz and zstd "
        "compress the same bytes as one stream per domain.",
        class_="lede",
    )
    values = [
        value
        for one in found.values()
        for domain in _domains(one).values()
        for value in [number(domain.get("bpb")), *(value for _, value in _others(domain))]
        if value is not None
    ]
    low, high = _padded(values, 0.06)
    tables = [_domain_table(name, one, low, high) for name, one in found.items()]
    return join(intro, strip_key(list(COMPRESSORS.values())), tables)


def _domains(one: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = one.get("domains")
    found = found if isinstance(found, Mapping) else {}
    return {str(name): domain for name, domain in found.items() if isinstance(domain, Mapping)}


def _domain_table(name: str, one: Mapping[str, Any], low: float, high: float) -> Html:
    domains = _domains(one)
    if not domains:
        return missing(f"the set {name} holds no domain.")
    columns = {
        "Domain": "", "Ours": "n", "xz -9e": "n", "zstd -19": "n",
        f"Ours {MINUS} xz": "n", "Where they stand": "s", "Loss": "n", "Documents": "n",
        "Bytes": "n", "Tokens": "n",
    }  # fmt: skip
    rows = [_row(_label(name, domain), domain, low, high) for name, domain in domains.items()]
    macro = at(one, "macro")
    macro = dict(macro) if isinstance(macro, Mapping) else {}
    foot = [_row("Macro mean", {**_sums(domains.values()), **macro}, low, high)]
    prose = [domain for domain in domains.values() if not domain.get("code")]
    if prose and len(prose) < len(domains):
        foot.append(_row("Without code", {**_sums(prose), **_means(prose)}, low, high))
    return table(_title(name), columns, rows, foot=foot)


def _label(name: str, domain: Mapping[str, Any]) -> Html:
    about = [str(domain["kind"])] if domain.get("kind") else []
    about += ["shown, not gated"] if domain.get("code") else []
    return join(name, " ", el("em", "; ".join(about)) if about else None)


def _row(label: str, domain: Mapping[str, Any], low: float, high: float) -> list[Any]:
    ours, xz, zstd = (number(domain.get(key)) for key in ("bpb", "xz_bpb", "zstd_bpb"))
    difference = None
    if ours is not None and xz is not None:
        style = "better" if ours < xz else "worse"
        difference = el("span", signed(ours - xz, 3), class_=style)
    return [
        label,
        el("b", fixed(ours, 3)),
        fixed(xz, 3),
        fixed(zstd, 3),
        difference,
        strip(ours, _others(domain), low, high),
        fixed(domain.get("loss"), 3),
        *(count(domain.get(key)) for key in _COUNTS),
    ]


def _sums(domains: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    domains = list(domains)
    return {key: sum(number(domain.get(key)) or 0 for domain in domains) for key in _COUNTS}


def _means(domains: list[Mapping[str, Any]]) -> dict[str, float]:
    """Unweighted means of what every domain has."""
    found: dict[str, float] = {}
    for key in ("loss", "bpb", *COMPRESSORS):
        values = [value for domain in domains if (value := number(domain.get(key))) is not None]
        if len(values) == len(domains):
            found[key] = math.fsum(values) / len(values)
    return found
