"""The sections about where a run came from: sources, stages, configuration, events, provenance."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shoal.report.folder import RunFolder, at
from shoal.report.markup import (
    Html,
    count,
    duration,
    el,
    fixed,
    join,
    missing,
    moment,
    number,
    pairs,
    plain,
    size,
    table,
)
from shoal.report.plots import bar

_EVENTS_SHOWN = 200
_SAMPLES_SHOWN = 6
_PROBLEMS_SHOWN = 20
_ALARMS = ("torn", "nonfinite", "change")
_TAKEN_OUT = ("duplicates", "heldout_documents", "overlap_dropped")
_SUMS = ("documents", "bytes", "tokens", *_TAKEN_OUT)
_MEANINGS = (
    "Duplicates: documents dropped because the same text stands elsewhere. Held out: whole "
    "documents kept for evaluation. Overlap: held-out documents dropped because they share a "
    "passage with training text."
)
_CARD = (
    "origin", "license", "license_evidence", "revision", "retrieved", "usage", "units",
    "tail_tokens",
)  # fmt: skip


def dicts(values: object) -> list[dict[str, Any]]:
    """The objects of a list."""
    found = values if isinstance(values, list) else []
    return [value for value in found if isinstance(value, dict)]


def sources(run: RunFolder) -> Html:
    """What the model was trained on, with counts, licenses and what was taken out."""
    found = dicts(run.corpus.get("sources"))
    if not found:
        return missing("this run folder has no corpus record.")
    columns = {
        "Source": "", "Kind": "", "License": "s", "Documents": "n", "Size": "n", "Tokens": "n",
        "Share": "s", "Duplicates": "n", "Held out": "n", "Overlap": "n",
    }  # fmt: skip
    sums = {
        key: sum(number(one.get(key)) or 0 for one in found)
        for key in _SUMS
        if any(key in one for one in found)
    }
    total = sums.get("tokens", 0)
    rows = [_source(one, str(one.get("name") or "unnamed"), total) for one in found]
    blank = {"kind": "", "license": ""}
    foot = [_source({**sums, **blank}, f"{len(found)} sources", total)]
    return join(
        _tokenizer(run, found),
        table("Training sources", columns, rows, foot=foot, named=False),
        el("p", _MEANINGS, class_="note"),
        el("details", el("summary", "Source cards"), [_card(one) for one in found]),
    )


def _source(one: Mapping[str, Any], label: str, total: float) -> list[Any]:
    tokens = number(one.get("tokens"))
    share = None
    if tokens is not None and total:
        part = tokens / total
        share = join(bar(part, f"{part:.1%} of the tokens"), f"{part:.0%}")
    return [
        label,
        _text_or_none(one, "kind"),
        _text_or_none(one, "license"),
        count(one.get("documents")),
        size(one.get("bytes")),
        count(one.get("tokens")),
        share,
        *(count(one.get(key)) for key in _TAKEN_OUT),
    ]


def _text_or_none(one: Mapping[str, Any], key: str) -> str | None:
    return None if one.get(key) is None else str(one[key])


def _tokenizer(run: RunFolder, found: list[dict[str, Any]]) -> Html:
    told = [f"Corpus {run.corpus.get('corpus') or run.run.get('corpus') or 'unnamed'}."]
    vocabulary = at(run.corpus, "tokenizer", "vocab_size")
    if vocabulary is not None:
        told.append(
            f"Tokenizer {at(run.corpus, 'tokenizer', 'ref')}: {count(vocabulary)} pieces, "
            f"{fixed(at(run.corpus, 'tokenizer', 'bytes_per_token'), 2)} bytes per token."
        )
    unit = run.corpus.get("unit_tokens")
    if unit is not None:
        tails = [tail for one in found if (tail := number(one.get("tail_tokens"))) is not None]
        left = f"; the {count(sum(tails))} tokens behind the last whole units are left out"
        told.append(f"Streams are cut into units of {count(unit)} tokens{left if tails else ''}.")
    return el("p", " ".join(told), class_="lede")


def _card(one: Mapping[str, Any]) -> Html:
    known = [key for key in _CARD if one.get(key) is not None]
    return el(
        "section",
        el("h4", str(one.get("name") or "unnamed")),
        pairs((key.replace("_", " "), plain(one[key])) for key in known),
        class_="card",
    )


def stages(run: RunFolder) -> Html:
    """The artifacts that the corpus was made of, and the time each took."""
    found = dicts(run.corpus.get("stages"))
    if not found:
        return missing("this run folder has no record of stages.")
    longest = max((number(one.get("seconds")) or 0 for one in found), default=0) or 1
    rows = [
        [
            str(one.get("stage") or "unnamed"),
            el("code", str(one.get("ref") or "unnamed")),
            duration(one.get("seconds")),
            bar((number(one.get("seconds")) or 0) / longest, duration(one.get("seconds"))),
            el("span", facts(one.get("facts")), class_="facts"),
        ]
        for one in found
    ]
    columns = {"Stage": "", "Artifact": "s", "Time": "n", "": "s", "Facts": "wide"}
    seconds = sum(number(one.get("seconds")) or 0 for one in found)
    foot = [["All stages", "", duration(seconds), "", ""]]
    return table("How the corpus was made", columns, rows, foot=foot, named=False)


def facts(found: object) -> str:
    """Facts on one line; nested ones belong to the artifact's own manifest."""
    if not isinstance(found, Mapping):
        return ""
    flat = {str(key): value for key, value in found.items() if not isinstance(value, Mapping)}
    return ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in flat.items())


def samples(run: RunFolder) -> Html:
    """What the model writes, newest first."""
    if not run.samples:
        return missing("no text has been generated yet.")
    step, newest = run.samples[-1]
    earlier = run.samples[:-1]
    every = max(1, -(-len(earlier) // _SAMPLES_SHOWN))
    return join(
        el("p", f"After step {step:,}, unedited. The prompt is in bold.", class_="lede"),
        _texts(newest),
        [
            el("details", el("summary", f"After step {when:,}"), _texts(texts))
            for when, texts in reversed(earlier[::every])
        ],
    )


def _texts(texts: list[dict[str, Any]]) -> Html:
    return el("div", [_text(one) for one in texts], class_="samples")


def _text(one: Mapping[str, Any]) -> Html:
    prompt, written = str(one.get("prompt") or ""), str(one.get("text") or "")
    known = [key for key in ("temperature", "seed") if one.get(key) is not None]
    how = ", ".join(f"{key} {plain(one[key], grouped=False)}" for key in known)
    return el(
        "figure",
        el("blockquote", el("b", prompt), written.removeprefix(prompt), dir="auto"),
        el("figcaption", how) if how else None,
        class_="sample",
    )


def configuration(run: RunFolder) -> Html:
    """Every value of the resolved configuration with its origin, and what follows from it."""
    config, derived, notes = (run.run.get(key) for key in ("config", "derived", "notes"))
    notes = dict(notes) if isinstance(notes, Mapping) else {}
    parts: list[Html] = []
    if isinstance(derived, Mapping) and derived:
        known = ((key.replace("_", " "), plain(value)) for key, value in leaves(derived))
        parts.append(el("div", el("h3", "What follows from it"), pairs(known), class_="derived"))
    if not isinstance(config, Mapping) or not config:
        return join(missing("run.json holds no configuration."), parts)
    groups: dict[str, list[tuple[str, Any]]] = {}
    for path, value in leaves(config):
        group = path.split(".")[0] if "." in path else "general"
        groups.setdefault(group, []).append((path, value))
    folded = [_group(name, found, notes) for name, found in groups.items()]
    if notes:
        rows = [[el("code", str(path)), str(note)] for path, note in notes.items()]
        inner = table("Notes on groups", {"Path": "", "Origin": "wide"}, rows, named=False)
        folded.append(el("details", el("summary", "Notes on whole groups"), inner))
    return join(folded, parts)


def _group(name: str, found: list[tuple[str, Any]], notes: dict[str, Any]) -> Html:
    """One top-level part of the configuration; its notes leave `notes`."""
    rows = []
    for path, value in found:
        note = notes.pop(path, None)
        shown = path.removeprefix(f"{name}.")
        rows.append([el("code", shown), plain(value, grouped=False), str(note or "")])
    columns = {"Field": "", "Value": "", "Origin of the number": "wide"}
    return el(
        "details",
        el("summary", name, " ", el("span", _plural(len(found), "value"), class_="unit")),
        table(f"Configuration: {name}", columns, rows, named=False),
    )


def _plural(number_of: int, noun: str) -> str:
    return f"{number_of:,} {noun}" if number_of == 1 else f"{number_of:,} {noun}s"


def leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Every value under its dotted path; an empty mapping is a value."""
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            found += leaves(item, f"{path}.")
        else:
            found.append((path, item))
    return found


def events(run: RunFolder) -> Html:
    """What happened when; the middle of a long history is left to the record."""
    if not run.events:
        return missing("no event has been recorded yet.")
    began = moment(run.events[0].get("time"))
    hidden = len(run.events) - _EVENTS_SHOWN
    head = _EVENTS_SHOWN // 4
    if hidden > 0:
        rows = [_event(one, began) for one in run.events[:head]]
        rows.append(["", "", "", f"{hidden:,} events in between are in events.jsonl", ""])
        rows += [_event(one, began) for one in run.events[head + hidden :]]
    else:
        rows = [_event(one, began) for one in run.events]
    columns = {"After": "n", "Event": "s", "Attempt": "n", "Details": "wide", "UTC": "s"}
    return table("Events", columns, rows, named=False)


def _event(one: Mapping[str, Any], began: datetime | None) -> list[Any]:
    when = moment(one.get("time"))
    after = between(began, when)
    kind = str(one.get("kind") or "unnamed")
    own = ("kind", "time", "attempt", "link")
    details = {key: value for key, value in one.items() if key not in own and value is not None}
    told = ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in details.items())
    written = f"{when:%Y-%m-%d %H:%M:%S}" if when else str(one.get("time") or "")
    return [
        None if after is None else duration(after),
        el("span", kind, class_="alert") if kind in _ALARMS else kind,
        count(one.get("attempt")),
        el("span", told, class_="facts"),
        el("span", written, class_="when"),
    ]


def between(first: datetime | None, last: datetime | None) -> float | None:
    """Seconds from one time to another; None where one is missing or only one has a zone."""
    if first is None or last is None or (first.tzinfo is None) != (last.tzinfo is None):
        return None
    return (last - first).total_seconds()


def provenance(run: RunFolder) -> Html:
    """What ties this page to one run: fingerprint, chain of links, machine."""
    link = run.events[-1].get("link") if run.events else None
    known = {
        "fingerprint": run.run.get("fingerprint"),
        "corpus": run.run.get("corpus"),
        "created": run.run.get("created"),
        "last link": at(link, "link"),
        "metrics.jsonl at that link": _extent(at(link, "metrics")),
        "events.jsonl at that link": _extent(at(link, "events")),
    }
    environment = run.run.get("environment")
    machine = leaves(environment) if isinstance(environment, Mapping) else []
    return join(
        _chain(run),
        pairs((key, el("code", str(value))) for key, value in known.items() if value is not None),
        el("h3", "Environment"),
        pairs((key.replace("_", " "), plain(value)) for key, value in machine)
        if machine
        else missing("run.json holds no environment."),
        _also(run),
    )


def _chain(run: RunFolder) -> Html:
    if not run.events:
        return missing("no event has been recorded yet, so there is no chain to check.")
    if not run.chain:
        told = (
            f"The chain of {_plural(len(run.events), 'event')} is sound: each link was recomputed."
        )
        return el("p", told, class_="lede")
    told = f"The chain of events does not fit ({_plural(len(run.chain), 'problem')}):"
    problems = [el("li", problem) for problem in run.chain[:_PROBLEMS_SHOWN]]
    return el("div", el("p", told), el("ul", problems), class_="problems")


def _extent(state: object) -> str | None:
    if at(state, "sha256") is None:
        return None
    return f"{count(at(state, 'bytes'))} bytes, SHA-256 {at(state, 'sha256')}"


def _also(run: RunFolder) -> Html | None:
    """Names of the recorded quantities, so that none is silently unseen."""
    names = sorted({*run.metrics.scalars, *run.metrics.layers})
    if not names:
        return None
    told = f"{_plural(len(run.metrics.steps), 'step')} recorded with: {', '.join(names)}."
    return el("p", told, class_="lede names")
