"""Buffer sizes: the published ones, and rounding up exactly whatever the factor."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.moe.room import chunk_bounds, chunk_rows, receiver_rows, sender_rows

PUBLISHED_ASSIGNMENTS = 65_536 * 8
FACTORS = st.integers(1, 300).map(lambda percent: percent / 100)


@pytest.mark.parametrize(("factor", "rows"), [(1.10, 3004), (1.15, 3141)])
def test_a_sender_has_the_rows_of_the_published_run(factor, rows):
    assert sender_rows(PUBLISHED_ASSIGNMENTS, 64, 3, factor) == rows


def test_a_receiver_has_the_rows_of_the_published_run():
    assert receiver_rows(PUBLISHED_ASSIGNMENTS, 6, 3, 1.15) == 33_497


def test_an_exact_share_is_not_rounded_up_by_the_factor_as_a_float():
    """1.1 * 10 is 11.000000000000002 in floats."""
    assert sender_rows(10, 1, 1, 1.1) == 11
    assert receiver_rows(300, 1, 3, 1.15) == 115
    assert chunk_rows(200, 8, 4, 2, 1.13) == 113


@given(count=st.integers(1, 10**7), parts=st.integers(1, 400), factor=FACTORS)
def test_the_rows_are_the_fewest_that_hold_the_share(count, parts, factor):
    rows = sender_rows(count, parts, 1, factor)
    need = Decimal(str(factor)) * count
    assert rows * parts >= need > (rows - 1) * parts
    assert receiver_rows(count, 1, parts, factor) == rows


@given(experts=st.integers(1, 64), chunks=st.integers(1, 80))
def test_chunks_are_consecutive_even_and_never_empty(experts, chunks):
    bounds = chunk_bounds(experts, chunks)
    assert [i for first, last in bounds for i in range(first, last)] == list(range(experts))
    sizes = [last - first for first, last in bounds]
    assert len(sizes) == min(experts, chunks)
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


@given(
    count=st.integers(1, 10**6),
    shards=st.integers(1, 64),
    experts=st.integers(1, 48),
    chunks=st.integers(1, 8),
    factor=FACTORS,
)
def test_chunks_share_what_a_receiver_takes(count, shards, experts, chunks, factor):
    bounds = chunk_bounds(experts, chunks)
    rows = [chunk_rows(count, shards, experts, last - first, factor) for first, last in bounds]
    if factor >= shards:
        assert rows == [shards * count] * len(bounds)
    else:
        need = Decimal(str(factor)) * count
        assert need <= sum(rows) < need + len(bounds)
