"""Licenses: SPDX expressions are checked, and only what is free passes `permissive_only`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.progress import Silent
from shoal.data.config import CorpusConfig, Source
from shoal.data.licenses import CLASSES, TABLE, is_free, license_class
from shoal.data.provenance import permissive_only


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("MIT", "permissive"),
        ("CC0-1.0", "public domain"),
        ("LicenseRef-Public-Domain", "public domain"),
        ("LicenseRef-Other", "unknown"),
        ("NOASSERTION", "unknown"),
        ("MPL-2.0", "weak copyleft"),
        ("CC-BY-SA-3.0", "copyleft"),
        ("CC-BY-NC-4.0", "restricted"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "copyleft"),
        ("MIT AND GPL-2.0-only", "copyleft"),
        ("MIT OR GPL-2.0-only", "permissive"),
        ("GPL-2.0-only OR MIT AND NOASSERTION", "copyleft"),
        ("(GPL-2.0-only OR MIT) AND Apache-2.0", "permissive"),
        ("  MIT   OR\tCC0-1.0 ", "public domain"),
    ],
)
def test_an_expression_binds_as_its_parts_do(expression: str, kind: str):
    assert license_class(expression) == kind
    assert is_free(expression) == (kind in ("permissive", "public domain"))


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "an id is missing"),
        ("mit", "'mit' is not in the table"),
        ("GPL", "'GPL' is not in the table"),
        ("MIT OR", "an id is missing"),
        ("MIT AND AND MIT", "an id is missing"),
        ("MIT Apache-2.0", "'Apache-2.0' stands where"),
        ("(MIT", "a parenthesis is not closed"),
        ("MIT)", r"'\)' stands where"),
        ("MIT WITH nothing", "the exception of MIT is not known"),
        ("MIT / BSD", "'/ BSD' is no part of one"),
    ],
)
def test_what_is_no_expression_says_why(expression: str, why: str):
    with pytest.raises(ValueError, match=f"is no SPDX expression .*{why}.*LicenseRef-NAME"):
        license_class(expression)


IDS = st.sampled_from(sorted(TABLE))


@given(IDS, IDS)
def test_and_never_frees_and_or_never_binds(one: str, two: str):
    ranks = sorted(CLASSES.index(TABLE[name]) for name in (one, two))
    assert CLASSES.index(license_class(f"{one} OR {two}")) == ranks[0]
    assert CLASSES.index(license_class(f"{one} AND {two}")) == ranks[1]


class Notes(Silent):
    """Keeps the lines that stay."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def licensed(tmp_path: Path, source: Callable[..., Source]) -> Callable[..., Source]:
    path = tmp_path / "text.txt"
    path.write_text("text")

    def make(name: str, license_id: str, **options: object) -> Source:
        return replace(source(path, name=name, **options), license=license_id)

    return make


def test_permissive_only_blocks_with_a_reason_and_says_so(licensed: Callable[..., Source]):
    corpus = CorpusConfig(
        name="mixed",
        sources=(
            licensed("free", "MIT"),
            licensed("bound", "GPL-2.0-only"),
            licensed("unclear", "NOASSERTION"),
            licensed("asked", "CC-BY-SA-4.0", usage="evaluation", domain="asked"),
        ),
    )
    notes = Notes()
    found = permissive_only(corpus, notes)
    assert [source.name for source in found.training] == ["free"]
    assert [source.name for source in found.evaluation] == ["asked"]
    blocked = {s.name: s.blocked_because for s in found.sources if s.usage == "blocked"}
    assert blocked == {
        "bound": "license GPL-2.0-only is copyleft, not permissive",
        "unclear": "license NOASSERTION is unknown, not permissive",
    }
    assert notes.lines == [
        "permissive only: 2 sources blocked: bound (GPL-2.0-only), unclear (NOASSERTION)"
    ]
    assert permissive_only(found, notes) == found
    assert len(notes.lines) == 1


def test_a_corpus_without_a_permissive_source_is_refused(licensed: Callable[..., Source]):
    corpus = CorpusConfig(name="bound", sources=(licensed("one", "GPL-2.0-only"),))
    with pytest.raises(ValueError, match=r"no permissive training source \(licenses: GPL-2.0-only"):
        permissive_only(corpus)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"license": "unknown"}, "'unknown' is not in the table"),
        ({"usage": "blocked"}, "a blocked source has a reason"),
        ({"blocked_because": "why"}, "a blocked source has a reason"),
        ({"origin": ""}, "its card has no origin"),
    ],
)
def test_a_card_that_says_nothing_or_nonsense_is_refused(
    licensed: Callable[..., Source], changes: dict[str, str], why: str
):
    with pytest.raises(ValueError, match=why):
        replace(licensed("one", "MIT"), **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "blog"}, "kind='blog' is not one of books, code"),
        ({"usage": "train"}, "usage='train' is not training, evaluation or blocked"),
        ({"personal_data": "some"}, "personal_data='some' is not one of none, public"),
    ],
)
def test_a_word_that_is_on_no_list_is_refused_where_nothing_checks_types(
    licensed: Callable[..., Source], changes: dict[str, str], why: str
):
    fields = vars(licensed("one", "MIT")) | changes
    with pytest.raises(ValueError, match=why):
        Source._check_card(SimpleNamespace(**fields))
