"""The sections about where a run came from: sources, stages, configuration, events, provenance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shoal.core.config import origin
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
    "documents kept for evaluation. Overlap: such documents dropped because they share a passage "
    "with training text."
)
_DIGEST = re.compile("[0-9a-f]{40,}")


def dicts(values: object) -> list[dict[str, Any]]:
    """The objects of a list."""
    found = values if isinstance(values, list) else []
    return [value for value in found if isinstance(value, dict)]


def trained_on(run: RunFolder) -> list[dict[str, Any]]:
    """The sources of training text."""
    found = dicts(run.corpus.get("sources"))
    return [one for one in found if one.get("usage") != "evaluation"]


def sources(run: RunFolder) -> Html:
    """What the model was trained and evaluated on, with counts, licenses and what was taken out."""
    found = dicts(run.corpus.get("sources"))
    if not found:
        return missing("this run folder has no corpus record.")
    training = trained_on(run)
    only_scored = [one for one in found if one.get("usage") == "evaluation"]
    return join(
        _tokenizer(run),
        _counts("Training sources", training) if training else None,
        _counts("Sources that are only evaluated", only_scored) if only_scored else None,
        el("p", _MEANINGS, class_="note"),
        el("details", el("summary", "Source cards"), [_card(one) for one in found]),
    )


def _counts(caption: str, found: list[dict[str, Any]]) -> Html:
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
    rows.append(_source({**sums, "kind": "", "license": ""}, _plural(len(found), "source"), total))
    if not total:
        dropped = [place for place, name in enumerate(columns) if name in {"Tokens", "Share"}]
        rows = [[cell for place, cell in enumerate(row) if place not in dropped] for row in rows]
        columns = {key: kind for key, kind in columns.items() if key not in {"Tokens", "Share"}}
    return table(caption, columns, rows[:-1], foot=rows[-1:])


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


def _tokenizer(run: RunFolder) -> Html:
    told = [f"Corpus {run.corpus.get('corpus') or run.run.get('corpus') or 'unnamed'}."]
    vocabulary = at(run.corpus, "tokenizer", "vocab_size")
    if vocabulary is not None:
        told.append(
            f"Tokenizer {at(run.corpus, 'tokenizer', 'ref')}: {count(vocabulary)} pieces, "
            f"{fixed(at(run.corpus, 'tokenizer', 'bytes_per_token'), 2)} bytes per token."
        )
    unit = run.corpus.get("unit_tokens")
    if unit is not None:
        cells = dicts(run.corpus.get("cells"))
        tails = [tail for one in cells if (tail := number(one.get("tail_tokens"))) is not None]
        left = f"; the {count(sum(tails))} tokens behind the last whole units are left out"
        told.append(f"Streams are cut into units of {count(unit)} tokens{left if tails else ''}.")
    return el("p", " ".join(told), class_="lede")


def _card(one: Mapping[str, Any]) -> Html:
    known = {key.replace("_", " "): value for key, value in one.items() if value not in (None, "")}
    known.pop("name", None)
    return el(
        "section",
        el("h4", str(one.get("name") or "unnamed")),
        pairs((key, plain(value)) for key, value in known.items()),
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
    return ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in flat.items())


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
    notes = notes if isinstance(notes, Mapping) else {}
    parts: list[Html] = []
    if isinstance(derived, Mapping) and derived:
        known = ((key.replace("_", " "), plain(value)) for key, value in leaves(derived))
        parts.append(el("div", el("h3", "What follows from it"), pairs(known), class_="derived"))
    if not isinstance(config, Mapping) or not config:
        return join(missing("run.json holds no configuration."), parts)
    groups: dict[str, list[tuple[str, Any]]] = {}
    for path, value in leaves({key: value for key, value in config.items() if key != "notes"}):
        group = path.split(".")[0] if "." in path else "general"
        groups.setdefault(group, []).append((path, value))
    return join([_group(name, found, notes) for name, found in groups.items()], parts)


def _group(name: str, found: list[tuple[str, Any]], notes: Mapping[str, Any]) -> Html:
    """One top-level part of the configuration."""
    rows = [
        [
            el("code", path.removeprefix(f"{name}.")),
            plain(value, grouped=False),
            str(origin(notes, path) or ""),
        ]
        for path, value in found
    ]
    columns = {"Field": "", "Value": "value", "Origin": "wide"}
    return el(
        "details",
        el("summary", name, " ", el("span", _plural(len(found), "value"), class_="unit")),
        table(f"Configuration: {name}", columns, rows, named=False),
    )


def _plural(number_of: int, noun: str) -> str:
    return f"{number_of:,} {noun}" if number_of == 1 else f"{number_of:,} {noun}s"


def leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Every value under its dotted path; the objects of a list stand one by one, as values."""
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            found += leaves(item, f"{path}.")
        elif isinstance(item, list) and any(isinstance(one, Mapping) for one in item):
            found += [(f"{path}[{place}]", one) for place, one in enumerate(item)]
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
    told = ", ".join(_details(one))
    written = f"{when:%Y-%m-%d %H:%M:%S}" if when else str(one.get("time") or "")
    return [
        None if after is None else duration(after),
        el("span", kind, class_="alert") if kind in _ALARMS else kind,
        count(one.get("attempt")),
        el("span", told, class_="facts"),
        el("span", written, class_="when"),
    ]


def _details(one: Mapping[str, Any]) -> list[str]:
    """An event's own fields; digests by their first digits, evaluations by their macro means."""
    told: list[str] = []
    for key, value in one.items():
        if key in ("kind", "time", "attempt", "link") or value is None:
            continue
        if key == "macro" and isinstance(value, Mapping):
            told += [
                f"{name} {fixed(at(of, 'bpb'), 3)} bits per byte" for name, of in value.items()
            ]
        else:
            told.append(f"{str(key).replace('_', ' ')} {_short(value)}")
    return told


def _short(value: object) -> str:
    """A value on one line, digests by their first digits."""
    return _DIGEST.sub(lambda found: found[0][:12] + "\N{HORIZONTAL ELLIPSIS}", plain(value))


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
