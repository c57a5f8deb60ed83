"""A recipe that needs a known share of the compute is found to, and the interval holds it."""

from dataclasses import replace

import pytest

from scaling.ladders import made
from shoal.scaling.forecast import forecast
from shoal.scaling.outcome import equivalent, score
from shoal.scaling.records import HEADLINE, Ladder
from shoal.scaling.speedup import Curve, at_equal_time, compared, curve, ratio, speedup


def faster(factor: float, **kind) -> Ladder:
    """The law of `made` reached with 1 / factor of the compute."""
    return made("fast", gap=2.0 * factor**-0.12, **kind)


def ends(ladder: Ladder, over: str = "flops") -> Curve:
    found = curve(ladder.name, ladder.runs, HEADLINE, over)
    assert found is not None
    return found


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3, 2.0])
def test_a_known_factor_is_found(factor: float):
    found = compared(ends(made()), ends(faster(factor)))
    for one in [*found["at"], found["top"]]:
        assert one["speedup"] == pytest.approx(factor, rel=1e-4)
    assert [one["inside"] for one in found["at"]] == [factor >= 1, True, True, factor <= 1]


def test_the_interval_holds_the_factor_nine_times_in_ten():
    inside, sizes = 0, []
    for seed in range(40):
        base, other = made(noise=0.004, seed=seed), faster(1.3, noise=0.004, seed=500 + seed)
        low, high = speedup(ends(base), ends(other), 1e13)["interval_90"]
        inside += low <= 1.3 <= high
        sizes.append(high - low)
    assert inside >= 33
    assert max(sizes) < 0.5


def test_a_single_run_has_a_wider_interval_than_a_ladder():
    base, other = made(noise=0.004), faster(1.3, noise=0.004, seed=3)
    one = replace(other, runs=other.runs[6:7])
    whole, single = (
        speedup(ends(base), ends(ladder), 1e13)["interval_90"] for ladder in (other, one)
    )
    assert single[1] - single[0] > whole[1] - whole[0]
    with pytest.raises(ValueError, match="ask at its runs"):
        speedup(ends(base), ends(one), 2e13)
    with pytest.raises(ValueError, match="too few for a law"):
        speedup(ends(one), ends(base), 1e13)


def test_ladders_that_share_no_range_have_no_headline():
    far = made("far", flops=(1e15, 3e15, 1e16), seeds=(1, 1, 1), target=1e17)
    found = compared(ends(made()), ends(far))
    assert found["top"] is None
    assert "share no range" in found["why"]


def test_a_better_loss_per_flop_can_lose_per_hour():
    base, other = made(), faster(1.2, pace=1.5e-11)
    found = at_equal_time(ends(base, "seconds"), ends(other, "seconds"))
    assert found["seconds"] == pytest.approx(300)
    assert found["difference"] > 0
    assert found["speedup"]["speedup"] == pytest.approx(1.2 / 1.5, rel=1e-4)
    assert compared(ends(base), ends(other))["top"]["speedup"] == pytest.approx(1.2, rel=1e-4)
    low, high = found["interval_90"]
    assert low <= found["difference"] <= high


def test_two_runs_by_a_ladders_law():
    base = made(noise=0.002)
    plain, quick = made("one").runs[6:7], faster(1.4).runs[6:7]
    found = ratio(ends(base), *(Curve(name="r", runs=r, losses=_ends(r)) for r in (plain, quick)))
    assert found["ratio"]["speedup"] == pytest.approx(1.4, rel=0.05)
    low, high = found["ratio"]["interval_90"]
    assert low < 1.4 < high
    same = ratio(ends(base), *(Curve(name="r", runs=plain, losses=_ends(plain)),) * 2)
    assert same["ratio"]["speedup"] == pytest.approx(1.0)


def _ends(runs) -> tuple[float, ...]:
    return tuple(run.series[HEADLINE][-1] for run in runs)


def test_nothing_is_compared_without_values():
    assert curve("x", made(pace=None).runs, HEADLINE, "seconds") is None
    assert curve("x", made().runs, "no/such/series") is None


def test_equivalent_compute_is_the_laws():
    law = lambda compute: 0.6 + 2.0 * compute**-0.12  # noqa: E731
    assert equivalent(0.6, 0.12, law(10.0), law(37.0)) == pytest.approx(3.7)
    assert equivalent(0.6, 0.12, law(10.0), 0.6) is None
    assert equivalent(0.6, 0.0, 2.0, 1.0) is None


def test_a_seen_value_is_scored():
    series = forecast(made(noise=0.003)).headline
    low, high = series.interval_90[-1]
    inner = series.interval_50[-1]
    inside = score(series, inner[0])
    assert inside["inside_50"]
    assert inside["inside_90"]
    between = score(series, (low + inner[0]) / 2)
    assert not between["inside_50"]
    assert between["inside_90"]
    out = score(series, high + 0.01)
    assert not out["inside_90"]
    assert out["error"] > 0
    assert out["compute_equivalent"] < 1
    assert out["percent"] == pytest.approx(100 * out["error"] / series.central[-1])
