"""`shoal count` against the published counts."""

import json
from importlib import resources

import pytest

from shoal.jobs.count import count, render

RUNGS = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())["rungs"]


def test_flagship_counts_are_the_published_ones():
    assert count("flagship") == {
        "tensors": 535_477_106_688,
        "published_total": 535_305_388_032,
        "active": 22_762_487_808,
        "flops_per_token": 149_736_259_584,
        "flops_per_token_published": 149_736_259_584,
    }


@pytest.mark.parametrize("name", RUNGS)
def test_every_published_rung_counts_as_published(name):
    row, found = RUNGS[name], count(name)
    assert found["tensors"] == row["all_tensor_parameters"]
    assert found["published_total"] == row["published_total_parameters"]
    assert found["active"] == row["active_parameters"]
    tokens = row["steps"] * row["batch_sequences"] * row["sequence_tokens"]
    assert float(f"{found['flops_per_token_published'] * tokens:.1e}") == row["flops"]


def test_overrides_are_counted():
    fewer = count("flagship", ["model.kv_heads_stored_global=6"])
    assert count("flagship")["active"] - fewer["active"] == 12 * 2 * 6144 * 6 * 128


def test_rendered_counts_read_with_thousands_and_their_meaning():
    lines = render(count("flagship")).splitlines()
    assert len(lines) == 5
    assert "535,477,106,688" in lines[0]
    assert lines[0].endswith("every number in the state")
