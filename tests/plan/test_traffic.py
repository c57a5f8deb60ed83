"""Who talks over which link, against enumerated chips and simulated collectives."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from plan.workloads import layout, workload
from shoal.arrays.config import AXES
from shoal.plan.budget import step_budget
from shoal.plan.chips import chip_named
from shoal.plan.layout import Layout
from shoal.plan.traffic import Group, memory_traffic, moves

H100, GB200 = chip_named("h100"), chip_named("gb200")


def _sent(work, given, chip, what=None, link=None, phase=None):
    return sum(
        m.bytes
        for m in moves(work, given, chip)
        if (what is None or m.what.startswith(what))
        and link in (None, m.link)
        and phase in (None, m.phase)
    )


@pytest.mark.parametrize("sizes", [(2, 2, 4, 2), (4, 1, 16, 1), (2, 4, 2, 4), (1, 16, 4, 1)])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_members_of_a_group_inside_a_domain_are_those_that_enumeration_finds(sizes, count):
    mesh = Layout(**dict(zip(AXES, sizes, strict=True)))
    chips = np.arange(mesh.num_chips).reshape(sizes)
    for axes in itertools.combinations(AXES, count):
        rest = [i for i, axis in enumerate(AXES) if axis not in axes]
        group = chips[tuple(0 if i in rest else slice(None) for i in range(4))].reshape(-1)
        inside = np.bincount(group // H100.domain_chips)
        assert mesh.inside(axes, H100) == inside[0]
        assert set(inside) <= {0, inside[0]}


def test_a_rack_of_the_flagship_is_one_domain_and_replicas_are_across():
    given = layout("flagship", 704)
    assert given.inside(("expert",), GB200) == 64
    assert given.inside(("data", "expert"), GB200) == 64
    assert given.inside(("replica",), GB200) == 1


def test_two_level_collectives_send_what_a_simulation_of_them_sends():
    mesh, chip = Layout(expert=16), H100
    group = Group(mesh, chip, ("expert",))
    assert (group.size, group.near, group.domains) == (16, 8, 2)
    whole = 16.0
    # All-gather: first the pieces of one's place in other domains, then all that one's own has.
    assert group.gather(whole) == {"across": 1.0 * 1, "domain": 2.0 * 7}
    assert group.reduce(whole) == {"across": 2.0, "domain": 28.0}
    assert group.exchange(whole) == {"across": 8.0, "domain": 7.0}


def test_rows_travel_four_ways_and_again_for_what_is_recomputed():
    work, given = workload("flagship"), layout("flagship", 704)
    one_way = 48 * 524_288 * 3072 * 2 * 63 / 64
    assert _sent(work, given, GB200, "rows to experts") == pytest.approx(2 * one_way)
    assert _sent(work, given, GB200, "gradients of rows") == pytest.approx(2 * one_way)
    assert _sent(work, given, GB200, "rows again") == pytest.approx(2 * one_way)
    saved = layout("flagship", 704, "model.remat=false")
    assert _sent(work, saved, GB200, "rows again") == 0
    # Waves are computed anew by themselves.
    waves = workload("flagship", "moe.transport=pooled")
    again = [_sent(waves, each, GB200, "rows again") for each in (saved, given)]
    assert again == pytest.approx([2.3 * one_way, 4.6 * one_way], rel=0.01)
    assert _sent(work, given, GB200, "rows", link="across") == 0


def test_pooled_sends_whole_buffers_and_local_gathers_banks_instead():
    given = layout("flagship", 704)
    ragged, pooled, local = (
        workload("flagship", f"moe.transport={name}") for name in ("ragged", "pooled", "local")
    )
    ratio = _sent(pooled, given, GB200, "rows to") / _sent(ragged, given, GB200, "rows to")
    assert ratio == pytest.approx(1.15, abs=0.01)
    assert _sent(local, given, GB200, "rows") == 0
    bank = 48 * 384 * 28_311_552 * 2
    gathered = _sent(local, given, GB200, "weights gathered", phase="forward")
    assert gathered == pytest.approx(bank * 63 / 64, rel=0.05)


def test_gradients_cross_racks_twice_in_the_compute_dtype():
    work, given = workload("flagship"), layout("flagship", 704)
    across = _sent(work, given, GB200, "gradients summed", link="across")
    assert across == pytest.approx(2 * 10 / 11 * 2 * 535_477_106_688 / 64, rel=0.01)


def test_one_chip_sends_nothing():
    assert moves(workload("quickstart"), Layout(), GB200) == []


def test_host_memory_is_paid_for_on_the_host_link():
    work = workload("flagship")
    device, optimizer, state = (
        _sent(work, layout("flagship", 704, f"train.memory={mode}"), GB200, link="host")
        for mode in ("device", "optimizer_on_host", "state_on_host")
    )
    assert device == 0
    assert optimizer == pytest.approx(4 * 535.5e9 / 64, rel=0.01)
    assert state == pytest.approx(3 * optimizer, rel=0.01)


def test_a_cut_sequence_exchanges_keys_and_values():
    work = workload("flagship")
    given = Layout(replica=11, expert=32, context=2, remat=True)
    assert _sent(work, given, GB200, "keys") > 0
    # 32 sequences a pair of chips: half of each global layer, the window and half of local ones.
    tokens = 32 * (12 * 4096 * 6 + 36 * 4096 * 12)
    assert _sent(work, given, GB200, "keys") == pytest.approx(3 * tokens / 2 * 2 * 128 * 2)
    longer = workload("flagship", "train.sequence_tokens=16384", "train.batch_sequences=2816")
    assert _sent(longer, given, GB200, "keys") < _sent(work, given, GB200, "keys")


def test_microbatches_gather_and_sum_again():
    work = workload("flagship")
    one, two = (layout("flagship", 704, f"train.accumulation={n}") for n in (1, 2))
    for what in ("weights gathered", "gradients summed"):
        assert _sent(work, two, GB200, what) == pytest.approx(2 * _sent(work, one, GB200, what))
    rows = [_sent(work, each, GB200, "rows to") for each in (one, two)]
    assert rows[0] == pytest.approx(rows[1])


def test_memory_traffic_is_positive_and_grows_with_remat():
    work = workload("flagship")
    kept, again = (layout("flagship", 704, f"model.remat={flag}") for flag in ("false", "true"))
    assert memory_traffic(work, again)["backward"] > memory_traffic(work, kept)["backward"] > 0


@pytest.mark.parametrize("transport", ["local", "pooled", "ragged"])
def test_the_bound_lies_between_the_largest_resource_and_no_overlap(transport):
    work, given = workload("d2048", f"moe.transport={transport}"), layout("d2048", 704)
    found = step_budget(work, given, GB200)
    used: dict[str, float] = defaultdict(float)
    for busy in found["busy_s"].values():
        for resource, seconds in busy.items():
            used[resource] += seconds
    assert 0.999999 * max(used.values()) <= found["step_s_bound"] <= found["step_s_serial"]
    assert found["step_s_serial"] == pytest.approx(sum(used.values()))
    assert found["mfu_causal_bound"] < found["mfu_bound"] < 1
