"""The search finds what is better, and says why the rest is not there."""

import dataclasses

import pytest

from plan.workloads import layout, workload
from shoal.plan.chips import chip_named
from shoal.plan.layout import Layout, misfits
from shoal.plan.memory import chip_memory
from shoal.plan.search import judged, search

GB200, H100 = chip_named("gb200"), chip_named("h100")


@pytest.fixture(scope="module")
def found():
    return search(workload("d2048"), H100, 64)


def test_the_search_beats_a_deliberately_bad_layout(found):
    # Rows of every layer cross nodes, and weights are gathered sixteen times a step.
    bad = Layout(expert=64, accumulation=16, memory="state_on_host", remat=True)
    work = workload("d2048")
    assert not list(misfits(work, bad))
    was, best = judged(work, bad, H100), found.ranked[0]
    assert best.step_s_bound < was.step_s_bound
    assert best.step_s_serial < was.step_s_serial


def test_everything_ranked_fits_and_the_bound_only_grows(found):
    work = workload("d2048")
    for each in found.ranked:
        assert not list(misfits(work, each.layout))
        assert each.layout.num_chips == 64
        assert chip_memory(work, each.layout, H100)["fits"]
    bounds = [float(f"{each.step_s_bound:.4g}") for each in found.ranked]
    assert bounds == sorted(bounds)
    assert len({each.layout for each in found.ranked}) == len(found.ranked)


def test_what_is_thrown_out_is_counted_by_reason(found):
    assert len(found.ranked) + sum(found.thrown_out.values()) == found.tried
    flagship = search(workload("flagship"), H100, 16)
    assert flagship.ranked == ()
    assert set(flagship.thrown_out) >= {"exceeds the chip's memory"}


def test_the_flagships_own_mesh_is_the_best_of_704_chips():
    best = search(workload("flagship"), GB200, 704).ranked[0].layout
    assert (best.replica, best.data, best.expert) == (11, 1, 64)
    assert best.remat
    assert best.memory == "optimizer_on_host"


def test_a_sequence_is_cut_only_where_nothing_else_fits(found):
    assert {each.layout.context for each in found.ranked} == {1}
    few = workload("d2048", "train.batch_sequences=8", "train.sequence_tokens=65536")
    assert {each.layout.context for each in search(few, H100, 64).ranked} == {8}


def test_layouts_that_do_not_divide_say_what_to_use():
    work = workload("flagship")
    given = layout("flagship", 704)
    messages = {
        "expert": "model.num_experts=384 is not divisible by mesh axis 'expert'=5; use one of 1, 2",
        "replica": "train.batch_sequences=11264 is not divisible by the 4480 shards",
        "accumulation": "train.accumulation=5 does not divide the 16 sequences of a chip",
        "context": "train.sequence_tokens=4096 is not divisible by mesh axis 'context'=3",
    }
    changes = {"expert": 5, "replica": 70, "accumulation": 5, "context": 3}
    for field, value in changes.items():
        found = [m.message for m in misfits(work, dataclasses.replace(given, **{field: value}))]
        assert any(message.startswith(messages[field]) for message in found), found
