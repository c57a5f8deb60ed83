"""Strata: every cell stands in one, near topics together, low and high levels apart."""

import numpy as np
import pytest

from shoal.data.strata import sizes, strata, table
from shoal.data.topics import MODEL

NAMES = ["sonnet love", "king crown", "def return", "import class", "vote state"]
UNITS = {f"t{topic:02d}-q{level}": 10 * topic + level for topic in range(5) for level in range(5)}


@pytest.fixture
def model(tmp_path):
    """Five topics in a plane: two of verse, two of code, one of news."""
    angles = np.array([0.0, 0.1, 1.5, 1.6, 3.0, 3.1])
    rows = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    np.savez(tmp_path / MODEL, centroids=rows, topic=np.array([0, 1, 2, 3, 4, 4]))
    return tmp_path


def test_topics_that_lie_near_each_other_share_a_stratum_and_levels_do_not(model):
    found = strata(UNITS, model, NAMES, 3)
    assert set(found) == {
        f"{n}-{band}" for n in ("king-0", "import-1", "vote-2") for band in ("low", "high")
    }
    assert found["king-0-high"] == ("t00-q3", "t00-q4", "t01-q3", "t01-q4")
    assert found["vote-2-low"] == ("t04-q0", "t04-q1", "t04-q2")


def test_every_cell_that_holds_a_unit_stands_in_exactly_one(model):
    found = strata(UNITS, model, NAMES, 3)
    placed = [cell for cells in found.values() for cell in cells]
    assert sorted(placed) == sorted(cell for cell, held in UNITS.items() if held)
    assert "t00-q0" not in placed
    assert sum(sizes(found, UNITS).values()) == sum(UNITS.values())


def test_sources_are_strata_of_their_own():
    assert strata({"b": 2, "a": 1, "none": 0}, None, (), 5) == {"a": ("a",), "b": ("b",)}


def test_the_natural_shares_give_every_cell_its_size(model):
    found = strata(UNITS, model, NAMES, 3)
    held = sizes(found, UNITS)
    total = sum(held.values())
    rows = table({name: number / total for name, number in held.items()}, found, UNITS)
    assert {cell for cell, *_ in rows} == {cell for cell, number in UNITS.items() if number}
    for cell, first, second in rows:
        assert first == second == pytest.approx(UNITS[cell] / total, rel=1e-12)


def test_as_many_groups_as_topics_keep_all_apart_and_more_are_refused(model):
    assert len({name.rpartition("-")[0] for name in strata(UNITS, model, NAMES, 5)}) == 5
    assert len(strata(UNITS, model, NAMES, 1)) == 2
    for count in (0, 6):
        with pytest.raises(ValueError, match=f"{count} groups of 5 topics"):
            strata(UNITS, model, NAMES, count)
