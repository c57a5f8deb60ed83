"""A run's corpus was held against everything that the model will be judged by."""

import json
from dataclasses import replace

import pytest

from journey.process import RECIPE
from journey.tiny import TEXT, write_text
from shoal.core.progress import Silent
from shoal.data.settings import Benchmark
from shoal.jobs.prepare import prepared_for, render
from shoal.jobs.resolve import resolve


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv(TEXT, str(write_text(tmp_path / "text")))
    return resolve(RECIPE)


@pytest.fixture
def exam(tmp_path):
    path = tmp_path / "exam.jsonl"
    rows = [{"question": f"how many boats of kind {n} has the harbor master counted before noon"
             " on the day of the storm", "answer": "9"} for n in range(3)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Benchmark(name="exam", path=str(path))


def judged(config, exam, **decontam):
    corpus = config.data.corpus
    corpus = replace(corpus, decontam=replace(corpus.decontam, **decontam))
    data = replace(config.data, corpus=corpus)
    return replace(config, data=data, eval=replace(config.eval, benchmarks=(exam,)))


def test_a_run_that_is_judged_by_what_its_corpus_was_not_held_against_is_refused(config, exam):
    with pytest.raises(ValueError, match=r"evaluation exam: 3 of 3 items .*decontam\.benchmarks"):
        prepared_for(judged(config, exam), Silent())
    prepared_for(judged(config, exam, allow_uncovered=True), Silent())
    covered = replace(exam, name="exam under another name")
    prepared_for(judged(config, exam, benchmarks=(covered,)), Silent())


def test_a_prepared_corpus_reads_as_a_table(config):
    prepared = prepared_for(config, Silent())
    said = render({**prepared.facts, "tokens": "here"}).splitlines()
    (source,) = prepared.facts["sources"]
    assert said[0].split()[:2] == ["source", "documents"]
    assert said[1].split()[0] == "text"
    assert said[1].split()[-1] == f"{source['tokens']:,}"
    assert said[-2] == f"{source['tokens']:,} tokens in 1 cells: here"
