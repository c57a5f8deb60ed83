"""How the notes of a config are read."""

import dataclasses

from shoal.core.config import origin
from shoal.recipes.ladder import d512
from shoal.train.notes import unknown_notes, without_origin


def test_an_exact_note_wins_over_a_group_and_a_near_group_over_a_far_one():
    notes = {"a.*": "far", "a.b.*": "near", "a.b.c": "exact"}
    assert origin(notes, "a.b.c") == "exact"
    assert origin(notes, "a.b.d") == "near"
    assert origin(notes, "a.d") == "far"
    assert origin(notes, "b") is None


def test_a_missing_and_a_misspelled_note_are_both_found():
    config = d512()
    notes = dict(config.notes)
    notes["model.num_expert"] = notes.pop("model.num_experts")
    notes["modell.*"] = "ours: a typo"
    config = dataclasses.replace(config, notes=notes)
    assert without_origin(config) == ["model.num_experts"]
    assert unknown_notes(config) == ["model.num_expert", "modell.*"]
