"""Bytes on a chip against the declarations, and against what the public run printed."""

import dataclasses
import math

import pytest

from plan.workloads import layout, workload
from shoal.model.count import num_tensors
from shoal.plan.chips import chip_named
from shoal.plan.layout import Layout
from shoal.plan.memory import (
    activation_bytes,
    chip_memory,
    logits_bytes,
    resting_bytes,
)
from shoal.plan.weights import weights_of

GB200 = chip_named("gb200")


def _state(work, given):
    return weights_of(work, given).state


def test_one_chip_holds_every_number_of_the_state():
    work = workload("flagship")
    state = _state(work, Layout())
    assert sum(state["numbers"].values()) == num_tensors(work.model) == 535_477_106_688
    assert sum(state["parameters"].values()) == 4 * 535_477_106_688


def test_optimizer_bytes_follow_each_group():
    work = workload("quickstart")
    moments = {"muonh": 1, "adamh": 2, "adam": 2, "balance": 0}
    expected = sum(4 * moments[leaf.group] * leaf.size for leaf in work.leaves)
    assert sum(_state(work, Layout())["optimizer"].values()) == expected


@pytest.mark.parametrize("degrees", [(1, 8), (2, 4), (8, 1), (3, 2), (2, 64), (1, 5)])
def test_chips_of_a_replica_hold_every_cut_number_once(degrees):
    data, expert = degrees
    work = workload("flagship")
    spread = Layout(replica=3, data=data, expert=expert)
    for leaf in work.leaves:
        parts = spread.over(spread.cut(leaf))
        assert leaf.size % parts == 0, leaf
        assert (data * expert) % parts == 0
    total = sum(_state(work, spread)["numbers"].values())
    least = num_tensors(work.model) / (data * expert)
    assert least <= total


def test_groups_of_the_flagship_are_the_published_matrices():
    numbers = _state(workload("flagship"), Layout())["numbers"]
    assert numbers["experts"] == 48 * 384 * 28_311_552
    assert numbers["attention"] == 48 * (75_497_472 + 18_874_368)
    assert numbers["shared_latent_router"] == 48 * (2_359_296 + 37_748_736 + 113_246_208) + 48 * 0
    assert numbers["embedding"] == numbers["head"] == 128_256 * 6144


def test_six_experts_of_a_layer_rest_on_each_chip_of_the_flagship():
    numbers = _state(workload("flagship"), layout("flagship", 704))["numbers"]
    assert numbers["experts"] == 48 * 6 * 28_311_552
    small = numbers["small"]
    assert sum(numbers.values()) - small == pytest.approx(535_305_388_032 / 64, rel=2e-3)


def test_memory_modes_move_the_state_to_the_host():
    work = workload("flagship")
    state = _state(work, layout("flagship", 704))
    parameters, optimizer = (sum(state[name].values()) for name in ("parameters", "optimizer"))
    at = {
        mode: resting_bytes(work, layout("flagship", 704, f"train.memory={mode}"))
        for mode in ("device", "optimizer_on_host", "state_on_host")
    }
    assert at["device"] == {"device": parameters + optimizer, "host": 0}
    assert at["optimizer_on_host"] == {"device": parameters, "host": optimizer}
    assert at["state_on_host"] == {"device": 0, "host": parameters + optimizer}


def test_the_flagships_peak_is_near_the_published_one():
    # Published with ragged rows, float32 weights on the device, optimizer state and the residual
    # stream on the host: 103.6 GiB. This code keeps the residual stream on the device.
    given = layout("flagship", 704, "train.memory=optimizer_on_host")
    found = chip_memory(workload("flagship"), given, GB200)
    residual = 48 * 65_536 * 6144 * 2
    assert 0.85 < (found["bytes_per_chip"] - residual) / (103.6 * 2**30) < 1.15
    assert found["fits"]


def test_remat_keeps_one_input_a_layer():
    work = workload("flagship")
    given = layout("flagship", 704)
    saved = activation_bytes(work, given)["saved for the backward pass"]
    assert saved == pytest.approx(48 * 65_536 * 6144 * 2, rel=0.25)
    without = activation_bytes(work, dataclasses.replace(given, remat=False))
    assert without["saved for the backward pass"] > 8 * saved


def test_microbatches_save_activations_and_cost_gradients():
    work = workload("flagship")
    one, four = (
        chip_memory(work, layout("flagship", 704, f"train.accumulation={n}"), GB200) for n in (1, 4)
    )
    for name in ("saved for the backward pass", "logits and their gradient"):
        assert four["step"][name] == one["step"][name] // 4
    assert four["gradients"] == 2 * one["gradients"]


def test_logits_are_whole_where_they_are_small():
    small, large = workload("quickstart"), workload("flagship")
    tokens = small.tokens_per_step
    assert logits_bytes(small, Layout()) == 2 * 4 * tokens * small.model.vocab_size
    assert logits_bytes(large, layout("flagship", 704)) == 2 * 4 * 65_536 * 4096


def test_the_peak_is_the_fuller_moment():
    found = chip_memory(workload("flagship"), layout("flagship", 704), GB200)
    assert found["bytes_per_chip"] == max(found["moments"].values())
    assert math.isclose(found["usable_bytes"], 0.92 * GB200.memory_bytes, rel_tol=1e-6)
