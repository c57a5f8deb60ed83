"""What a config implies, against the published ladder."""

import json
from importlib import resources

import pytest

from shoal.core.config import replace
from shoal.jobs.resolve import recipes
from shoal.train.derive import derive, peak_rates

RUNGS = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())["rungs"]
# derived name -> published name and printed digits
PRINTED = {
    "steps": ("steps", 9),
    "muon_lr": ("muon_lr", 4),
    "adam_lr": ("adam_lr", 4),
    "beta2": ("beta2", 4),
    "eps": ("eps", 3),
    "active": ("active_parameters", 15),
    "published_total": ("published_total_parameters", 15),
    "flops": ("flops", 2),
    "flops_published": ("flops", 2),
    "flops_published_without_head": ("flops_without_head", 4),
}


@pytest.mark.parametrize("name", RUNGS)
def test_a_published_recipe_derives_every_printed_number(name):
    derived = derive(recipes()[name]())
    for key, (printed, digits) in PRINTED.items():
        assert float(f"{derived[key]:.{digits - 1}e}") == RUNGS[name][printed], key


def test_tokens_are_steps_times_batch_times_sequence():
    derived = derive(recipes()["flagship"]())
    assert derived["tokens_per_step"] == 46_137_344
    assert derived["tokens"] == 18_005_144_633_344
    assert derived["warmup_steps"] == 3902
    assert derived["flops"] == float(derived["flops_per_token"]) * derived["tokens"]


def test_a_stated_rate_replaces_the_law():
    config = replace(recipes()["d768"](), "optimizer.muon_lr", 0.001)
    assert peak_rates(config).muon_lr == derive(config)["muon_lr"] == 0.001
    assert derive(config)["adam_lr"] == derive(recipes()["d768"]())["adam_lr"]
