import dataclasses
import itertools
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import order
from shoal.data.order import Location, Order, Phase, lane_counts, permute

UNIT = 24
CELLS = {"code": 5, "law": 3, "web": 11, "empty": 0}
MIX_A = (("web", 0.5), ("code", 0.3), ("law", 0.2))
MIX_B = (("web", 0.1), ("law", 0.9))
MIX_C = (("code", 1.0), ("web", 2.0))


def phase(start: int, batch: int, sequence: int, weights=MIX_A) -> Phase:
    return Phase(start_step=start, batch_sequences=batch, sequence_tokens=sequence, weights=weights)


def build(*phases: Phase, **changes) -> Order:
    values = {"units": CELLS, "unit_tokens": UNIT, "seed": 7, "table_lanes": 13, **changes}
    return Order(phases=phases, **values)


# B * S is 48 throughout; contexts 4, 6, 8 and 24; two changes follow each other at once.
CHANGES = (
    phase(0, 12, 4),
    phase(18, 8, 6),
    phase(22, 8, 6, MIX_B),
    phase(26, 6, 8, MIX_C),
    phase(29, 2, 24, MIX_C),
    phase(30, 12, 4, MIX_A),
)


def rows(plan: Order, step: int) -> list[Location]:
    found = plan.locate_step(step)
    cells = [found.cells[cell] for cell in found.cell]
    units = zip(cells, found.epoch.tolist(), found.unit.tolist(), strict=True)
    return [Location(*unit, found.slice) for unit in units]


def reads(plan: Order, steps: range) -> Counter[tuple[str, int, int, int]]:
    """How often each token (cell, epoch, unit, token of the unit) is read."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for step in steps:
        size = plan.phase(step).sequence_tokens
        for cell, epoch, unit, part in rows(plan, step):
            found.update((cell, epoch, unit, part * size + token) for token in range(size))
    return found


def check_every_token_once(plan: Order, num_steps: int) -> None:
    """The run ends between windows: all units are whole, only a last epoch is partial."""
    found = reads(plan, range(num_steps))
    assert set(found.values()) == {1}
    units = Counter((cell, epoch) for cell, epoch, _, token in found if token == 0)
    consumed = plan.consumed(num_steps)
    for cell, count in consumed.items():
        for epoch in range(-(-count // CELLS[cell]) if count else 0):
            assert units[cell, epoch] == min(CELLS[cell], count - epoch * CELLS[cell])
    assert sum(units.values()) == sum(consumed.values())
    assert len(found) == UNIT * sum(consumed.values())


def oracle(plan: Order, num_steps: int) -> list[list[tuple[str, int]]]:
    """Walks lane by lane with a counter per cell: row -> (cell, units of it before), per step."""
    taken: Counter[str] = Counter()
    walked, open_lanes, last, tables = [], [], None, iter(())
    for step in range(num_steps):
        now = plan.phase(step)
        counts = lane_counts(now.weights, plan.table_lanes)
        if counts != last:
            start = sum(taken.values())
            tables = (
                counts[index][0]
                for number in itertools.count()
                for index in order._table(plan.seed, start, number, counts).cell.tolist()
            )
            last = counts
        if (step - now.start_step) % (UNIT // now.sequence_tokens) == 0:
            open_lanes = []
            for _ in range(now.batch_sequences):
                cell = next(tables)
                open_lanes.append((cell, taken[cell]))
                taken[cell] += 1
        walked.append(open_lanes)
    return walked


# --- the permutation --------------------------------------------------------------------------


def keys(seed: int) -> np.ndarray:
    return order._keys("test", seed)


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 99, 100, 101, 255, 256, 257, 4096])
def test_the_permutation_is_a_bijection(size):
    for seed in range(5):
        found = permute(np.arange(size), np.array([size]), keys(seed))
        assert sorted(found.tolist()) == list(range(size))


@settings(max_examples=50, deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63))
def test_the_permutation_is_a_bijection_for_any_size_and_seed(size, seed):
    found = permute(np.arange(size), np.array([size]), keys(seed))
    assert np.array_equal(np.sort(found), np.arange(size))


@pytest.mark.parametrize("size", [10**6 + 3, 2**32 + 1, 10**15 + 37])
def test_the_permutation_stays_in_range_without_collisions_at_large_sizes(size):
    index = np.concatenate([np.arange(5000), size - 1 - np.arange(5000)])
    found = permute(index, np.array([size]), keys(1))
    assert found.min() >= 0
    assert found.max() < size
    assert len(set(found.tolist())) == 10_000
    assert abs(found.mean() / size - 0.5) < 0.02


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_permutation_of_few_is_about_equally_likely(size):
    num_keys = 1200
    seen = Counter(
        tuple(permute(np.arange(size), np.array([size]), keys(seed)).tolist())
        for seed in range(num_keys)
    )
    expected = num_keys / len(list(itertools.permutations(range(size))))
    assert set(seen) == set(itertools.permutations(range(size)))
    chi_square = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi_square < 60  # 23 degrees of freedom: exceeded once in 30,000 at most


def test_one_call_with_many_sizes_and_keys_equals_many_calls():
    sizes = np.array([1, 2, 3, 10, 999, 10**9])
    index = np.array([0, 1, 1, 7, 998, 123_456_789])
    columns = np.hstack([keys(seed) for seed in range(6)])
    alone = [int(permute(index[[n]], sizes[[n]], keys(n))[0]) for n in range(6)]
    assert permute(index, sizes, columns).tolist() == alone


def test_the_permutation_is_golden():
    few = permute(np.arange(10), np.array([10]), keys(0))
    assert few.tolist() == [1, 2, 3, 9, 5, 8, 6, 0, 4, 7]
    many = permute(np.array([0, 10**12]), np.array([10**12 + 1]), keys(0))
    assert many.tolist() == [660346556966, 840124517100]


# --- the mixture ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "lanes", "counts"),
    [
        (MIX_A, 10, {"code": 3, "law": 2, "web": 5}),
        (MIX_A, 13, {"code": 4, "law": 3, "web": 6}),
        ((("b", 1.0), ("a", 1.0), ("c", 1.0)), 4, {"a": 2, "b": 1, "c": 1}),
        ((("b", 7.0), ("a", 7.0), ("c", 7.0)), 5, {"a": 2, "b": 2, "c": 1}),
        ((("a", 0.1), ("b", 0.2), ("z", 0.0)), 3, {"a": 1, "b": 2}),
        ((("a", 5e-324), ("b", 5e-324)), 2, {"a": 1, "b": 1}),
    ],
)
def test_lanes_follow_the_largest_remainder_with_ties_by_name(weights, lanes, counts):
    assert dict(lane_counts(weights, lanes)) == counts


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0.01, 1e6), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_lanes_sum_to_the_table_and_lie_within_one_of_the_share(weights, scale):
    total = sum(weights.values())
    lanes = scale * int(total / min(weights.values()) + 2)
    counts = dict(lane_counts(tuple(weights.items()), lanes))
    assert sum(counts.values()) == lanes
    for cell, weight in weights.items():
        assert abs(counts[cell] - lanes * weight / total) < 1 + 1e-6


def test_a_positive_weight_without_a_lane_is_refused_with_the_table_that_fits():
    weights = (("big", 0.99), ("small", 0.01))
    message = (
        r"cell 'small' has weight share 0.01, less than one of table_lanes=20 lanes; "
        r"raise table_lanes to (100|101), or set its weight to 0"
    )
    with pytest.raises(ValueError, match=message):
        lane_counts(weights, 20)
    assert dict(lane_counts(weights, 101))["small"] == 1
    with pytest.raises(ValueError, match="table_lanes=0 must be at least 1"):
        lane_counts(weights, 0)


def test_every_table_of_lanes_holds_the_exact_counts():
    plan = build(phase(0, 13, 24))
    counts = dict(lane_counts(MIX_A, 13))
    for step in range(40):
        assert Counter(where.cell for where in rows(plan, step)) == counts


def test_tables_are_shuffled_each_in_its_own_way():
    plan = build(phase(0, 13, 24))
    tables = {tuple(where.cell for where in rows(plan, step)) for step in range(50)}
    assert len(tables) > 45
    firsts = Counter(table[0] for table in tables)
    assert set(firsts) == {"code", "law", "web"}


# --- every token once -------------------------------------------------------------------------


def test_every_token_is_read_once_per_epoch():
    check_every_token_once(build(phase(0, 7, 6)), 40)


def test_a_change_of_context_repeats_and_skips_nothing():
    check_every_token_once(build(phase(0, 12, 4), phase(18, 8, 6), phase(26, 2, 24)), 40)


def test_a_change_of_mixture_repeats_and_skips_nothing():
    check_every_token_once(build(phase(0, 7, 8), phase(3, 7, 8, MIX_B), phase(6, 7, 8)), 30)


def test_changes_of_context_and_mixture_in_a_row_repeat_and_skip_nothing():
    check_every_token_once(build(*CHANGES), 30 + 6 * 4)


def test_a_change_of_context_goes_on_in_the_same_tables():
    one, two = build(phase(0, 12, 4)), build(phase(0, 12, 4), phase(12, 2, 24))
    # 12 steps finish 24 lanes; a window of the first plan then is six steps of the second.
    for row in range(12):
        lane = one.locate(12, row)
        assert two.locate(12 + row // 2, row % 2)[:3] == lane[:3]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_token_is_read_once_per_epoch_whatever_the_plan(data):
    tokens = data.draw(st.sampled_from([24, 48, 72]))
    sizes = [size for size in (1, 2, 3, 4, 6, 8, 12, 24) if tokens % size == 0]
    weight = st.floats(0.1, 1.0) | st.just(0.0)
    phases, step = [], 0
    for _ in range(data.draw(st.integers(1, 4))):
        weights = [(cell, data.draw(weight)) for cell in ("code", "law", "web")]
        weights.append((data.draw(st.sampled_from(["code", "law", "web"])) + "x", 0.0))
        if not any(value for _, value in weights):
            weights[0] = ("code", 1.0)
        size = data.draw(st.sampled_from(sizes))
        phases.append(phase(step, tokens // size, size, tuple(weights)))
        step += data.draw(st.integers(1, 3)) * (UNIT // size)
    lanes = data.draw(st.integers(25, 40))
    plan = build(*phases, seed=data.draw(st.integers(0, 9)), table_lanes=lanes)
    check_every_token_once(plan, step)


def test_closed_forms_equal_a_walk_lane_by_lane():
    plan = build(*CHANGES)
    for step, walked in enumerate(oracle(plan, 150)):
        for where, (cell, before) in zip(rows(plan, step), walked, strict=True):
            epoch, index = divmod(before, CELLS[cell])
            key = order._keys("unit", plan.seed, cell, epoch)
            unit = permute(np.array([index]), np.array([CELLS[cell]]), key)
            assert where[:3] == (cell, epoch, int(unit[0]))


def test_consumption_equals_what_was_read():
    plan = build(*CHANGES)
    for step in (0, 1, 5, 6, 18, 19, 23, 26, 27, 30, 33, 36, 50):
        found = reads(plan, range(step))
        tokens = Counter(cell for cell, *_ in found)
        units = Counter(cell for cell, *_ in {key[:3] for key in found})
        assert plan.consumed_tokens(step) == {cell: tokens[cell] for cell in CELLS}
        assert plan.consumed(step) == {cell: units[cell] for cell in CELLS}


def test_a_row_reads_its_unit_from_front_to_back():
    plan = build(phase(0, 3, 4))
    for window in range(5):
        for row in range(3):
            found = [plan.locate(window * 6 + part, row) for part in range(6)]
            assert len({where[:3] for where in found}) == 1
            assert [where.slice for where in found] == list(range(6))


# --- what changes nothing ---------------------------------------------------------------------


def locations(plan: Order, steps: range) -> list[Location]:
    return [where for step in steps for where in rows(plan, step)]


@pytest.mark.parametrize("name", ["aaa", "m", "zzz", "empty"])
def test_a_cell_of_weight_zero_changes_nothing(name):
    more = [dataclasses.replace(part, weights=((name, 0.0), *part.weights)) for part in CHANGES]
    expected = locations(build(*CHANGES), range(60))
    assert locations(build(*more), range(60)) == expected
    assert locations(build(*more, units={**CELLS, name: 5}), range(60)) == expected


def test_scale_and_order_of_weights_change_nothing():
    more = [
        dataclasses.replace(
            part, weights=tuple((cell, weight * 4) for cell, weight in reversed(part.weights))
        )
        for part in CHANGES
    ]
    assert locations(build(*more), range(60)) == locations(build(*CHANGES), range(60))


def test_a_phase_that_changes_nothing_changes_nothing():
    split = build(phase(0, 12, 4), phase(6, 12, 4), phase(30, 12, 4))
    assert locations(split, range(60)) == locations(build(phase(0, 12, 4)), range(60))


def test_one_row_is_located_as_the_whole_step_is():
    plan = build(*CHANGES)
    for step in (0, 19, 29, 31):
        batch = plan.phase(step).batch_sequences
        assert [plan.locate(step, row) for row in range(batch)] == rows(plan, step)


def test_steps_can_be_asked_in_any_order():
    forward = [build(*CHANGES).locate_step(step) for step in range(60)]
    for step in reversed(range(60)):
        found = build(*CHANGES).locate_step(step)
        for one, other in zip(found, forward[step], strict=True):
            assert np.array_equal(one, other)


def test_seed_and_cell_name_decide_the_visit_and_every_epoch_has_its_own():
    def visits(seed: int, name: str) -> list[list[int]]:
        plan = build(phase(0, 11, 24, ((name, 1.0),)), seed=seed, units={name: 11})
        return [[where.unit for where in rows(plan, epoch)] for epoch in range(3)]

    found = visits(7, "web") + visits(8, "web") + visits(7, "code")
    assert all(sorted(epoch) == list(range(11)) for epoch in found)
    assert len({tuple(epoch) for epoch in found}) == 9


# --- far steps --------------------------------------------------------------------------------


def test_step_one_million_takes_constant_time():
    plan = build(*CHANGES, table_lanes=4096)
    plan.locate_step(40)
    order._table.cache_clear()
    started = time.perf_counter()
    found = plan.locate_step(1_000_000)
    consumed = plan.consumed(1_000_000)
    assert time.perf_counter() - started < 0.5
    assert len(found.cell) == 12
    lanes = 2_000_000 - 12 * ((1_000_000 - 30) % 6 > 0)
    assert abs(sum(consumed.values()) - lanes) < 24


def test_locations_are_golden():
    plan = build(*CHANGES)
    assert [tuple(plan.locate(step, 1)) for step in (0, 5, 17, 18, 24, 28, 29, 1_000_000)] == [
        ("code", 0, 0, 0),
        ("code", 0, 0, 5),
        ("web", 1, 6, 5),
        ("web", 1, 0, 0),
        ("law", 4, 1, 2),
        ("web", 1, 8, 2),
        ("web", 2, 10, 0),
        ("web", 83915, 2, 4),
    ]
    assert plan.consumed(1_000_000) == {"code": 615383, "law": 461544, "web": 923077, "empty": 0}


# --- plans that do not fit --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([], "there is no phase"),
        ([phase(6, 12, 4)], "the first phase starts at 6; set it to 0"),
        ([phase(0, 12, 4), phase(0, 12, 4)], "starts at step 0, not after the one before it at 0"),
        ([phase(0, 12, 4), phase(8, 8, 6)], "at step 8: .* the nearest steps are 6 and 12"),
        ([phase(0, 12, 4), phase(5, 12, 4, MIX_B)], "at step 5: .* the nearest steps are 6$"),
        (
            [phase(0, 12, 4), phase(6, 8, 6), phase(11, 8, 6, MIX_B)],
            "at step 11: .* the nearest steps are 10 and 14",
        ),
        (
            [phase(0, 12, 4), phase(6, 12, 8)],
            "step 6 has 12 x 8 tokens a step, not 48 as before; use batch_sequences=6",
        ),
        ([phase(0, 5, 8), phase(3, 2, 24)], "use a sequence_tokens that divides 40"),
        ([phase(0, 12, 5)], "unit_tokens=24 is not divisible by sequence_tokens=5; use a divisor"),
        (
            [phase(0, 12, 4, (("empty", 1.0),))],
            "cell 'empty' has a weight but less than one unit of 24 tokens; give it more text",
        ),
        ([phase(0, 12, 4, (("webb", 1.0),))], "no cell 'webb'; the nearest is 'web'"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_with_what_would(phases, message):
    with pytest.raises(ValueError, match=message):
        build(*phases)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": ()}, "no cell has a positive weight"),
        ({"weights": (("a", 0.0),)}, "no cell has a positive weight"),
        ({"weights": (("a", -1.0),)}, "weight -1.0 of cell 'a' must be finite and not negative"),
        ({"weights": (("a", float("nan")),)}, "weight nan of cell 'a' must be finite"),
        ({"weights": (("a", 1.0), ("a", 2.0))}, "cell 'a' has two weights"),
        ({"batch_sequences": 0}, "batch_sequences=0 must be at least 1"),
        ({"sequence_tokens": -4}, "sequence_tokens=-4 must be at least 1"),
        ({"start_step": -1}, "start_step=-1 must not be negative"),
    ],
)
def test_a_phase_that_is_none_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(phase(0, 12, 4), **change)
