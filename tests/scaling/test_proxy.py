"""Mixing laws: a known law is found again, its optimum is chosen, noise is reported as it is."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.scaling.proxy import (
    PENALTIES,
    Proxy,
    _ridge,
    choose,
    compare,
    designs,
    fit,
    run_proxies,
)

CELLS = tuple(f"t{number:02d}-q0" for number in range(7))
NATURAL = dict(zip(CELLS, (30.0, 22.0, 16.0, 12.0, 9.0, 7.0, 4.0), strict=True))
RNG = np.random.default_rng(5)
FLOORS = {"web": 0.7, "code": 0.4, "maths": 0.55}
SLOPES = {name: RNG.normal(scale=0.8, size=len(CELLS)) for name in FLOORS}


def law(mix, *, noise: float = 0.0, seed: int = 0) -> dict[str, float]:
    """Bits per byte that a known law gives, with noise that the mix and seed decide."""
    row = np.array([mix[cell] for cell in CELLS])
    key = [seed, *(int(part * 2**40) for part in row)]
    drawn = np.random.default_rng(key).normal(size=len(FLOORS)) * noise
    return {
        name: FLOORS[name] + 0.5 * float(np.exp(row @ SLOPES[name])) + drawn[place]
        for place, name in enumerate(FLOORS)
    }


def proxies(number: int, noise: float = 0.0) -> list[Proxy]:
    mixes = designs(NATURAL, number, seed=1)
    return [Proxy(mix=mix, seed=0, metrics=law(mix, noise=noise)) for mix in mixes]


def mean_of(metrics) -> float:
    return float(np.mean(list(metrics.values())))


def divergence(mix) -> float:
    total = sum(NATURAL.values())
    return sum(w * np.log(w * total / NATURAL[cell]) for cell, w in mix.items() if w > 0)


def best_of_many(max_divergence: float, max_shares=None) -> float:
    """An oracle: the law's least mean among mixes drawn within the bounds, then improved."""
    rng = np.random.default_rng(0)
    base = np.array(list(NATURAL.values())) / sum(NATURAL.values())
    caps = np.array([(max_shares or {}).get(cell, 1.0) for cell in CELLS])
    best, found = np.inf, base
    for step in range(300):
        scale = 1.0 if step < 20 else 0.3 if step < 90 else 0.03 if step < 200 else 0.004
        drawn = found * np.exp(rng.normal(scale=scale, size=(200, len(CELLS))))
        drawn /= drawn.sum(1, keepdims=True)
        far = (drawn * np.log(drawn / base)).sum(1) > max_divergence
        drawn = drawn[~(far | (drawn > caps).any(1))]
        values = np.mean([FLOORS[n] + 0.5 * np.exp(drawn @ SLOPES[n]) for n in FLOORS], axis=0)
        if len(values) and values.min() < best:
            best, found = values.min(), drawn[values.argmin()]
    return float(best)


def test_a_known_law_is_found_again():
    regression = fit(proxies(36))
    for mix in designs(NATURAL, 60, seed=99)[1:]:
        predicted, true = regression.predict(mix), law(mix)
        for name in FLOORS:
            assert predicted[name] == pytest.approx(true[name], rel=0.004)
    for error in regression.errors.values():
        assert error["law"] == "log-linear"
        assert error["ratio"] < 0.05


def test_a_straight_line_is_fitted_by_a_straight_line():
    slopes = RNG.normal(size=len(CELLS))
    found = [
        Proxy(mix=mix, seed=0, metrics={"one": 2 + float(np.array(list(mix.values())) @ slopes)})
        for mix in designs(NATURAL, 40, seed=2)
    ]
    regression = fit(found)
    assert regression.errors["one"]["law"] == "linear"
    assert regression.errors["one"]["ratio"] < 1e-3


@pytest.mark.parametrize("max_shares", [None, {"t01-q0": 0.25, "t04-q0": 0.1, "t06-q0": 0.06}])
def test_the_chosen_mix_is_the_laws_optimum_within_the_bounds(max_shares):
    regression = fit(proxies(40))
    choice = choose(regression, NATURAL, max_divergence=0.3, max_shares=max_shares)
    assert sum(choice.mix.values()) == pytest.approx(1)
    assert divergence(choice.mix) == pytest.approx(choice.divergence)
    assert choice.divergence <= 0.3 + 1e-9
    for cell, cap in (max_shares or {}).items():
        assert choice.mix[cell] <= cap * (1 + 1e-9)
    natural, best = mean_of(law(_normal(NATURAL))), best_of_many(0.3, max_shares)
    reached = mean_of(law(choice.mix))
    assert best < natural - 0.01
    assert natural - reached >= 0.98 * (natural - best)


def _normal(weights):
    total = sum(weights.values())
    return {cell: weight / total for cell, weight in weights.items()}


def test_noise_is_reported_and_does_not_undo_the_gain():
    noise = 0.01
    regression = fit(proxies(44, noise))
    for error in regression.errors.values():
        assert noise * 0.6 < error["left_out"] < noise * 2
        assert error["ratio"] < 0.5
    choice = choose(regression, NATURAL, max_divergence=0.3)
    natural, best = mean_of(law(_normal(NATURAL))), best_of_many(0.3)
    assert natural - mean_of(law(choice.mix)) >= 0.85 * (natural - best)


def test_metrics_that_do_not_depend_on_the_mix_are_predicted_no_better_than_by_their_mean():
    mixes = designs(NATURAL, 40, seed=3)
    rng = np.random.default_rng(0)
    found = [Proxy(mix=mix, seed=0, metrics={"one": 1 + 0.1 * rng.normal()}) for mix in mixes]
    assert 0.9 < fit(found).errors["one"]["ratio"] < 1.4


def test_the_left_out_error_is_that_of_fits_without_the_proxy():
    found = [
        Proxy(mix=one.mix, seed=0, metrics={"web": one.metrics["web"]}) for one in proxies(9, 0.02)
    ]
    wrong = []
    for place, one in enumerate(found):
        rest = fit(found[:place] + found[place + 1 :], allow_few=True)
        wrong.append(rest.predict(one.mix)["web"] - one.metrics["web"])
    expected = float(np.sqrt(np.mean(np.square(wrong))))
    assert fit(found, allow_few=True).errors["web"]["left_out"] == pytest.approx(expected)


@pytest.mark.parametrize("floor", [None, 0.3])
def test_the_quick_left_out_errors_are_those_of_refitting(floor):
    found = proxies(12, 0.02)
    mixes = np.array([list(one.mix.values()) for one in found])
    losses = np.array([one.metrics["web"] for one in found])
    gap = np.ones(12) if floor is None else losses - floor
    target = losses if floor is None else np.log(gap)
    weights = gap**2 / np.mean(gap**2)
    center = weights @ mixes / weights.sum()
    size = np.linalg.norm(np.sqrt(weights)[:, None] * (mixes - center), 2) ** 2
    wrong = []
    for penalty in PENALTIES * size:
        total = 0.0
        for out in range(12):
            rest = np.arange(12) != out
            rows = np.column_stack([np.ones(11), mixes[rest]])
            bend = rows.T @ (weights[rest, None] * rows) + penalty * np.diag([0.0, *[1.0] * 7])
            line = np.linalg.solve(bend, rows.T @ (weights[rest] * target[rest]))
            guess = line[0] + mixes[out] @ line[1:]
            total += ((guess if floor is None else floor + np.exp(guess)) - losses[out]) ** 2
        wrong.append(total)
    assert _ridge(mixes, losses, floor)[0] == pytest.approx(min(wrong), rel=1e-4)


def test_too_few_proxies_or_cells_are_refused_unless_told():
    with pytest.raises(ValueError, match="23 proxies over 7 cells"):
        fit(proxies(23))
    assert fit(proxies(23), allow_few=True).cells == CELLS
    few = {cell: NATURAL[cell] for cell in CELLS[:5]}
    mixes = designs(few, 30, seed=1)
    with pytest.raises(ValueError, match="30 proxies over 5 cells"):
        fit([Proxy(mix=mix, seed=0, metrics={"one": 1.0}) for mix in mixes])


def test_proxies_that_were_not_all_scored_alike_are_refused():
    found = proxies(24)
    found[7] = Proxy(mix=found[7].mix, seed=0, metrics={"web": 1.0})
    with pytest.raises(ValueError, match=r"proxy 7 differs in the evaluation set 'code'"):
        fit(found)
    found[7] = Proxy(mix=found[7].mix, seed=0, metrics={**law(found[7].mix), "web": float("nan")})
    with pytest.raises(ValueError, match="proxy 7 scored nan on 'web'"):
        fit(found)


def test_bounds_that_no_mix_keeps_are_refused():
    regression = fit(proxies(24))
    with pytest.raises(ValueError, match=r"max_shares allow 0.7 of a whole mix"):
        choose(regression, NATURAL, max_divergence=1, max_shares=dict.fromkeys(CELLS, 0.1))
    with pytest.raises(ValueError, match="from the natural mix already"):
        choose(regression, NATURAL, max_divergence=1e-4, max_shares={CELLS[0]: 0.01})


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 12))
def test_designs_are_mixes_that_a_longer_list_begins_with(seed: int, number: int):
    caps = {CELLS[0]: 0.4, CELLS[6]: 0.1}
    short = designs(NATURAL, number, seed=seed, max_shares=caps)
    assert short == designs(NATURAL, number + 3, seed=seed, max_shares=caps)[:number]
    for mix in short:
        assert sum(mix.values()) == pytest.approx(1)
        assert all(mix[cell] <= cap * (1 + 1e-9) for cell, cap in caps.items())
    assert short[0] == pytest.approx(_normal(NATURAL))


def test_designs_go_from_near_the_natural_mix_to_far_from_it():
    found = [divergence(mix) for mix in designs(NATURAL, 60, seed=0)[1:]]
    assert min(found) < 0.15
    assert max(found) > 0.6


def test_a_stopped_driver_goes_on_with_what_is_missing(tmp_path: Path):
    mixes = designs(NATURAL, 6, seed=4)
    ran = []

    def run(mix, seed):
        if len(ran) == 3:
            ran.append("stopped")
            raise KeyboardInterrupt
        ran.append(seed)
        return law(mix, noise=0.1, seed=seed)

    with pytest.raises(KeyboardInterrupt):
        run_proxies(mixes, run, tmp_path, seed=9, key="a")
    found = run_proxies(mixes, run, tmp_path, seed=9, key="a")
    assert ran == [9, 9, 9, "stopped", 9, 9, 9]
    assert [one.mix for one in found] == mixes
    assert [one.metrics for one in found] == [law(mix, noise=0.1, seed=9) for mix in mixes]
    assert run_proxies(mixes, run, tmp_path, seed=9, key="a") == found
    assert len(ran) == 7
    run_proxies(mixes[:1], run, tmp_path, seed=9, key="b")
    run_proxies(mixes[:1], run, tmp_path, seed=8, key="a")
    assert len(ran) == 9


def test_a_damaged_or_useless_result_is_refused_and_named(tmp_path: Path):
    mixes = designs(NATURAL, 1, seed=4)
    with pytest.raises(ValueError, match="proxy 0 scored inf on 'one'"):
        run_proxies(mixes, lambda mix, seed: {"one": float("inf")}, tmp_path, seed=0, key="a")
    assert list(tmp_path.iterdir()) == []
    run_proxies(mixes, lambda mix, seed: {"one": 1.0}, tmp_path, seed=0, key="a")
    (path,) = tmp_path.iterdir()
    content = json.loads(path.read_text())
    for damage in ("", "[]", json.dumps({**content, "seed": 5})):
        path.write_text(damage)
        with pytest.raises(ValueError, match=r"0000-.*json is damaged .*; delete it"):
            run_proxies(mixes, lambda mix, seed: {"one": 1.0}, tmp_path, seed=0, key="a")


def test_seeds_are_compared_in_pairs():
    natural = [{"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 2.5}, {"a": 0.5, "b": 1.5}]
    gains = (0.09, 0.1, 0.11)
    chosen = [
        {"a": one["a"] - gain, "b": one["b"] + 0.2 * (place - 1)}
        for place, (one, gain) in enumerate(zip(natural, gains, strict=True))
    ]
    found = compare(chosen, natural)
    assert found["a"]["differences"] == pytest.approx([-0.09, -0.1, -0.11])
    assert found["a"]["mean"] == pytest.approx(-0.1)
    assert found["a"]["spread"] == pytest.approx(0.01)
    assert found["a"]["margin"] == pytest.approx(4.303 * 0.01 / 3**0.5)
    assert found["a"]["better"]
    assert found["b"]["mean"] == pytest.approx(0, abs=1e-12)
    assert not found["b"]["better"]
    assert found["mean"]["differences"] == pytest.approx([-0.145, -0.05, 0.045])
    assert not found["mean"]["better"]
    with pytest.raises(ValueError, match="at least two seeds"):
        compare(chosen[:1], natural[:1])
