"""The page of a corpus is whole by itself, and text in it stays text."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from shoal.report.corpus import render

VOID = {"br", "col", "link", "meta"}


def found() -> dict[str, Any]:
    """What an audit finds, with text that tries to be markup."""
    sample = {
        "stage": "near", "rule": "contained in another", "outcome": "removed", "source": "beta",
        "source_id": "<b>", "id": "0" * 32, "text": "</blockquote><script>alert(1)</script>",
        "evidence": {"containment": 0.95, "ngram": "<i>"},
        "keeper": {"source": "alpha", "source_id": "kept.txt", "id": "1" * 32},
    }  # fmt: skip
    stage = {"in": 10, "removed": 2, "held_out": 1, "out": 7, "cut": 3}
    stage |= {f"{name}_bytes": 100 * value for name, value in stage.items()}
    shown = {"source": "alpha", "source_id": "</pre>", "id": "2" * 32, "text": "<img src=x>"}
    cut = {
        **shown, "stage": "contamination", "rule": "spans", "outcome": "cut", "keeper": None,
        "text": "before <cut> after", "passage": [7, 12], "evidence": {"start": 7},
    }  # fmt: skip
    return {
        "corpus": "small@0123456789ab",
        "sources": [
            {"name": "alpha", "usage": "training", "license": "CC0-1.0", "documents": 10,
             "bytes": 5000, "tokens": 1234567, "origin": "https://example.org/?a=1&b=<2>"},
            {"name": "gamma", "usage": "evaluation", "license": "MIT", "documents": 2, "bytes": 9},
        ],
        "licenses": {"CC0-1.0": {"sources": 1, "documents": 10, "bytes": 5000, "tokens": 7}},
        "flow": [{"stage": "near", "ref": "r", **stage}],
        "removals": [
            {"stage": "near", "rule": "contained in another", "outcome": "removed",
             "documents": 2, "rows": 2, "sources": {"beta": 2}, "samples": [sample]},
            {"stage": "contamination", "rule": "spans", "outcome": "cut", "documents": 1,
             "rows": 1, "sources": {"alpha": 1}, "samples": [cut]},
        ],
        "by_source": {"near": {"alpha": stage, "<u>": stage}},
        "stages": [
            {"stage": name, "refs": [f"small-{name}@1"], "tables": [], "files": [], "facts": {},
             "settings": {"key": "<s>"}, "survivors": [shown]}
            for name in ("near", "contamination")
        ] + [
            {"stage": "topics", "refs": [], "files": [{"file": "<a>", "files": 1, "bytes": 5}],
             "tables": [{"file": "topics.parquet", "files": 1, "rows": 7,
                         "columns": [{"name": "score", "type": "float"}]}],
             "facts": {"seen": 7.5}, "settings": {}, "survivors": []},
            *({"stage": name, "refs": [], "tables": [], "files": [], "facts": {}, "settings": {},
               "survivors": []} for name in ("quality", "tokens")),
        ],
        "topics": [{"topic": 0, "name": "<h1> sea", "share": 0.5, "documents": 7, "bytes": 700,
                    "samples": [shown]}],
        "levels": [{"kind": "<p>", "level": 1, "documents": 7, "bytes": 700, "samples": [shown]}],
        "cells": [{"cell": "t00-q1", "topic": 0, "level": 1, "documents": 7, "tokens": 4321}],
        "mixture": {"run": "<run>", "rule": "natural", "tokens": 9e6,
                    "epochs": {"t00-q1": [1.25, 0.5]}},
        "problems": ["6 documents are left, the token store holds <5>"],
    }  # fmt: skip


class Balance(HTMLParser):
    """Collects tags and complains about what does not close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_the_page_asks_for_nothing_and_its_markup_closes():
    page = render(found())
    tags = parse(page).tags
    for tag, attributes in tags:
        for name in ("src", "href", "action", "data"):
            target = attributes.get(name) or "#"
            assert target.startswith("#") or target == "data:,", (tag, target)
    (policy,) = [a["content"] for _, a in tags if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "@import" not in page
    assert not re.search(r"url\(", page)
    assert sum(tag == "script" for tag, _ in tags) == 1


def test_text_of_documents_never_becomes_markup():
    page = render(found())
    assert "<script>alert" not in page
    assert "&lt;/blockquote&gt;&lt;script&gt;alert(1)" in page
    assert "beta/&lt;b&gt;" in page
    allowed = {tag for tag, _ in parse(render({})).tags} | {"a", "blockquote", "br", "caption"}
    allowed |= {"code", "details", "dd", "dl", "dt", "figcaption", "figure", "h3", "h4", "mark"}
    allowed |= {"rect", "span", "summary", "svg", "table", "tbody", "td", "tfoot", "th", "thead"}
    allowed |= {"div", "tr", "ul", "li"}
    assert {tag for tag, _ in parse(page).tags} <= allowed
    assert sum(tag == "h1" for tag, _ in parse(page).tags) == 1
    assert "holds &lt;5&gt;" in page


def test_sections_numbers_and_evidence_are_there():
    page = render(found())
    tags = parse(page).tags
    assert [a.get("id") for tag, a in tags if tag == "section"] == [
        "stages",
        "sources",
        "licenses",
        "stage-near",
        "stage-contamination",
        "stage-topics",
        "stage-quality",
        "stage-tokens",
    ]
    for said in (
        "70.0% left",
        "alpha/kept.txt",
        "0.950",
        "1,234,567",
        "Near duplicates",
        "1.23M",
        "before <mark>&lt;cut&gt;</mark> after",
        "closeness to it, 1 at most",
        "4.32k",
        "1.75 times",
        "0: &lt;h1&gt; sea",
    ):
        assert said in page
    assert "Counts that do not add up" in page
    assert "Counts that do not add up" not in render({**found(), "problems": []})


@pytest.mark.parametrize(
    "missing", ["sources", "licenses", "flow", "removals", "topics", "levels", "cells"]
)
def test_a_page_with_a_part_missing_says_so(missing: str):
    page = render({key: value for key, value in found().items() if key != missing})
    parse(page)
    assert "No data:" in page


def test_an_empty_audit_is_a_page():
    assert parse(render({})).tags
