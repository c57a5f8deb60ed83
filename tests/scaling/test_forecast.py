"""A forecast: the law comes out, the same bytes every time, every series, health with bands."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from scaling.ladders import made
from shoal.core.files import canonical_json
from shoal.scaling.forecast import Forecast, forecast
from shoal.scaling.interval import PARTS
from shoal.scaling.records import FRACTIONS, HEADLINE


def test_a_known_law_comes_out_over_the_whole_trajectory():
    ladder = made(asymptote=0.6, gap=2.0, alpha=0.12)
    found = forecast(ladder)
    for place, g in enumerate(FRACTIONS):
        truth = 0.6 + 2.0 * (g * 240) ** -0.12
        assert found.headline.central[place] == pytest.approx(truth, rel=1e-6)
        assert found.headline.alpha[place] == pytest.approx(0.12, rel=1e-5)
        assert found.headline.E[place] == pytest.approx(0.6, rel=1e-5)
        assert found.headline.A[place] == pytest.approx(2.0 * 1e12**0.12, rel=1e-4)
        low, high = found.headline.interval_90[place]
        inner_low, inner_high = found.headline.interval_50[place]
        assert low <= inner_low <= found.headline.central[place] <= inner_high <= high
    assert found.series["sources/owt/bpb"].central[-1] == pytest.approx(
        found.headline.central[-1] / 2, rel=1e-6
    )
    assert tuple(found.headline.parts) == PARTS


def test_the_same_ladder_gives_the_same_bytes_in_any_order():
    ladder = made(noise=0.004)
    turned = replace(ladder, runs=ladder.runs[::-1])
    first, second = (canonical_json(forecast(one).plain()) for one in (ladder, turned))
    assert first == second
    assert first != canonical_json(forecast(made(noise=0.004, seed=1)).plain())


def test_a_forecast_reads_back():
    found = forecast(made(noise=0.004))
    again = Forecast.parse(json.loads(json.dumps(found.plain(), allow_nan=False)))
    assert again == found
    broken = found.plain()
    del broken["series"][HEADLINE]["E"]
    with pytest.raises(ValueError, match=r"no forecast: .*E"):
        Forecast.parse(broken)
    with pytest.raises(ValueError, match="needs exactly"):
        Forecast.parse({"ladder": "a"})


def test_a_run_of_the_target_lies_inside_nine_times_in_ten():
    inside = 0
    for seed in range(40):
        found = forecast(made(noise=0.005, seed=seed, ends=True))
        truth = 0.6 + 2.0 * 240**-0.12 + 0.005 * np.random.default_rng(900 + seed).normal()
        low, high = found.headline.interval_90[-1]
        inside += low <= truth <= high
    assert 32 <= inside <= 40


def test_a_pin_in_units_of_the_headline_is_taken_in_proportion_by_other_series():
    found = forecast(made(noise=0.002), asymptote=0.6)
    assert set(found.headline.E) == {0.6}
    assert found.series["sources/owt/bpb"].E[-1] == pytest.approx(0.3, rel=1e-6)
    assert found.settings["asymptote"] == 0.6


def test_the_back_test_is_the_forecast_of_the_top_rung_from_the_lower_ones():
    ladder = made(noise=0.003)
    lower = replace(
        ladder,
        runs=ladder.runs[:7],
        target=replace(ladder.target, flops=ladder.runs[7].flops, tokens=ladder.runs[7].tokens),
    )
    back = forecast(ladder).headline.backtest
    assert back is not None
    assert back["rung"] == "w3"
    assert back["predicted"] == pytest.approx(forecast(lower).headline.central[-1], rel=1e-8)
    assert back["seen"] == pytest.approx(ladder.runs[7].series[HEADLINE][-1])
    assert back["error"] == pytest.approx(back["seen"] - back["predicted"], abs=1e-8)


def test_two_lower_rungs_back_test_a_pinned_law_only():
    ladder = made(flops=(1e12, 3e12, 1e13), seeds=(1, 1, 1), asymptote=0.6)
    assert forecast(ladder).headline.backtest is None
    back = forecast(ladder, asymptote=0.6).headline.backtest
    assert back is not None
    assert back["error"] == pytest.approx(0.0, abs=1e-7)


def test_a_fraction_that_too_few_rungs_have_is_left_empty():
    ladder = made(noise=0.002)
    blind = tuple(
        replace(run, series={HEADLINE: (None, *run.series[HEADLINE][1:])})
        if run.rung in ("w1", "w2")
        else run
        for run in ladder.runs
    )
    found = forecast(replace(ladder, runs=blind)).headline
    assert found.central[0] is None
    assert found.interval_90[0] is None
    assert None not in found.central[1:]


def test_too_few_rungs_are_refused():
    with pytest.raises(ValueError, match="2 rungs"):
        forecast(made(flops=(1e12, 1e13), seeds=(3, 3)))
    ladder = made(flops=(1e12, 3e12, 1e13), seeds=(1, 1, 1))
    bare = replace(ladder.runs[2], series={HEADLINE: (None,) * 20})
    with pytest.raises(ValueError, match="fewer than 3 rungs have 'sources/macro/bpb'"):
        forecast(replace(ladder, runs=(*ladder.runs[:2], bare)))


@pytest.mark.parametrize(
    "shape", ["constant", "rising", "random", "one step down", "far too steep"]
)
def test_whatever_the_rungs_say_the_numbers_are_finite_and_in_order(shape: str):
    rng = np.random.default_rng(0)
    laws = {
        "constant": lambda _: 2.0,
        "rising": lambda compute: 2 + 0.1 * math.log(compute / 1e12),
        "random": lambda _: 1 + float(rng.random()),
        "one step down": lambda compute: 3.0 if compute < 5e12 else 2.0,
        "far too steep": lambda compute: 1 + (compute / 1e12) ** -3.0,
    }
    ladder = made()
    runs = tuple(
        replace(run, series={HEADLINE: tuple(laws[shape](run.flops) for _ in FRACTIONS)})
        for run in ladder.runs
    )
    for asymptote in (None, 0.5, (0.2, 0.8)):
        found = forecast(replace(ladder, runs=runs), asymptote=asymptote)
        canonical_json(found.plain())
        one = found.headline
        for place in range(20):
            low, high = one.interval_90[place]
            inner = one.interval_50[place]
            assert 0 <= low <= inner[0] <= one.central[place] <= inner[1] <= high


def test_health_goes_on_in_a_straight_line_and_its_band_widens_with_scatter():
    ladder = made()
    found = forecast(ladder).health
    for place, g in enumerate(FRACTIONS):
        assert found["grad_norm"]["central"][place] == pytest.approx(0.5 * (g * 2.4e14) ** -0.1)
    assert found["dropped/fraction"]["central"] == [0.0] * 20
    assert found["dropped/fraction"]["high"] == [0.0] * 20
    rng = np.random.default_rng(0)
    inside, widths = 0, []
    for _ in range(200):
        runs = tuple(
            replace(
                run,
                health={
                    "grad_norm": tuple(
                        v * math.exp(0.05 * rng.normal()) for v in run.health["grad_norm"]
                    )
                },
            )
            for run in ladder.runs
        )
        band = _last(replace(ladder, runs=runs))
        truth = 0.5 * 2.4e14**-0.1 * math.exp(0.05 * rng.normal())
        inside += band[0] <= truth <= band[1]
        widths.append(math.log(band[1] / band[0]))
    assert 168 <= inside <= 192
    assert 0.15 < np.mean(widths) < 0.6


def _last(ladder) -> tuple[float, float]:
    from shoal.scaling.forecast import _health

    band = _health(ladder.runs, ladder.target)["grad_norm"]
    assert band["low"][-1] is not None
    assert band["high"][-1] is not None
    return band["low"][-1], band["high"][-1]
