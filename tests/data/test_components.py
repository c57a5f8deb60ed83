"""Components as those of a naive search, and keepers as those of comparing all with all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.components import components
from shoal.data.containment import find_keepers

Groups = list[list[int]]


def joined(groups: Groups, parts: int = 1) -> dict[int, int]:
    """Key -> label, the pairs of groups handed over in so many parts."""
    packed = []
    for n in range(parts):
        pairs = [(member, min(group)) for group in groups[n::parts] for member in group]
        pairs = [pair for pair in pairs if pair[0] != pair[1]]
        packed.append(tuple(np.array(pairs, np.uint64).reshape(-1, 2).T))
    found = components(packed)
    return dict(zip(found.keys.tolist(), found.labels.tolist(), strict=True))


def naive(groups: Groups) -> dict[int, int]:
    labels = {member: member for group in groups if len(set(group)) > 1 for member in group}
    changed = True
    while changed:
        changed = False
        for group in groups:
            if len(set(group)) > 1:
                low = min(labels[member] for member in group)
                changed |= any(labels[member] != low for member in group)
                labels |= dict.fromkeys(group, low)
    return labels


MEMBERS = st.integers(0, 30).map(lambda n: n * 2**59 + 7)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(MEMBERS, min_size=2, max_size=5), max_size=20), st.randoms())
def test_components_are_those_of_a_naive_search_whatever_the_order(groups: Groups, drawn):
    expected = naive(groups)
    assert joined(groups) == expected
    for group in groups:
        drawn.shuffle(group)
    drawn.shuffle(groups)
    assert joined(groups, parts=3) == expected


def test_a_chain_of_many_is_one_component_named_by_its_smallest():
    found = joined([[n, n + 1] for n in range(10_000, 0, -1)])
    assert set(found.values()) == {1}
    assert len(found) == 10_001


def test_keys_are_found_where_they_are():
    found = components([(np.array([9], np.uint64), np.array([5], np.uint64))])
    assert found.find(np.array([9, 6, 5, 2**63], np.uint64)).tolist() == [1, -1, 0, -1]
    assert components([]).find(np.array([1], np.uint64)).tolist() == [-1]


def sets_of(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sets = [sorted(set(text)) for text in texts]
    ends = np.cumsum([len(items) for items in sets]).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return np.array([item for items in sets for item in items], np.uint64), begins, ends


def naive_keepers(texts: list[list[int]], exempt: list[bool], share: float) -> list:
    kept: list[int] = []
    found = []
    for number, text in enumerate(texts):
        mine = set(text)
        best = (-1, 0)
        for other in kept:
            held = len(mine & set(texts[other]))
            if held >= share * len(mine) and held > best[1]:
                best = (other, held)
        best = (-1, 0) if exempt[number] else best
        if best[0] < 0:
            kept.append(number)
        found.append(best)
    return found


def keepers(texts, exempt, share, scan_limit) -> list:
    hashes, begins, ends = sets_of(texts)
    groups = np.array([0, len(texts)], np.int64)
    found = find_keepers(
        hashes, begins, ends, groups, np.array(exempt, bool), share, scan_limit=scan_limit
    )
    return [tuple(pair) for pair in np.stack(found, axis=1).tolist()]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=0, max_size=25), min_size=1, max_size=25),
    st.sampled_from([0.3, 0.5, 0.75, 1.0]),
    st.randoms(),
)
def test_scan_and_index_find_the_keepers_of_a_naive_search(texts, share, drawn):
    # Half of the sets are made from an earlier one, so that the bound is met from both sides.
    for number in range(1, len(texts), 2):
        texts[number] = texts[number - 1][: len(texts[number])] + texts[number][:3]
    texts = [[item * 0x9E3779B97F4A7C15 % 2**64 for item in text] for text in texts]
    exempt = [drawn.random() < 0.1 for _ in texts]
    expected = naive_keepers(texts, exempt, share)
    assert keepers(texts, exempt, share, 1000) == expected
    assert keepers(texts, exempt, share, 0) == expected


@pytest.mark.parametrize(("shared", "left"), [(200, 3000), (400, 1)])
def test_a_template_shared_by_thousands_costs_and_loses_nothing_below_the_bound(shared, left):
    drawn = np.random.default_rng(0)
    frame = drawn.integers(0, 2**63, shared)
    texts = [[*frame.tolist(), *drawn.integers(0, 2**63, 90).tolist()] for _ in range(3000)]
    found = keepers(texts, [False] * 3000, 0.75, 64)
    assert sum(keeper < 0 for keeper, _ in found) == left
