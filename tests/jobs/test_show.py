"""`shoal show`: complete, readable, and instant."""

import json
import subprocess
import sys

import pytest

from shoal.core.config import fingerprint, from_plain, leaves
from shoal.jobs.resolve import recipes, resolve
from shoal.jobs.show import render, show
from shoal.train.config import Config

DERIVED = {"muon_lr", "adam_lr", "beta2", "eps", "steps", "tokens_per_step", "tokens", "flops"}


@pytest.mark.parametrize("name", ["flagship", "d512"])
def test_show_returns_json_from_which_the_config_can_be_rebuilt(name):
    result = json.loads(json.dumps(show(name), allow_nan=False))
    assert result["derived"].keys() >= DERIVED
    rebuilt = from_plain(Config, {**result["config"], "notes": result["notes"]})
    assert rebuilt == resolve(name)
    assert result["fingerprint"] == fingerprint(rebuilt)


def test_show_puts_the_published_figures_beside_ours():
    assert show("flagship")["published"]["steps"] == 390_251
    assert show("d512")["published"] is None
    text = render(show("d2048"))
    assert "published 7.742e+21" in text
    assert "published 1,170,735,104" in text


@pytest.mark.parametrize("name", ["flagship", "d1280"])
def test_rendered_text_has_a_line_for_every_value_with_its_origin(name):
    text = render(show(name))
    lines = text.splitlines()
    for leaf in leaves(recipes()[name]()):
        if leaf.path != "notes":
            assert any(line.split()[:1] == [leaf.path] for line in lines), leaf.path
    window = next(line for line in lines if "model.window" in line)
    assert "2048" in window
    assert "published: " in window
    assert any(line.endswith('"') and "data.corpus.tokenizer.key" in line for line in lines)


def test_an_override_shows_in_value_derived_numbers_and_origin():
    result = show("d768", ["train.num_steps=100"])
    assert result["derived"]["steps"] == 100
    assert result["config"]["train"]["num_steps"] == 100
    assert result["notes"]["train.num_steps"].startswith("given: ")
    assert result["fingerprint"] != show("d768")["fingerprint"]


def test_show_loads_no_jax():
    code = (
        "import sys; from shoal.jobs.show import render, show; render(show('flagship'));"
        "print(sorted({'jax', 'equinox', 'optax', 'orbax'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
