"""Long documents are read more often, and every cell keeps its tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import beta

from shoal.data.layout import factors, long_share, select

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=80)


@given(LENGTHS, st.floats(0.25, 16), st.integers(1, 300), st.integers(0, 9))
def test_a_cell_keeps_its_tokens_and_has_the_long_share_of_the_formula(
    lengths: list[int], skew: float, threshold: int, seed: int
):
    tokens = np.array(lengths)
    found = select(tokens, threshold_tokens=threshold, skew=skew, seed=seed)
    total, is_long = tokens.sum(), tokens > threshold
    assert abs(found.tokens - total) <= tokens.max()
    share = tokens[is_long].sum() / total
    formula = skew * share / (skew * share + 1 - share)
    longest = tokens[is_long].max(initial=0)
    assert abs(found.long_tokens - formula * total) <= longest
    assert found.copies[is_long].max(initial=0) <= np.ceil(skew) + 1
    assert np.bincount(found.order, minlength=len(tokens)).tolist() == found.copies.tolist()
    assert found.tokens == tokens[found.order].sum()


@given(LENGTHS, st.integers(1, 300))
def test_no_skew_reads_every_document_once(lengths: list[int], threshold: int):
    found = select(np.array(lengths), threshold_tokens=threshold, skew=1.0, seed=0)
    assert (found.copies == 1).all()


@given(LENGTHS, st.sampled_from([0, 400]), st.floats(0.25, 16))
def test_a_cell_of_one_kind_stays_as_it_is(lengths: list[int], threshold: int, skew: float):
    found = select(np.array(lengths), threshold_tokens=threshold, skew=skew, seed=0)
    assert (found.copies == 1).all()


def test_long_documents_are_read_skew_times_as_often_as_short_ones():
    tokens = np.array([100, 10] * 5_000)
    found = select(tokens, threshold_tokens=50, skew=4.0, seed=0)
    long, short = found.copies[::2].mean(), found.copies[1::2].mean()
    assert long / short == pytest.approx(4, rel=0.01)
    assert (long, short) == pytest.approx(factors(500_000, 50_000, 4.0), rel=0.01)


def test_the_order_is_shuffled_by_the_seed_alone():
    tokens = np.arange(1, 200)
    first = select(tokens, threshold_tokens=100, skew=2.0, seed=1).order
    assert first.tolist() == select(tokens, threshold_tokens=100, skew=2.0, seed=1).order.tolist()
    other = select(tokens, threshold_tokens=100, skew=2.0, seed=2).order
    assert first.tolist() != other.tolist()
    assert sorted(first) == sorted(other)
    assert np.corrcoef(first, np.arange(len(first)))[0, 1] < 0.3


def test_the_formula_explains_the_published_shares():
    # Published: 14.943 % naturally, 22.586 % at a skew of 2 and 43.405 % at 8, over 200 cells.
    alone = {"all": (1.0, 0.14943)}
    assert long_share(alone, 2) == pytest.approx(0.260, abs=0.001)
    assert long_share(alone, 8) == pytest.approx(0.584, abs=0.001)
    middle = (np.arange(200) + 0.5) / 200

    def cells(spread: float) -> dict[str, tuple[float, float]]:
        shares = beta.ppf(middle, 0.14943 * spread, 0.85057 * spread)
        return {str(n): (1.0, float(share)) for n, share in enumerate(shares)}

    spread = brentq(lambda one: long_share(cells(one), 2) - 0.22586, 0.5, 100)
    assert long_share(cells(spread), 1) == pytest.approx(0.149, abs=0.002)
    assert long_share(cells(spread), 8) == pytest.approx(0.434, abs=0.02)


def test_a_skew_that_is_none_is_refused():
    for skew in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="use a number above 0"):
            factors(1, 1, skew)


def test_a_cell_without_documents_has_nothing():
    found = select(np.zeros(0, np.int64), threshold_tokens=5, skew=2.0, seed=0)
    assert (found.tokens, len(found.order)) == (0, 0)
