"""Spherical k-means and the grouping of its centroids."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.grouping import divide, k_means, names, nearest
from shoal.data.lexical import unit


def blobs(seed, groups=6, each=40, dimensions=16, noise=0.15):
    random = np.random.default_rng(seed)
    centers = np.linalg.qr(random.normal(size=(dimensions, dimensions)))[0][:groups]
    rows = np.repeat(centers, each, 0) + noise * random.normal(size=(groups * each, dimensions))
    return unit(rows.astype(np.float32)), np.repeat(np.arange(groups), each)


def agreement(found, truth):
    """Adjusted Rand index, from its definition by pairs."""
    same_a, same_b = found[:, None] == found, truth[:, None] == truth
    upper = np.triu_indices(len(truth), 1)
    a, b = same_a[upper], same_b[upper]
    expected = a.sum() * b.sum() / len(a)
    return ((a & b).sum() - expected) / ((a.sum() + b.sum()) / 2 - expected)


def test_planted_groups_are_found():
    rows, truth = blobs(1)
    place, _ = nearest(rows, k_means(rows, 6, seed=3, restarts=3))
    assert agreement(place, truth) > 0.99
    centroids = k_means(rows, 48, seed=3)
    place, _ = nearest(rows, centroids)
    weights = np.bincount(place, minlength=48).astype(np.float64)
    topic = divide(centroids, weights, 6, 0.05, seed=3)
    assert agreement(topic[place], truth) > 0.99


def test_nearest_is_the_largest_product_whatever_the_batch(monkeypatch):
    rows, _ = blobs(2)
    centroids = rows[::17]
    products = rows.astype(np.float64) @ centroids.T.astype(np.float64)
    place, close = nearest(rows, centroids)
    np.testing.assert_allclose(close, products.max(1), rtol=1e-5)
    assert (products[np.arange(len(rows)), place] >= products.max(1) - 1e-6).all()
    monkeypatch.setattr("shoal.data.grouping.ROWS", 7)
    np.testing.assert_array_equal(nearest(rows, centroids)[0], place)


def test_k_means_is_the_same_again_and_never_loses_a_centroid():
    rows, _ = blobs(4, groups=3, each=30)
    first, again = (k_means(rows, 20, seed=9) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)
    copies = np.repeat(rows[:2], 10, 0)
    assert len(k_means(copies, 5, seed=0)) == 5
    with pytest.raises(ValueError, match="21 centroids of 20 rows"):
        k_means(copies, 21, seed=0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    share=st.floats(0.0, 0.08),
    skew=st.floats(0.0, 3.0),
)
def test_every_group_has_its_least_weight_and_groups_fall_in_weight(seed, count, share, skew):
    random = np.random.default_rng(seed)
    centroids = unit(random.normal(size=(60, 8)).astype(np.float32))
    weights = random.random(60) ** skew + 1e-3
    group = divide(centroids, weights, count, share, seed)
    mass = np.bincount(group, weights)
    assert len(mass) <= count
    assert set(group.tolist()) == set(range(len(mass)))
    assert (mass >= share * weights.sum() * (1 - 1e-9)).all() or len(mass) == 1
    assert (np.diff(mass) <= 1e-9).all()


def test_no_single_move_would_gain():
    random = np.random.default_rng(5)
    centroids = unit(random.normal(size=(50, 6)).astype(np.float32))
    weights = random.random(50) + 0.1
    least = 0.02 * weights.sum()
    group = divide(centroids, weights, 8, 0.02, 1)
    pulls = centroids.astype(np.float64) * weights[:, None]

    def quality(groups):
        return sum(np.linalg.norm(pulls[groups == g].sum(0)) for g in range(8))

    best = quality(group)
    for one in range(50):
        for other in range(8):
            moved = group.copy()
            moved[one] = other
            light = np.bincount(moved, weights, 8)[group[one]]
            if light >= least:
                assert quality(moved) <= best + 1e-6


def test_names_are_the_words_of_the_highest_score():
    scores = np.array([[0.1, 0.9, 0.5], [0.3, 0.0, 0.3]])
    assert names(("a", "b", "c"), scores, 2) == ["b c", "a c"]
