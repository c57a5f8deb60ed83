"""The published rules against the printed ladder, and the shape of the schedule."""

import json
import math
from importlib import resources

import pytest

from shoal.optim import law
from shoal.optim.config import OptimizerConfig

RUNGS = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())["rungs"]
DIGITS = {"muon_lr": 4, "adam_lr": 4, "eps": 3, "beta2": 4}


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize("key", DIGITS)
def test_law_gives_every_published_number_to_its_printed_digits(name, key):
    row = RUNGS[name]
    found = law.rates(
        OptimizerConfig(),
        num_steps=row["steps"],
        tokens_per_step=row["batch_sequences"] * row["sequence_tokens"],
        embed_dim=row["embed_dim"],
    )
    assert float(f"{getattr(found, key):.{DIGITS[key]}g}") == row[key]


def test_muon_rate_equals_its_form_in_sequences_of_8192():
    tokens, width, batch = 18_005_144_633_344, 6144, 5632
    other = 34.35 * tokens**-0.3461 * width**-0.3448 * math.sqrt(batch)
    found = law.muon_lr(tokens=tokens, embed_dim=width, tokens_per_step=batch * 8192)
    assert found == pytest.approx(other, rel=3e-4)


def test_both_rates_are_capped_and_reach_the_cap_separately():
    size = {"embed_dim": 256, "tokens_per_step": 8192}
    tiny = 300_000
    assert law.muon_lr(tokens=tiny, **size) == 0.05
    assert law.adam_lr(tokens=tiny, **size) < 0.05
    assert law.adam_lr(tokens=1, **size) == 0.05


@pytest.mark.parametrize(
    ("tokens_per_step", "expected"),
    [(1, 0.9999), (131_072, 0.999), (4_194_304, 0.999**32), (46_137_344, 0.95)],
)
def test_beta2_remembers_a_number_of_tokens_within_its_bounds(tokens_per_step, expected):
    assert law.beta2(tokens_per_step) == pytest.approx(expected, rel=1e-12)


def test_a_number_that_the_config_states_is_taken_as_it_is():
    stated = OptimizerConfig(muon_lr=0.5, adam_lr=0.25, adam_beta2=0.125, adam_eps=1e-3)
    found = law.rates(stated, num_steps=10, tokens_per_step=10, embed_dim=10)
    assert found == law.Rates(muon_lr=0.5, adam_lr=0.25, beta2=0.125, eps=1e-3)


def test_schedule_is_two_straight_lines_from_zero_over_the_peak_to_a_twentieth():
    config, num_steps = OptimizerConfig(), 390_251
    assert law.num_warmup_steps(config, num_steps) == 3902
    assert law.schedule_fraction(0, config, num_steps) == 0.0
    assert law.schedule_fraction(1951, config, num_steps) == 0.5
    assert law.schedule_fraction(3902, config, num_steps) == 1.0
    assert law.schedule_fraction(num_steps, config, num_steps) == pytest.approx(0.05, abs=1e-15)
    assert law.schedule_fraction(num_steps + 9, config, num_steps) == pytest.approx(0.05, abs=1e-15)
    middle = (3902 + num_steps) / 2
    around = [law.schedule_fraction(int(middle + side), config, num_steps) for side in (-0.5, 0.5)]
    assert sum(around) / 2 == pytest.approx((1.0 + 0.05) / 2, abs=1e-9)


@pytest.mark.parametrize("config", [OptimizerConfig(), OptimizerConfig(warmup_fraction=0.0)])
def test_a_run_too_short_to_warm_up_starts_at_the_peak(config):
    assert [law.schedule_fraction(step, config, 4) for step in range(5)] == pytest.approx(
        [1.0, 0.7625, 0.525, 0.2875, 0.05]
    )


def test_decay_begins_at_its_step_and_ends_at_zero():
    config, num_steps = OptimizerConfig(decay=0.02, decay_from_step=58_014), 390_251
    assert law.decay_coefficient(58_013, config, num_steps) == 0.0
    assert law.decay_coefficient(58_014, config, num_steps) == pytest.approx(0.01703, abs=5e-6)
    assert law.decay_coefficient(num_steps, config, num_steps) == 0.0
