"""Mixtures: what is asked for is read, and nothing more often than the cap says."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from shoal.data.mix import (
    Shape,
    capped,
    lanes_within,
    mixture,
    phase_starts,
    read_weights,
    simulated,
    spread,
)
from shoal.data.order import Order, Phase
from shoal.data.settings import MixConfig

UNITS = {f"t{t:02d}-q{level}": 40 + 25 * t + 7 * level for t in range(4) for level in range(3)}
SHAPE = Shape(
    num_steps=2000, batch_sequences=8, sequence_tokens=64, unit_tokens=256, table_lanes=128
)
POSITIVE = st.floats(0.01, 10)


def _order(mix, shape: Shape, units) -> Order:
    return Order(
        phases=tuple(
            Phase(
                start_step=start,
                batch_sequences=shape.batch_sequences,
                sequence_tokens=shape.sequence_tokens,
                weights=weights,
            )
            for start, weights in mix.phases
        ),
        units=units,
        unit_tokens=shape.unit_tokens,
        seed=3,
        table_lanes=shape.table_lanes,
    )


@st.composite
def problems(draw):
    """Wanted shares of two phases, their lanes, and limits that need not be enough."""
    cells = draw(st.integers(1, 7))
    weight = st.one_of(st.just(0.0), POSITIVE)
    rows = [draw(st.lists(weight, min_size=cells, max_size=cells)) for _ in range(2)]
    wanted = np.array([row if any(row) else [1.0] * cells for row in rows])
    lanes = np.array([draw(st.floats(1, 100)), draw(st.floats(1, 100))])
    limit = st.one_of(st.just(0.0), st.floats(0.01, 80))
    limits = np.array(draw(st.lists(limit, min_size=cells, max_size=cells)))
    return wanted, lanes, limits


def _can_be_met(wanted, lanes, limits) -> bool:
    """An oracle: is there any x >= 0 on the support with these sums."""
    phases, cells = wanted.shape
    equal = np.kron(np.eye(phases), np.ones(cells))
    below = np.hstack([np.eye(cells)] * phases)
    bounds = [(0, None if w > 0 else 0) for w in wanted.ravel()]
    found = linprog(
        np.zeros(phases * cells), A_ub=below, b_ub=limits, A_eq=equal, b_eq=lanes, bounds=bounds
    )
    return found.status == 0


@settings(max_examples=300, deadline=None)
@given(problems())
def test_shares_are_the_closest_ones_under_the_limits_or_there_are_none(problem):
    wanted, lanes, limits = problem
    room = min(
        limits[wanted[0] > 0].sum() - lanes[0],
        limits[wanted[1] > 0].sum() - lanes[1],
        limits[wanted.any(0)].sum() - lanes.sum(),
    )
    if abs(room) < 1e-6 * lanes.sum():
        return  # on the edge itself the oracle's own tolerance decides
    if not _can_be_met(wanted, lanes, limits):
        with pytest.raises(ValueError, match="raise max_epochs"):
            capped(wanted, lanes, limits)
        return
    shares = capped(wanted, lanes, limits)
    read = lanes @ shares
    assert np.allclose(shares.sum(1), 1, rtol=0, atol=1e-12)
    assert (shares[wanted == 0] == 0).all()
    assert (read <= limits * (1 + 1e-7) + 1e-9).all()
    # Optimal: x = phase factor x cell factor x wanted, the cell's below 1 only at its limit.
    full = read >= limits * (1 - 1e-6)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = shares / wanted
    for phase in range(2):
        free = factor[phase, ~full & (wanted[phase] > 0)]
        assert free.size == 0 or np.ptp(free) <= 1e-6 * free.max()
    open_cells = [(~full & (wanted[p] > 0)).any() for p in range(2)]
    if all(open_cells):
        top = np.array([factor[p, ~full & (wanted[p] > 0)].max() for p in range(2)])
        for cell in np.flatnonzero(full & (wanted > 0).all(0)):
            ratio = factor[:, cell] / top
            assert ratio[0] == pytest.approx(ratio[1], rel=1e-5)
            assert ratio[0] <= 1 + 1e-6


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), min_size=1, max_size=8))
def test_one_phase_is_filled_with_water(cells):
    wanted = [Fraction(weight) for weight, _ in cells]
    limits = [Fraction(limit) for _, limit in cells]
    lanes = sum(limits) * Fraction(3, 4)
    held = [Fraction(0)] * len(cells)
    open_cells, left = list(range(len(cells))), lanes
    while open_cells:
        mass = sum(wanted[c] for c in open_cells)
        full = [c for c in open_cells if left * wanted[c] / mass >= limits[c]]
        for c in full or open_cells:
            held[c] = limits[c] if full else left * wanted[c] / mass
        left = lanes - sum(held[c] for c in range(len(cells)) if c not in open_cells or c in full)
        open_cells = [c for c in open_cells if c not in full] if full else []
    found = capped(
        np.array([[float(w) for w in wanted]]),
        np.array([float(lanes)]),
        np.array([float(limit) for limit in limits]),
    )
    assert found[0] * float(lanes) == pytest.approx([float(one) for one in held], rel=1e-7)


def test_without_limits_the_wanted_shares_stay():
    wanted = np.array([[1.0, 3.0, 0.0], [2.0, 0.0, 2.0]])
    found = capped(wanted, np.array([80.0, 20.0]), np.full(3, np.inf))
    assert found == pytest.approx(wanted / 4)


def test_limits_that_are_met_exactly_fill_every_cell():
    found = capped(np.array([[1.0, 9.0], [5.0, 5.0]]), np.array([6.0, 4.0]), np.array([7.0, 3.0]))
    assert np.array([6.0, 4.0]) @ found == pytest.approx([7.0, 3.0])


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from([16, 64, 1024]))
def test_whole_lanes_are_near_the_shares_and_keep_the_limits(problem, table_lanes):
    wanted, lanes, limits = problem
    lanes = np.ceil(lanes) * table_lanes
    wanted = wanted + (wanted.sum(0) > 0) * 0.1
    limits = limits + lanes.sum() / (wanted > 0).any(0).sum() * 1.5
    shares = capped(wanted, lanes, limits)
    counts = lanes_within(shares, lanes, limits, table_lanes)
    assert (counts.sum(1) == table_lanes).all()
    assert (counts[shares == 0] == 0).all()
    assert (lanes / table_lanes @ counts <= limits * (1 + 1e-8)).all()
    assert (counts >= np.floor(shares * table_lanes)).all()


def test_lanes_that_fit_no_cell_are_refused():
    shares = np.array([[0.5, 0.5]])
    with pytest.raises(ValueError, match="raise table_lanes or max_epochs"):
        lanes_within(shares, np.array([3.0]), np.array([1.5, 1.5]), 3)


@pytest.mark.parametrize("rule", ["natural", "heuristic"])
@pytest.mark.parametrize("max_epochs", [8.0, 5.0])
def test_the_order_reads_what_the_mixture_says(rule, max_epochs):
    config = MixConfig(rule=rule, max_epochs=max_epochs)
    mix = mixture(config, UNITS, SHAPE)
    order = _order(mix, SHAPE, UNITS)
    (_, _), (boundary, _) = mix.phases
    assert boundary % SHAPE.table_steps == 0
    whole = boundary + (SHAPE.num_steps - boundary) // SHAPE.table_steps * SHAPE.table_steps
    first = order.consumed_tokens(boundary)
    last = order.consumed_tokens(whole)
    share = (SHAPE.num_steps - boundary) / (whole - boundary)
    for cell, (pretrain, cooldown) in mix.epochs.items():
        size = UNITS[cell] * SHAPE.unit_tokens
        assert first[cell] / size == pytest.approx(pretrain)
        assert (last[cell] - first[cell]) / size * share == pytest.approx(cooldown)
        assert pretrain + cooldown <= max_epochs * (1 + 1e-8)
    read = sum(UNITS[cell] * sum(epochs) for cell, epochs in mix.epochs.items())
    assert read == pytest.approx(SHAPE.lanes(SHAPE.num_steps))


def test_the_cooldown_reads_better_text_than_the_phase_before():
    config = MixConfig(rule="heuristic", max_epochs=0)
    mix = mixture(config, UNITS, SHAPE)
    shares = [dict(weights) for _, weights in mix.phases]
    for topic in range(4):
        worst, best = f"t{topic:02d}-q0", f"t{topic:02d}-q2"
        before = shares[0][best] / shares[0][worst]
        assert shares[1][best] / shares[1][worst] > 2 * before > 2
    assert mix.capped == ()


def test_a_cap_holds_the_cells_that_would_break_it_and_says_which():
    table = tuple((cell, 1.0, 9.0 if cell == "t00-q2" else 1.0) for cell in UNITS)
    free = mixture(MixConfig(rule="table", table=table, max_epochs=0), UNITS, SHAPE)
    over = {cell for cell, epochs in free.epochs.items() if sum(epochs) > 6}
    held = mixture(MixConfig(rule="table", table=table, max_epochs=6), UNITS, SHAPE)
    assert "t00-q2" in over
    assert over <= set(held.capped)
    assert max(sum(epochs) for epochs in held.epochs.values()) <= 6 * (1 + 1e-8)
    facts = json.loads(json.dumps(held.facts()))
    assert facts["cells"]["t00-q2"]["capped"]
    assert [sum(cell["shares"][p] for cell in facts["cells"].values()) for p in (0, 1)] == (
        pytest.approx([1, 1])
    )


def test_a_run_that_needs_more_than_the_cells_allow_is_refused():
    with pytest.raises(ValueError, match="raise max_epochs, shorten the run"):
        mixture(MixConfig(max_epochs=1), UNITS, SHAPE)


def test_cells_too_small_to_be_read_are_left_out_and_named():
    units = {**UNITS, "empty": 0, "crumb": 1}
    table = (*((cell, 1.0, 1.0) for cell in UNITS), ("crumb", 1e-4, 1e-4), ("empty", 1.0, 1.0))
    mix = mixture(MixConfig(rule="table", table=table[:-3], max_epochs=0), units, SHAPE)
    assert mix.left_out == {
        "empty": "holds less than one unit",
        "crumb": "its weight is 0",
        "t03-q2": "its weight is 0",
    }
    mix = mixture(MixConfig(rule="table", table=table, max_epochs=0), units, SHAPE)
    assert mix.left_out["crumb"] == "its share is below half a lane"
    _order(mix, SHAPE, units)


def test_a_table_that_names_another_corpus_is_refused():
    config = MixConfig(rule="table", table=(("t99-q0", 1.0, 1.0),))
    with pytest.raises(ValueError, match=r"the corpus lacks, such as 't99-q0'; it has t00-q0"):
        mixture(config, UNITS, SHAPE)


@given(
    st.integers(2, 3000),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([4, 8, 24]),
    st.floats(0.05, 0.9),
)
def test_a_cooldown_starts_between_windows_near_its_share(steps, parts, batch, share):
    shape = Shape(
        num_steps=steps,
        batch_sequences=batch,
        sequence_tokens=256 // parts,
        unit_tokens=256,
        table_lanes=64,
    )
    if steps <= parts:
        with pytest.raises(ValueError, match="use more steps, or cooldown_share=0"):
            phase_starts(share, shape)
        return
    zero, start = phase_starts(share, shape)
    assert zero == 0 < start < steps
    assert start % shape.window_steps == 0
    target = (1 - share) * steps
    allowed = max(0.02 * steps, shape.window_steps)
    assert abs(start - target) <= allowed
    tables = [n * shape.table_steps for n in range(1, -(-steps // shape.table_steps))]
    if any(abs(n - target) <= 0.02 * steps for n in tables):
        assert start in tables


def test_no_cooldown_is_one_phase():
    mix = mixture(MixConfig(cooldown_share=0, max_epochs=0), UNITS, SHAPE)
    assert [start for start, _ in mix.phases] == [0]
    assert all(len(epochs) == 1 for epochs in mix.epochs.values())


def test_a_simulated_run_repeats_cells_as_the_target_does():
    tokens = {"a": 1000 * 256 + 9, "b": 37 * 256, "c": 3 * 256, "d": 255}
    limits = simulated(tokens, 10_000, 100_000, 256)
    assert limits == {"a": 100 * 256, "b": 3 * 256, "c": 256, "d": 0}
    for cell in ("a", "b"):
        small, large = 10_000 / limits[cell], 100_000 / tokens[cell]
        assert large * 0.999 <= small <= large * 4 / 3
    assert simulated(tokens, 7, 7, 256)["a"] == 1000 * 256
    with pytest.raises(ValueError, match="at least as long"):
        simulated(tokens, 8, 7, 256)


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_kept_units_are_distinct_and_even(kept, more):
    units = kept + more
    found = spread(kept, units)
    assert len(set(found.tolist())) == kept
    assert all(0 <= one < units for one in found)
    gaps = np.diff([*found.tolist(), units])
    assert kept == 0 or np.ptp(gaps) <= 1


def test_weights_are_read_from_csv_and_json(tmp_path: Path):
    table = (("a", 1.0, 2.5), ("b", 0.0, 4.0))
    (tmp_path / "w.csv").write_text("cell,pretrain,cooldown\nb,0,4\na,1,2.5\n")
    assert read_weights(tmp_path / "w.csv") == table
    tree = {"a": {"pretrain": 1, "cooldown": 2.5}, "b": {"pretrain": 0, "cooldown": 4}}
    (tmp_path / "w.json").write_text(json.dumps(tree))
    assert read_weights(tmp_path / "w.json") == table
    (tmp_path / "one.json").write_text('{"a": 3}')
    assert read_weights(tmp_path / "one.json") == (("a", 3.0, 3.0),)
    (tmp_path / "one.csv").write_text("cell,pretrain\na,3\n")
    assert read_weights(tmp_path / "one.csv") == (("a", 3.0, 3.0),)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("w.csv", "name,weight\na,1\n", "lacks the column 'cell'"),
        ("w.csv", "cell,pretrain,cooldown\na,1,x\n", "cell 'a' has weights"),
        ("w.csv", "cell,pretrain,cooldown\na,1,-1\n", "use 0 or more"),
        ("w.csv", "cell,pretrain,cooldown\na,1,nan\n", "use 0 or more"),
        ("w.csv", "cell,pretrain,cooldown\na,1,1\na,2,2\n", "has two rows"),
        ("w.csv", "cell,pretrain,cooldown\n", "has no row"),
        ("w.json", "{", "no JSON"),
        ("w.json", "[1]", "has no row"),
        ("w.json", '{"a": {"pretrain": 1}}', "cell 'a' has weights"),
    ],
)
def test_a_bad_table_says_what_is_wrong(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / name)


def test_settings_that_contradict_are_refused():
    with pytest.raises(ValueError, match="give a table with rule 'table'"):
        MixConfig(rule="table")
    with pytest.raises(ValueError, match="use a share below 1"):
        MixConfig(cooldown_share=1.0)
