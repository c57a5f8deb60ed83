"""Every rung as published, and every number of it with its origin."""

import json
from importlib import resources

import pytest

from shoal.core.config import leaves, origin, plain
from shoal.model.count import num_active
from shoal.recipes import ladder
from shoal.train.checks import check
from shoal.train.notes import unknown_notes, without_origin

RUNGS = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())["rungs"]
PUBLISHED = [name for name in RUNGS if name != "flagship"]
OURS = ["d512", "d1280"]
ORIGINS = ("published: ", "inferred: ", "derived: ", "ours: ", "stand-in: ")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_rung_has_the_published_shape_batch_and_steps(name):
    row, config = RUNGS[name], getattr(ladder, name)()
    found = plain(config.model) | plain(config.train) | {"steps": config.train.num_steps}
    shared = row.keys() & found.keys()
    assert shared >= {"embed_dim", "num_layers", "num_heads", "batch_sequences", "steps"}
    assert {key: found[key] for key in shared} == {key: row[key] for key in shared}
    assert round(config.train.tokens / 1e9) == row["tokens_approx"] / 1e9


@pytest.mark.parametrize(
    ("name", "shape", "batch"), [("d512", (6, 4, 1, 1), 1024), ("d1280", (14, 10, 2, 1), 4096)]
)
def test_a_rung_of_ours_has_the_shape_in_use_and_the_same_rule_for_its_steps(name, shape, batch):
    config = getattr(ladder, name)()
    model, train = config.model, config.train
    found = (model.num_layers, model.num_heads, model.kv_heads_local, model.kv_heads_global)
    assert (found, train.batch_sequences) == (shape, batch)
    assert abs(train.tokens - 791 * num_active(model)) <= train.tokens_per_step / 2
    assert config.notes["train.batch_sequences"].startswith("ours: ")


@pytest.mark.parametrize("name", PUBLISHED)
def test_only_the_nearest_whole_step_gives_every_published_count(name):
    row = RUNGS[name]
    model = getattr(ladder, name)().model
    assert ladder.steps_for(model, row["batch_sequences"]) == row["steps"]


@pytest.mark.parametrize("name", [*PUBLISHED, *OURS])
def test_every_number_of_a_rung_has_an_origin(name):
    config = getattr(ladder, name)()
    assert without_origin(config) == []
    assert unknown_notes(config) == []
    assert all(note.startswith(ORIGINS) for note in config.notes.values())


@pytest.mark.parametrize("name", [*PUBLISHED, *OURS])
def test_a_rung_is_clean_where_no_count_depends_on_it(name):
    config = getattr(ladder, name)()
    check(config)
    assert config.name == name
    assert not config.model.router_round_bf16
    assert config.optimizer.expert_sphere == "expert"
    assert config.model.stored_global == config.model.kv_heads_local


def test_the_corpus_is_marked_as_a_stand_in_leaf_by_leaf():
    config = ladder.d768()
    corpus = [leaf.path for leaf in leaves(config) if leaf.path.startswith("data.corpus.")]
    notes = {path: origin(config.notes, path) for path in corpus}
    assert notes.pop("data.corpus.unit_tokens").startswith("ours: ")
    assert all(note.startswith("stand-in: ") for note in notes.values())
