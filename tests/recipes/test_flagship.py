"""The flagship as published, and its clean form."""

import json
from importlib import resources

from shoal.core.config import diff, plain
from shoal.recipes.flagship import flagship
from shoal.recipes.ladder import steps_for
from shoal.train.checks import check
from shoal.train.notes import unknown_notes, without_origin

ROW = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())["rungs"][
    "flagship"
]


def test_flagship_has_the_published_shape_batch_and_steps():
    config = flagship()
    check(config)
    found = plain(config.model) | plain(config.train) | {"steps": config.train.num_steps}
    shared = ROW.keys() & found.keys()
    assert {key: found[key] for key in shared} == {key: ROW[key] for key in shared}
    assert round(config.train.tokens / 1e9) == ROW["tokens_approx"] / 1e9
    assert config.train.num_steps == steps_for(config.model, config.train.batch_sequences)


def test_every_number_of_the_flagship_has_an_origin():
    for config in (flagship(), flagship(clean=True)):
        assert without_origin(config) == []
        assert unknown_notes(config) == []


def test_clean_changes_the_stored_heads_and_nothing_else():
    changed = diff(flagship(), flagship(clean=True))
    values = {d.path: (d.before, d.after) for d in changed if d.path != "notes"}
    assert values == {
        "model.kv_heads_stored_global": (12, 6),
        "name": ("flagship", "flagship-clean"),
    }


def test_flagship_plans_its_order_in_units_of_the_longest_context():
    config = flagship()
    assert config.data.corpus.unit_tokens == 262_144 == 64 * config.train.sequence_tokens
    assert config.model.layer_kinds.count("global") == 12
