"""The sections of a corpus' page, one per stage: counts, what went, what stayed, what it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shoal.report.corpus_schema import STAGES, column_sentence, file_sentence, stage_title
from shoal.report.markup import (
    Html,
    compact,
    count,
    el,
    fixed,
    join,
    missing,
    number,
    pairs,
    plain,
    size,
    table,
)
from shoal.report.plots import bar

type StageFacts = Mapping[str, Any]

_OUTCOMES = {"removed": "Removed", "held_out": "Held out", "cut": "Cut"}
# A model's stage is told with the stage that it is for.
_WITH = {"topics": "topic_model", "quality": "quality_model", "tokens": "tokenizer"}


def stage_sections(found: StageFacts) -> list[tuple[str, str, Html]]:
    """(anchor, heading, content) of every stage that the corpus has, in order."""
    stages = {one["stage"]: one for one in found.get("stages") or []}
    flow = {one["stage"]: one for one in found.get("flow") or []}
    names = [name for name in STAGES if name in stages or name in flow]
    led = {model for stage, model in _WITH.items() if stage in names}
    return [
        (f"stage-{name}", stage_title(name), _section(found, name, stages, flow.get(name)))
        for name in names
        if name not in led and name != "source"
    ]


def emitted(one: StageFacts) -> Html:
    """The tables of a stage with their columns, its other files, its settings and its artifacts."""
    columns = {"Column": "", "Type": "s", "Meaning": ""}
    tables = [
        table(
            _table_name(each),
            columns,
            [
                [el("code", column["name"]), column["type"], _sentence(each, column) or None]
                for column in each["columns"]
            ],
        )
        for each in one.get("tables") or []
    ]
    files = [
        [el("code", each["file"]), count(each["files"]), size(each["bytes"]),
         file_sentence(each["file"]) or None]
        for each in one.get("files") or []
    ]  # fmt: skip
    told = [(name.replace("_", " "), _value(value)) for name, value in _settings(one)]
    refs = one.get("refs") or []
    return el(
        "details",
        el("summary", f"{stage_title(one['stage'])}: files, columns and settings"),
        tables,
        table("Other files", {"File": "", "Files": "n", "Size": "n", "Holds": ""}, files)
        if files
        else None,
        pairs(told) if told else None,
        el("p", "Artifacts: ", ", ".join(refs), class_="names") if refs else None,
        class_="emitted",
    )


def _section(
    found: StageFacts, name: str, stages: Mapping[str, StageFacts], row: StageFacts | None
) -> Html:
    parts: list[Html | None] = [el("p", STAGES[name][1], class_="lede")]
    if row:
        parts += [_counts(row), _by_source(found, name)]
    if row or any(one["stage"] == name for one in found.get("removals") or []):
        parts += [_removals(found, name)]
    special = {"topics": _topics, "quality": _quality, "tokens": _cells}.get(name)
    if special:
        parts += [special(found)]
    for each in (_WITH.get(name, ""), name):
        if each in stages:
            parts += [_facts(stages[each]), _survivors(stages[each]), emitted(stages[each])]
    return join(*parts)


def _counts(row: StageFacts) -> Html:
    """In = removed + held out + out, and in bytes less what was cut as well."""
    columns = {"": "", "Documents": "n", "Size": "n", "Bytes": "n"}
    rows = [
        ("In", "in"),
        *((told, name) for name, told in _OUTCOMES.items() if row.get(name)),
    ]
    cut = "Cut, of documents that stay"

    def line(told: str, name: str) -> list[Any]:
        nbytes = row.get(f"{name}_bytes")
        return [cut if name == "cut" else told, count(row.get(name)), size(nbytes), count(nbytes)]

    return table(
        "Documents of training sources" if row["stage"] != "documents" else "Training records",
        columns,
        [line(told, name) for told, name in rows],
        foot=[line("Out", "out")],
    )


def _by_source(found: StageFacts, stage: str) -> Html | None:
    rows = (found.get("by_source") or {}).get(stage) or {}
    rows = {source: row for source, row in rows.items() if row["in"]}
    if not rows:
        return None
    shown = [name for name in _OUTCOMES if any(row[name] for row in rows.values())]
    columns = {"Source": "", "In": "n"} | {_OUTCOMES[name]: "n" for name in shown}
    columns |= {"Out": "n", "Size out": "n", "Left": "s"}
    made = [
        [
            source,
            *(count(row[name]) for name in ("in", *shown, "out")),
            size(row["out_bytes"]),
            bar(row["out"] / row["in"], f"{row['out'] / row['in']:.1%} left"),
        ]
        for source, row in rows.items()
    ]
    told = table("By source, evaluation text as well", columns, made, named=False)
    return el("details", el("summary", "By source"), told)


def _removals(found: StageFacts, stage: str) -> Html:
    if found.get("removals") is None:
        return missing("what was taken out is not recorded.")
    rules = [one for one in found["removals"] if one["stage"] == stage]
    if not rules:
        return el("p", "Nothing was taken out.", class_="note")
    columns = {"Rule": "", "Outcome": "s", "Documents": "n", "Sources": ""}
    rows = [
        [one["rule"], one["outcome"], count(one["documents"]), plain(one["sources"])]
        for one in rules
    ]
    return join(table("What was taken out, by rule", columns, rows), [_rule(one) for one in rules])


def _rule(one: StageFacts) -> Html:
    heading = f"Samples of {one['outcome']}: {one['rule']} ({count(one['documents'])})"
    samples = [_removed(sample) for sample in one["samples"]]
    return el("details", el("summary", heading), el("div", samples, class_="samples"))


def _removed(row: StageFacts) -> Html:
    keeper = row.get("keeper")
    facts: list[tuple[str, Any]] = [("document", _named(row))]
    facts += [("kept instead", _named(keeper))] if keeper else []
    facts += [(name.replace("_", " "), _value(value)) for name, value in row["evidence"].items()]
    if keeper and keeper.get("text"):
        facts.append(("which begins", el("span", keeper["text"], class_="value")))
    return _sample(row, facts)


def _survivors(one: StageFacts) -> Html | None:
    samples = one.get("survivors") or []
    if not samples:
        return None
    made = [_sample(row, [("document", _named(row))]) for row in samples]
    heading = f"Samples of what stays, one per source ({count(len(samples))})"
    return el("details", el("summary", heading), el("div", made, class_="samples"))


def _sample(row: StageFacts, facts: Iterable[tuple[str, Any]]) -> Html:
    text = row.get("text") or ""
    shown: Any = text
    if row.get("passage"):
        start, stop = row["passage"]
        shown = join(text[:start], el("mark", text[start:stop]), text[stop:])
    return el(
        "figure",
        el("blockquote", shown) if text else None,
        el("figcaption", pairs(facts)),
        class_="sample",
    )


def _topics(found: StageFacts) -> Html:
    topics = found.get("topics") or []
    if not topics:
        return missing("no topic is recorded.")
    tokens = _tokens_by(found, "topic")
    most = max(one["documents"] for one in topics) or 1
    columns = {
        "Topic": "", "Share of sample": "n", "Documents": "n", "Size": "n", "Tokens": "n", "": "s"
    }  # fmt: skip
    rows = [
        [
            f"{one['topic']}: {one['name']}",
            _share(one["share"]),
            count(one["documents"]),
            size(one["bytes"]),
            compact(tokens.get(one["topic"])),
            bar(one["documents"] / most, f"{one['documents']} documents"),
        ]
        for one in topics
    ]
    samples = [
        join(
            el("h4", f"{one['topic']}: {one['name']}"),
            el("div", [_sample(row, [("document", _named(row))]) for row in one["samples"]],
               class_="samples"),
        )
        for one in topics
    ]  # fmt: skip
    return join(
        table("Topics", columns, rows, named=False),
        el("details", el("summary", "Samples of each topic"), samples),
    )


def _quality(found: StageFacts) -> Html:
    levels = found.get("levels") or []
    if not levels:
        return missing("no level is recorded.")
    kinds = list(dict.fromkeys(one["kind"] for one in levels))
    places = sorted({one["level"] for one in levels})
    at = {(one["kind"], one["level"]): one for one in levels}
    columns = {"Kind": ""} | {f"Level {place}": "n" for place in places}
    rows = [
        [kind, *(count(at.get((kind, place), {}).get("documents")) for place in places)]
        for kind in kinds
    ]
    samples = [
        join(
            el("h4", kind),
            el("div", [
                _sample(row, [("level", str(place)), ("document", _named(row))])
                for place in places for row in at.get((kind, place), {}).get("samples", [])
            ], class_="samples"),
        )
        for kind in kinds
    ]  # fmt: skip
    return join(
        table("Documents by kind of text and level, the best last", columns, rows),
        el("details", el("summary", "Samples of each kind and level"), samples),
    )


def _cells(found: StageFacts) -> Html:
    cells = found.get("cells") or []
    if not cells:
        return missing("no cell is recorded.")
    mix = found.get("mixture") or {}
    epochs = {name: sum(each) for name, each in (mix.get("epochs") or {}).items()}
    told = el(
        "p",
        f"Epochs are those of run {mix.get('run')}, which read this corpus last: "
        f"{compact(mix.get('tokens'))} tokens, mixture {mix.get('rule')}."
        if mix
        else "No run in this home has read this corpus yet, so no epochs are told.",
        class_="note",
    )
    if not all("topic" in one for one in cells):
        columns = {"Cell": "", "Documents": "n", "Tokens": "n", "Units": "n", "Epochs": "n"}
        rows = [
            [one["cell"], *(count(one.get(name)) for name in ("documents", "tokens", "units")),
             fixed(epochs.get(one["cell"]), 2)]
            for one in cells
        ]  # fmt: skip
        return join(table("Cells", columns, rows), told)
    return join(_grid(found, cells, epochs), told)


def _grid(found: StageFacts, cells: list[StageFacts], epochs: Mapping[str, float]) -> Html:
    """Topics down, levels across: tokens, and under them epochs where they are known."""
    names = {one["topic"]: one["name"] for one in found.get("topics") or []}
    at = {(one["topic"], one["level"]): one for one in cells}
    levels = sorted({one["level"] for one in cells})

    def cell(one: StageFacts | None) -> Html | None:
        if one is None:
            return None
        read = epochs.get(one["cell"])
        if not epochs:
            return join(compact(one.get("tokens")))
        note = el("span", f"{fixed(read or 0, 2)} times", class_="facts")
        return join(compact(one.get("tokens")), el("br"), note)

    def total(chosen: Iterable[StageFacts]) -> str:
        return compact(sum(number(one.get("tokens")) or 0 for one in chosen))

    rows = [
        [
            f"{topic}: {names[topic]}" if topic in names else str(topic),
            *(cell(at.get((topic, level))) for level in levels),
            total(one for one in cells if one["topic"] == topic),
        ]
        for topic in sorted({one["topic"] for one in cells})
    ]
    sums = [total(one for one in cells if one["level"] == level) for level in levels]
    columns = {"Topic": ""} | {f"Level {level}": "n" for level in levels} | {"All": "n"}
    caption = "Tokens and epochs of each cell" if epochs else "Tokens of each cell"
    return table(caption, columns, rows, foot=[["All", *sums, total(cells)]])


def _tokens_by(found: StageFacts, name: str) -> dict[int, int]:
    sums: dict[int, int] = {}
    for one in found.get("cells") or []:
        if name in one:
            sums[one[name]] = sums.get(one[name], 0) + one.get("tokens", 0)
    return sums


def _facts(one: StageFacts) -> Html | None:
    """What the stage counted beside documents."""
    facts = {name: value for name, value in (one.get("facts") or {}).items() if name != "topics"}
    if facts.get("labels_held_out") == facts.get("held_out"):
        facts.pop("labels_held_out", None)
    told = [
        (name.replace("_", " "), _value(value))
        for name, value in _flat(facts)
        if value not in (None, "", [], {})
    ]
    if not told:
        return None
    return join(el("h3", f"{stage_title(one['stage'])}: what was counted"), pairs(told))


def _flat(facts: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """A fact with parts, such as how the student agrees with held-out labels, part by part."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}, {part}", inner) for part, inner in value.items())
        else:
            yield name, value


def _settings(one: StageFacts) -> list[tuple[str, Any]]:
    return [
        (name, "none" if value in (None, "", [], {}) else value)
        for name, value in (one.get("settings") or {}).items()
    ]


def _table_name(each: StageFacts) -> str:
    files = f", {count(each['files'])} files" if each["files"] > 1 else ""
    return f"{each['file']}: {count(each['rows'])} rows{files}"


def _sentence(each: StageFacts, column: StageFacts) -> str:
    return column_sentence(each["file"], column["name"])


def _share(value: object) -> str | None:
    found = number(value)
    return None if found is None else f"{found:.1%}"


def _named(row: StageFacts) -> Html:
    shown = f"{row['source']}/{row.get('source_id') or row.get('id')}"
    return join(shown, " ", el("code", row["id"]) if row.get("id") else None)


def _value(value: object) -> str:
    return fixed(value, 3) if isinstance(value, float) else plain(value)
