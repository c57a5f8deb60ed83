"""The fast encoder is used where it gives the reference's ids, and nowhere else."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import encode
from shoal.data.config import TokenizerConfig
from shoal.data.encode import ADVERSARIAL, Encoder
from shoal.data.tokenize import train


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE of this file's own text, as the stage `tokenizer` writes it."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    text = Path(__file__).read_text() * 2 + "Zürich, naïve, 東京 and the sea. " * 50
    train([text], TokenizerConfig(vocab_size=600)).save(str(path))
    return path


class Wrong:
    """An encoder that is right but for one word."""

    def __init__(self, inner: object, word: str) -> None:
        self.inner, self.word = inner, word

    def encode_batch_flat(self, texts: list[str], **options: bool) -> tuple[bytes, bytes]:
        changed = [text.replace(self.word, self.word.upper()) for text in texts]
        return self.inner.encode_batch_flat(changed, **options)


class Refusing(Wrong):
    """An encoder that raises on one word."""

    def encode_batch_flat(self, texts: list[str], **options: bool) -> tuple[bytes, bytes]:
        if any(self.word in text for text in texts):
            raise ValueError("match limit reached")
        return self.inner.encode_batch_flat(texts, **options)


def _ids(found: list[np.ndarray]) -> list[list[int]]:
    return [one.tolist() for one in found]


def test_the_fast_encoder_reads_our_tokenizer_and_passes_the_gate(
    tokenizer: Path, text: Callable[..., str]
):
    encoder = Encoder(tokenizer)
    texts = [text(number) for number in range(20)]
    gate = encoder.gate("prose", texts)
    assert (gate.encoder, gate.mismatches, gate.reason) == ("fastokens", 0, "")
    assert gate.sampled == 20
    assert gate.sampled_bytes == sum(len(one.encode()) for one in texts)
    reference = Encoder(tokenizer, fast=False)
    every = [*texts, *ADVERSARIAL]
    assert _ids(encoder.encode_batch(every, "prose")) == _ids(reference.encode_batch(every))
    assert encoder.facts()["prose"]["fallbacks"] == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=5))
def test_both_encoders_agree_on_any_text(tokenizer: Path, texts: list[str]):
    encoder = Encoder(tokenizer)
    encoder.gate("any", texts)
    expected = [encoder.reference.encode(one, add_special_tokens=False).ids for one in texts]
    assert _ids(encoder.encode_batch(texts, "any")) == expected
    assert encoder.gates["any"].encoder == "fastokens"


def test_one_difference_sends_the_source_to_the_reference_and_is_said(
    tokenizer: Path, text: Callable[..., str]
):
    encoder = Encoder(tokenizer)
    encoder.fast = Wrong(encoder.fast, "quagga")
    clean = [text(number) for number in range(10)]
    odd = [*clean[:9], "here a quagga stood"]
    assert encoder.gate("clean", clean).encoder == "fastokens"
    gate = encoder.gate("odd", odd)
    assert (gate.encoder, gate.mismatches) == ("tokenizers", 1)
    assert gate.first == "'here a quagga stood'"
    assert gate.reason == "1 texts of the sample have other ids"
    expected = _ids(Encoder(tokenizer, fast=False).encode_batch(odd))
    assert _ids(encoder.encode_batch(odd, "odd")) == expected
    assert _ids(encoder.encode_batch(odd, "clean")) != expected


@pytest.mark.parametrize("number", range(len(ADVERSARIAL)))
def test_a_difference_on_an_adversarial_string_counts(tokenizer: Path, number: int):
    encoder = Encoder(tokenizer)
    inner, wanted = encoder.fast, ADVERSARIAL[number]

    def changed(texts: list[str], **options: bool) -> tuple[bytes, bytes]:
        seen = [one + "q" if one == wanted else one for one in texts]
        return inner.encode_batch_flat(seen, **options)

    encoder.fast = SimpleNamespace(encode_batch_flat=changed)
    assert encoder.gate("one", ["plain"]).mismatches == 1


def test_text_that_the_fast_encoder_refuses_is_encoded_by_the_reference_and_counted(
    tokenizer: Path,
):
    encoder = Encoder(tokenizer)
    encoder.fast = Refusing(encoder.fast, "quagga")
    encoder.gate("one", ["plain text"])
    texts = ["plain", "a quagga"]
    expected = _ids(Encoder(tokenizer, fast=False).encode_batch(texts))
    assert _ids(encoder.encode_batch(texts, "one")) == expected
    assert encoder.facts()["one"]["fallbacks"] == 2
    assert encoder.gate("two", texts).encoder == "tokenizers"


def test_a_tokenizer_that_the_fast_encoder_cannot_read_is_no_error(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    class Broken:
        @staticmethod
        def from_file(path: str) -> None:
            raise ValueError("unsupported model")

    monkeypatch.setattr("fastokens.Tokenizer", Broken)
    encoder = Encoder(tokenizer)
    gate = encoder.gate("one", ["text"])
    assert gate.encoder == "tokenizers"
    assert "unsupported model" in gate.reason
    assert len(encoder.encode_batch(["some text"], "one")[0]) > 0


def test_the_gate_reads_no_more_than_its_sample(tokenizer: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encode, "SAMPLE_DOCUMENTS", 3)
    read = []
    texts = (read.append(number) or f"text {number}" for number in range(100))
    assert Encoder(tokenizer).gate("one", texts).sampled == 3
    assert read == [0, 1, 2]


@pytest.mark.parametrize("fast", [True, False])
def test_the_stream_is_every_document_followed_by_the_end_whatever_the_batches(
    tokenizer: Path, fast: bool, text: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    encoder = Encoder(tokenizer, fast=fast)
    drawn = random.Random(1)
    texts = ["", *(text(n)[: drawn.randrange(200)] for n in range(40)), "", "end"]
    encoder.gate("one", texts)
    expected = [one for ids in encoder.encode_batch(texts, "one") for one in (*ids.tolist(), 0)]
    for documents, characters in ((256, 10_000), (1, 10_000), (7, 300), (256, 1)):
        monkeypatch.setattr(encode, "BATCH_DOCUMENTS", documents)
        monkeypatch.setattr(encode, "BATCH_CHARACTERS", characters)
        stream = encoder.encode_stream(texts, 0, np.dtype("<u2"), "one")
        assert stream.dtype == np.dtype("<u2")
        assert stream.tolist() == expected
    assert encoder.encode_stream([], 0, np.dtype("<u2"), "one").tolist() == []


def test_text_that_spells_the_end_has_no_end_in_its_ids(tokenizer: Path):
    encoder = Encoder(tokenizer)
    encoder.gate("one", [])
    assert 0 not in encoder.encode_batch(["<|endoftext|>"], "one")[0].tolist()
