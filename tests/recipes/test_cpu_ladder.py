"""The CPU ladder and its plain alternatives: sizes that compare, every number with its origin."""

import dataclasses

import pytest

from shoal.jobs.resolve import resolve_ladder
from shoal.model.count import num_active
from shoal.recipes import cpu_ablation
from shoal.recipes.cpu_ladder import WIDTHS
from shoal.scaling.ladder import compute_flops, rung_config
from shoal.train.notes import unknown_notes, without_origin

ALTERNATIVES = ("cpu-global", "cpu-wide", "cpu-adamw", "cpu-no-z")
LADDERS = ("cpu-ladder", *ALTERNATIVES)


def configs(name):
    ladder = resolve_ladder(name)
    return [*(rung_config(ladder, width) for width in ladder.widths), ladder.target]


@pytest.mark.parametrize("name", LADDERS)
def test_every_number_has_an_origin(name):
    for config in configs(name):
        assert without_origin(config) == []
        assert unknown_notes(config) == []


def test_the_rungs_span_a_factor_of_thirty_and_the_target_is_eight_times_beyond():
    ladder = resolve_ladder("cpu-ladder")
    flops = [compute_flops(ladder, config) for config in configs("cpu-ladder")]
    assert len(ladder.widths) == 4
    assert flops[-2] / flops[0] >= 30
    assert flops[-1] / flops[-2] >= 8
    assert ladder.seeds == {WIDTHS[0]: 3, WIDTHS[1]: 3}
    for config in configs("cpu-ladder"):
        assert 19 <= config.train.tokens / num_active(config.model) <= 40


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_an_alternative_differs_in_its_choice_alone(name):
    for plain, tried in zip(configs("cpu-ladder"), configs(name), strict=True):
        same = ("data", "train", "eval", "moe", "mesh")
        assert all(getattr(plain, part) == getattr(tried, part) for part in same)
        assert (plain.optimizer == tried.optimizer) == (name != "cpu-adamw")
        assert (plain.model == tried.model) == (name == "cpu-adamw")
        # Not more compute per step than the baseline but where every query sees every key.
        assert abs(num_active(tried.model) / num_active(plain.model) - 1) < 0.05


def test_the_alternatives_are_what_their_names_say():
    changed = {
        "cpu-global": {"global_every": 1, "rotary_global": True},
        "cpu-wide": {"latent_dim": None},
        "cpu-no-z": {"z_loss": 0.0},
    }
    for name, changes in changed.items():
        for plain, tried in zip(configs("cpu-ladder"), configs(name), strict=True):
            wanted = dataclasses.replace(plain.model, **changes)
            if name == "cpu-wide":
                inner = round(plain.model.embed_dim / 3)
                wanted = dataclasses.replace(wanted, expert_dim=inner)
            assert tried.model == wanted
    optimizer = configs("cpu-adamw")[0].optimizer
    assert (optimizer.matrices, optimizer.weight_decay) == ("adamw", cpu_ablation.WEIGHT_DECAY)
