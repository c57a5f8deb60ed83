"""Each cross-check refuses what it is for, and says what to do."""

import dataclasses
from functools import reduce

import pytest

from shoal.core.config import replace
from shoal.data.settings import MixConfig
from shoal.recipes.ladder import d512
from shoal.train import checks


def changed(**values):
    return reduce(
        lambda config, item: replace(config, item[0].replace("__", "."), item[1]),
        values.items(),
        d512(),
    )


NAME = d512().data.corpus.training[0].name
NUM_SOURCES = len(d512().data.corpus.training)

REFUSED = [
    (
        checks.experts_divide_over_their_axis,
        {"mesh__expert": 5},
        "use 2, 3, 4, 6, 8, 12, 16, 24",
    ),
    (checks.units_hold_whole_sequences, {"data__corpus__unit_tokens": 60_000}, "use 61440"),
    (checks.units_hold_whole_sequences, {"data__corpus__unit_tokens": 100}, "use 4096"),
    (checks.evaluation_fits_the_longest_context, {"eval__sequence_tokens": 65_537}, "use train."),
    (checks.evaluation_fits_the_longest_context, {"eval__sequence_tokens": 1}, "outside 2 .."),
    (checks.vocabulary_holds_the_tokenizer, {"model__vocab_size": 300}, "set model.vocab_size="),
    (
        checks.queries_keep_their_sign,
        {"model__qk_scale_log": 0.5, "train__sequence_tokens": 128},
        "train.sequence_tokens=128",
    ),
    (
        checks.experts_expect_a_token,
        {"train__batch_sequences": 1, "train__sequence_tokens": 16},
        "128 assignments",
    ),
    (
        checks.mixture_names_training_sources,
        {"data__mix": MixConfig(rule="table", table=(("nowhere", 1.0, 1.0),))},
        "nowhere",
    ),
    (checks.lanes_hold_every_cell, {"data__table_lanes": 1}, f"the {NUM_SOURCES} sources"),
]


@pytest.mark.parametrize(("rule", "values", "says"), REFUSED)
def test_a_check_refuses_what_it_is_for_and_says_what_to_do(rule, values, says):
    problem = rule(changed(**values))
    assert problem is not None
    assert says in problem
    assert rule(d512()) is None


def test_every_check_is_listed_and_refuses_something():
    assert {rule for rule, _, _ in REFUSED} == set(checks.CHECKS)


def test_a_config_is_refused_with_all_its_problems_at_once():
    config = changed(data__corpus__unit_tokens=5000, model__vocab_size=300, data__table_lanes=1)
    with pytest.raises(ValueError, match="unit_tokens") as refused:
        checks.check(config)
    assert len(str(refused.value).splitlines()) == 3


def test_an_evaluation_longer_than_training_is_allowed_within_a_unit():
    longer = changed(eval__sequence_tokens=16_384)
    checks.check(longer)
    assert dataclasses.replace(longer.eval, sequence_tokens=4096) == d512().eval
