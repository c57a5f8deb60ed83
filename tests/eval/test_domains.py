import lzma
import math

import numpy as np
import pytest

from shoal.eval import domains
from shoal.eval.domains import compressors, evaluate, limit_bytes, pack, score_documents

EOS = 0


def encode(texts: list[str]) -> list[list[int]]:
    return [[byte + 1 for byte in text.encode()] for text in texts]


def random_documents(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 300, length).tolist() for length in lengths]


def bigram_score(inputs, targets, segments):
    del segments
    return ((inputs * 31 + targets * 17) % 97 / 16).astype(np.float32)


def bigram_nats(document: list[int]) -> float:
    previous = [EOS, *document][:-1]
    return sum(((a * 31 + b * 17) % 97) / 16 for a, b in zip(previous, document, strict=True))


@pytest.mark.parametrize("sequence_tokens", [1, 7, 16, 64])
def test_every_token_is_scored_exactly_once_after_the_token_before_it(sequence_tokens):
    documents = random_documents(0, [1, 5, 16, 17, 0, 40, 3, 64, 65, 2])
    windows = pack(documents, eos=EOS, sequence_tokens=sequence_tokens)
    assert windows.inputs.shape[1] == sequence_tokens
    assert windows.weights.sum() == sum(map(len, documents))
    seen = [[] for _ in documents]
    for row in range(len(windows.inputs)):
        for column in range(sequence_tokens):
            owner = windows.documents[row, column]
            assert (owner >= 0) == (windows.weights[row, column] == 1)
            if owner >= 0:
                pair = (windows.inputs[row, column], windows.targets[row, column])
                seen[owner].append(pair)
    for document, pairs in zip(documents, seen, strict=True):
        assert sorted(pairs) == sorted(zip([EOS, *document][:-1], document, strict=True))


def test_a_segment_is_one_stretch_of_one_document_and_padding_is_its_own():
    documents = random_documents(1, [3, 9, 20, 1, 1, 6])
    windows = pack(documents, eos=EOS, sequence_tokens=8)
    for row in range(len(windows.inputs)):
        segments, owners = windows.segments[row], windows.documents[row]
        assert segments[0] == 0
        assert set(np.diff(segments)) <= {0, 1}
        for segment in np.unique(segments):
            inside = segments == segment
            assert len(set(owners[inside])) == 1
            tokens, previous = windows.targets[row][inside], windows.inputs[row][inside]
            if owners[inside][0] >= 0:
                assert (previous[1:] == tokens[:-1]).all()


def test_a_long_document_continues_with_its_own_previous_token():
    document = list(range(1, 21))
    windows = pack([document], eos=EOS, sequence_tokens=8)
    assert windows.inputs.tolist()[:2] == [[0, *range(1, 8)], list(range(8, 16))]
    assert windows.targets.tolist()[2] == [17, 18, 19, 20, 0, 0, 0, 0]


def test_short_documents_share_a_row():
    windows = pack(random_documents(2, [4] * 10), eos=EOS, sequence_tokens=8)
    assert windows.inputs.shape == (5, 8)
    assert windows.weights.all()


def test_no_documents_make_no_rows():
    assert pack([], eos=EOS, sequence_tokens=8).inputs.shape == (0, 8)


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_document_scores_equal_a_plain_sum_in_any_batch_shape(rows):
    documents = random_documents(3, [30, 1, 8, 0, 100, 12])
    shapes = set()

    def score(inputs, targets, segments):
        shapes.add(inputs.shape)
        return bigram_score(inputs, targets, segments)

    found = score_documents(documents, score, eos=EOS, sequence_tokens=16, rows=rows)
    np.testing.assert_allclose(found, [bigram_nats(document) for document in documents], rtol=1e-6)
    assert shapes == {(rows, 16)}


def test_sums_are_in_float64():
    document = [1] * 4_000

    def score(inputs, targets, segments):
        return np.full(inputs.shape, 0.1, np.float32)

    found = score_documents([document], score, eos=EOS, sequence_tokens=16, rows=4)
    assert found[0] == pytest.approx(4_000 * float(np.float32(0.1)), rel=1e-12)


def run(texts, **options):
    defaults = {"eos": EOS, "sequence_tokens": 16, "rows": 4}
    return evaluate(texts, encode, bigram_score, **(defaults | options))


TEXTS = {
    "b prose": ["The cat sat on the mat.", "Déjà vu — 東京"],
    "a code": ["def f(x):\n  return x\n"] * 3,
}


def test_bits_per_byte_count_the_raw_bytes():
    found = run(TEXTS)
    for name, texts in TEXTS.items():
        nats = sum(bigram_nats(document) for document in encode(texts))
        num_bytes = sum(len(text.encode()) for text in texts)
        domain = found["domains"][name]
        assert domain["bpb"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-6)
        assert domain["bytes"] == num_bytes
        assert domain["documents"] == len(texts)
        assert domain["loss"] == pytest.approx(nats / domain["tokens"], rel=1e-6)


def test_bits_per_byte_do_not_look_at_what_the_tokenizer_would_decode():
    text = "🐟" * 40
    pieces = evaluate({"x": [text]}, encode, bigram_score, eos=EOS, sequence_tokens=3, rows=1)
    assert pieces["domains"]["x"]["bytes"] == 160


def test_macro_is_the_unweighted_mean_and_the_order_is_the_callers():
    found = run(TEXTS, kinds={"a code": "code"}, code={"a code"})
    assert list(found["domains"]) == ["b prose", "a code"]
    for key, value in found["macro"].items():
        mean = sum(domain[key] for domain in found["domains"].values()) / 2
        assert value == pytest.approx(mean, rel=1e-12)
    assert [domain["code"] for domain in found["domains"].values()] == [False, True]
    assert [domain["kind"] for domain in found["domains"].values()] == ["", "code"]


def test_repeated_calls_are_equal():
    assert run(TEXTS) == run(TEXTS)


def test_a_domain_scores_the_same_beside_other_domains():
    alone = run({"b prose": TEXTS["b prose"]})["domains"]["b prose"]
    assert run(TEXTS)["domains"]["b prose"] == alone


def test_given_baselines_are_used_and_missing_ones_computed():
    known = {"b prose": {"xz_bpb": 1.5, "zstd_bpb": 2.5}}
    found = run(TEXTS, compressed=known)["domains"]
    assert found["b prose"]["xz_bpb"] == 1.5
    assert found["a code"]["xz_bpb"] == compressors(TEXTS["a code"])["xz_bpb"]


@pytest.mark.parametrize("texts", [[], [""]])
def test_an_empty_domain_is_named(texts):
    with pytest.raises(ValueError, match="'plays' has no text"):
        run({"prose": ["words"], "plays": texts})


def test_no_domain_at_all_is_an_error():
    with pytest.raises(ValueError, match="no domain"):
        run({})


def test_a_loss_that_is_not_finite_is_named():
    def score(inputs, targets, segments):
        return np.full(inputs.shape, np.nan, np.float32)

    with pytest.raises(ValueError, match="'a' is nan"):
        evaluate({"a": ["text"]}, encode, score, eos=EOS, sequence_tokens=4, rows=1)


def test_limit_takes_whole_documents_and_counts_the_newlines():
    assert limit_bytes(["aaaa", "bbbb", "cc"], 9) == ["aaaa", "bbbb"]
    assert limit_bytes(["aaaa", "bbbb", "cc"], 8) == ["aaaa"]
    assert limit_bytes(["aaaa", "bbbb", "cc"], 12) == ["aaaa", "bbbb", "cc"]
    assert limit_bytes([], 9) == []


def test_limit_is_idempotent():
    texts = ["é" * 1_000 for _ in range(300)]
    once = limit_bytes(texts)
    assert limit_bytes(once) == once
    assert len("\n".join(once).encode()) <= domains.LIMIT_BYTES


def test_a_first_document_beyond_the_limit_is_cut_at_a_line_or_a_character():
    assert limit_bytes(["one\ntwo\nthree", "x"], 9) == ["one\ntwo\n"]
    assert limit_bytes(["ééé"], 5) == ["éé"]


def test_compressors_see_one_stream_per_domain():
    texts = ["the same words again and again"] * 200
    stream = "\n".join(texts).encode()
    found = compressors(texts)
    size = len(lzma.compress(stream, preset=9 | lzma.PRESET_EXTREME))
    assert found["xz_bpb"] == 8 * size / len(stream)
    assert 0 < found["zstd_bpb"] < 1


def test_compressors_refuse_no_text():
    with pytest.raises(ValueError, match="no text"):
        compressors([])
