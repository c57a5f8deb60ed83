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
        ],
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
    assert "holds &lt;5&gt;" in page


def test_sections_numbers_and_evidence_are_there():
    page = render(found())
    tags = parse(page).tags
    assert [a.get("id") for tag, a in tags if tag == "section"] == [
        "stages",
        "sources",
        "licenses",
        "removals",
    ]
    for said in ("70.0% left", "alpha/kept.txt", "0.950", "1,234,567", "Near duplicates", "1.23M"):
        assert said in page
    assert "Counts that do not add up" in page
    assert "Counts that do not add up" not in render({**found(), "problems": []})


@pytest.mark.parametrize("missing", ["sources", "licenses", "flow", "removals"])
def test_a_page_with_a_part_missing_says_so(missing: str):
    page = render({key: value for key, value in found().items() if key != missing})
    parse(page)
    assert "No data:" in page


def test_an_empty_audit_is_a_page():
    assert parse(render({})).tags
