"""Signatures: what is a run, which texts are equal, how well bands estimate similarity."""

import random
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.minhash import bands_of
from shoal.data.settings import MARIN_NEAR, NearConfig

WORDS = NearConfig()


def bands(text: str, config: NearConfig = WORDS) -> list[int]:
    return bands_of(pa.array([text]), config)[0].as_py()


def same(one: str, other: str, config: NearConfig = WORDS) -> bool:
    return bands(one, config) == bands(other, config)


@pytest.mark.parametrize("config", [WORDS, MARIN_NEAR])
def test_case_punctuation_and_white_space_change_no_signature(config: NearConfig):
    text = "One two, three (four) five: six; don't stop, seven eight."
    assert len(bands(text, config)) == config.bands
    assert same(text, "  ONE two\n\nthree\tfour FIVE six dont stop -- seven eight!\n", config)
    assert not same(text, text.replace("seven", "sever"), config)


@pytest.mark.parametrize("config", [WORDS, MARIN_NEAR])
def test_letters_of_every_script_count(config: NearConfig):
    text = "Ближе к вечеру ветер стих, и море успокоилось совсем"
    assert same(text, text.upper(), config)
    assert not same(text, text.replace("море", "поле"), config)
    assert same(
        "naïve café — 東京 と 大阪 \U00020000 end",
        "NAÏVE “café” 東京 と 大阪 \U00020000 end",
        config,
    )
    assert not same("東京 と 大阪", "東京 と 京都", config)


def test_words_are_told_apart_where_characters_only_move():
    assert not same("a bc d e f g", "ab c d e f g")
    assert not same("a b c d e f", "f e d c b a")
    marin = replace(MARIN_NEAR, shingle_length=3)
    assert not same("a bc", "ab c", marin)


def test_a_text_shorter_than_a_run_is_one_run():
    assert len(bands("one two")) == WORDS.bands
    assert same("one two", "One, TWO!")
    assert not same("one two", "two one")
    assert not same("one two", "one two three")
    assert len(bands("ab", MARIN_NEAR)) == MARIN_NEAR.bands


@pytest.mark.parametrize("text", ["", " \n", "... --- !!", "\u2014"])
@pytest.mark.parametrize("config", [WORDS, MARIN_NEAR])
def test_a_text_without_words_has_no_bands(text: str, config: NearConfig):
    assert bands(text, config) == []


def test_runs_that_come_again_change_nothing():
    once = "a b c d e f a b c d e f"
    assert same(once, f"{once} a b c d e f")


@pytest.mark.parametrize("config", [WORDS, MARIN_NEAR])
def test_only_the_first_characters_are_read(config: NearConfig):
    cut = replace(config, max_characters=30)
    head = "é one two three four five six "
    assert len(head) == 30
    assert same(head + "seven", head + "eight nine", cut)
    assert not same(head + "seven", head + "eight nine", config)
    assert not same(head + "seven", head + "eight", replace(config, max_characters=31))


def test_settings_change_signatures():
    text = "a few words that are long enough"
    assert not same(text, text + " now")
    assert bands(text) != bands(text, replace(WORDS, seed=43))
    assert len(set(bands(text, replace(WORDS, bands=100, rows=2)))) == 100


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=8), st.integers(0, 3))
def test_neighbours_in_a_batch_slices_and_widths_change_nothing(texts: list[str], skip: int):
    texts = [text for text in texts if text.isprintable()]
    for config in (replace(WORDS, shingle_length=2), replace(MARIN_NEAR, shingle_length=2)):
        alone = [bands(text, config) for text in texts]
        assert bands_of(pa.array(texts, pa.string()), config).to_pylist() == alone
        wide = pa.array(texts, pa.large_string())[skip:]
        assert bands_of(wide, config).to_pylist() == alone[skip:]


def test_threads_at_once_give_what_one_gives():
    drawn = random.Random(0)
    texts = pa.array([" ".join(drawn.choices("abcdefgh", k=200)) for _ in range(200)])
    expected = bands_of(texts, WORDS)
    found: dict[int, pa.ListArray] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.__setitem__(n, bands_of(texts, WORDS)))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n].equals(expected) for n in range(4)] == [True] * 4


@pytest.mark.parametrize("jaccard", [0.5, 0.8])
def test_equal_bands_estimate_jaccard_similarity(jaccard: float):
    # One row per band: a band is a minimum. 200 pairs of 300 runs, 128 minima each.
    config = NearConfig(shingle_length=1, bands=128, rows=1)
    drawn = random.Random(1)
    shared = round(300 * jaccard)
    texts = []
    for _ in range(200):
        words = [f"w{drawn.getrandbits(60)}" for _ in range(300)]
        a, b = words[: shared + (300 - shared) // 2], words[:shared] + words[-(300 - shared) // 2 :]
        texts += [" ".join(a), " ".join(b)]
    found = np.array(bands_of(pa.array(texts), config).to_pylist(), np.uint64)
    shares = (found[::2] == found[1::2]).mean(axis=1)
    assert abs(shares.mean() - jaccard) < 0.01
    assert shares.std() < 1.3 * (jaccard * (1 - jaccard) / 128) ** 0.5
    # And the minima are independent of each other: pairs of them agree J squared of the time.
    both = (found[::2] == found[1::2])[:, :64] & (found[::2] == found[1::2])[:, 64:]
    assert abs(both.mean() - jaccard**2) < 0.02
