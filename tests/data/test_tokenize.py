"""Stages `tokenizer` and `tokens`: reversible, deterministic, and id 0 ends documents only."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from shoal.core.progress import Silent
from shoal.data.config import CorpusConfig, Source, TokenizerConfig
from shoal.data.heldout import Unique
from shoal.data.tokenize import EOS, EOS_ID, load_tokenizer, share_out, token_dtype, train
from shoal.data.training import Split
from shoal.jobs.prepare import Prepared, prepare

ENGLISH = [
    f"the light over the river {number} was slow and the stone was old" for number in range(40)
]
CONFIG = TokenizerConfig(vocab_size=320, sample_bytes=10_000)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(ENGLISH, CONFIG)


@given(text=st.text(max_size=200))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text
    assert EOS_ID not in ids


def test_every_byte_has_a_token(tokenizer: Tokenizer):
    every = "".join(map(chr, range(0x250))) + "漢字😀\U0010ffff"
    assert {len(tokenizer.encode(one).ids) > 0 for one in every} == {True}
    assert tokenizer.decode(tokenizer.encode(every).ids) == every
    assert tokenizer.get_vocab_size() == 320


def test_the_end_of_text_literal_is_ordinary_text(tokenizer: Tokenizer):
    text = f"a {EOS} b{EOS}{EOS}"
    ids = tokenizer.encode(text).ids
    assert EOS_ID not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_to_id(EOS) == EOS_ID


def test_the_literal_stays_ordinary_when_training_text_is_full_of_it(tmp_path: Path):
    trained = train([EOS * 50, *ENGLISH] * 3, CONFIG)
    trained.save(str(tmp_path / "tokenizer.json"))
    for one in (trained, load_tokenizer(tmp_path / "tokenizer.json")):
        assert EOS_ID not in one.encode(EOS).ids


def test_text_that_is_too_little_leaves_high_ids_unused():
    trained = train(["aa"], CONFIG)
    assert trained.get_vocab_size() < 320
    assert trained.decode([trained.encode("a").ids[0], 319]) == "a"


_TRAIN = """
import json, sys
from shoal.data.config import TokenizerConfig
from shoal.data.tokenize import train
texts = [f"the light {n % 7} over {n * n} the river {'x' * (n % 5)}" for n in range(3000)]
tree = json.loads(train(texts, TokenizerConfig(vocab_size=600)).to_str())
print(json.dumps([tree["model"]["vocab"], tree["model"]["merges"]]))
"""


def test_a_tokenizer_is_the_same_in_any_process_and_with_any_threads():
    found = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("7", "2")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _TRAIN]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


@given(
    totals=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1_000), min_size=1),
    budget=st.integers(0, 3_000),
)
def test_shares_use_the_budget_and_never_exceed_a_source(totals: dict[str, int], budget: int):
    weights = {name: 1.0 + (name == "a") for name in totals}
    shares = share_out(totals, weights, budget)
    assert shares.keys() == totals.keys()
    assert all(0 <= shares[name] <= totals[name] for name in totals)
    assert sum(shares.values()) <= budget
    assert sum(shares.values()) >= min(budget, sum(totals.values())) - len(totals)


def test_a_source_of_weight_zero_gives_nothing():
    assert share_out({"a": 100, "b": 100}, {"a": 0.0, "b": 1.0}, 50) == {"a": 0, "b": 50}
    assert share_out({"a": 100}, {"a": 0.0}, 50) == {"a": 0}


def test_ids_take_two_bytes_while_they_fit():
    assert token_dtype(65_536) == np.dtype("<u2")
    assert token_dtype(65_537) == np.dtype("<u4")


def _split(home: Path, corpus: CorpusConfig) -> Split:
    from shoal.core.artifact import load

    root = home / "corpora"
    written, repeated, contained, held, cut = (
        load(next(root.glob(f"{corpus.name}-{stage}@*")))
        for stage in ("documents", "duplicates", "near", "heldout", "contamination")
    )
    copies = [repeated.path / "duplicates.parquet", contained.path / "near.parquet"]
    return Split(Unique(written, copies), held, cut)


def _streams(prepared: Prepared) -> dict[str, np.ndarray]:
    store = json.loads((prepared.store / "store.json").read_text())
    dtype = {"uint16": "<u2", "uint32": "<u4"}[store["dtype"]]
    return {
        cell: np.fromfile(prepared.store / "cells" / f"{cell}.bin", dtype)
        for cell in store["cells"]
    }


def test_the_store_decodes_to_the_training_text_in_id_order(tmp_path: Path, tiny: CorpusConfig):
    prepared = prepare(tiny, tmp_path / "home", Silent())
    split = _split(tmp_path / "home", tiny)
    tokenizer = prepared.tokenizer()
    streams = _streams(prepared)
    assert list(streams) == ["alpha", "beta"]
    for cell, stream in streams.items():
        assert stream[-1] == EOS_ID
        documents = np.split(stream, np.flatnonzero(stream == EOS_ID) + 1)[:-1]
        texts = [tokenizer.decode(ids[:-1].tolist()) for ids in documents]
        rows = [row for b in split.batches(cell, ["id", "text"]) for row in b.to_pylist()]
        assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
        assert texts == [row["text"] for row in rows]
    assert any(
        EOS in row["text"] for b in split.batches("alpha", ["text", "id"]) for row in b.to_pylist()
    )


def test_the_store_says_what_it_holds(tmp_path: Path, tiny: CorpusConfig):
    prepared = prepare(tiny, tmp_path / "home", Silent())
    store = json.loads((prepared.store / "store.json").read_text())
    streams = _streams(prepared)
    assert {key: store[key] for key in ("dtype", "eos", "vocab_size", "unit_tokens")} == {
        "dtype": "uint16",
        "eos": 0,
        "vocab_size": 400,
        "unit_tokens": 256,
    }
    for cell, facts in store["cells"].items():
        assert facts["tokens"] == len(streams[cell])
        assert facts["documents"] == int((streams[cell] == EOS_ID).sum())
        assert facts["units"] * 256 + facts["tail_tokens"] == facts["tokens"]
        assert facts["tail_tokens"] < 256


def test_the_tokenizer_sees_training_text_only(tmp_path: Path, tiny: CorpusConfig):
    prepared = prepare(tiny, tmp_path / "home", Silent())
    split = _split(tmp_path / "home", tiny)
    config = replace(tiny.tokenizer, sample_bytes=10**9)
    whole = prepare(replace(tiny, tokenizer=config), tmp_path / "home", Silent())
    texts = [
        row["text"]
        for source in tiny.training
        for batch in split.batches(source.name, ["id", "text"])
        for row in batch.to_pylist()
    ]
    assert whole.tokenizer().to_str() == train(texts, config).to_str()
    sample = prepared.facts["stages"][-2]["facts"]["sample_bytes"]
    assert sum(sample.values()) <= tiny.tokenizer.sample_bytes


def test_text_below_one_unit_is_refused(
    tmp_path: Path, source: Callable[..., Source], text: Callable[..., str]
):
    path = tmp_path / "short.txt"
    path.write_text(text(1))
    corpus = CorpusConfig(name="short", sources=(source(path, name="short"),))
    with pytest.raises(ValueError, match=r"largest cell short has \d+ tokens, less than one unit"):
        prepare(corpus, tmp_path / "home", Silent())
