"""Who is dropped, and that what is dropped, empty or poisoned is nowhere in the results."""

from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import transport as oracle
from oracles.bridge import FLOAT32, assert_each_near, assert_near, quick_jit
from oracles.devices import EXPERTS, TREE, capacity_of, carrier, on_devices, random_inputs
from oracles.transport import SIMULATIONS, Room
from shoal.moe.experts import blocks, dense
from shoal.moe.pooled import address, arrange
from shoal.moe.ragged import accepted
from shoal.moe.transport import Capacity

CARRIED = [name for name in SIMULATIONS if name != "local"]
SHAPES = {
    "hardly any room": (4, 7, 3, Room(sender_percent=1, receiver_percent=1)),
    "one token a device": (4, 1, 3, Room(sender_percent=60, receiver_percent=60)),
    "all experts but one": (2, 3, EXPERTS - 1, Room(sender_percent=80, receiver_percent=70)),
    "one wave and one chunk": (2, 5, 2, Room(receiver_percent=50, waves=1, chunks=1)),
    "more waves than rows, more chunks than experts": (4, 2, 2, Room(waves=9, chunks=9)),
    "three uneven chunks": (2, 6, 2, Room(receiver_percent=60, waves=2, chunks=3)),
}


def seeded_ids(seed, devices, tokens, top_k, skew=2.0):
    noise = np.random.default_rng(seed).gumbel(size=(devices, tokens, EXPERTS))
    return np.argsort(-noise - np.linspace(skew, 0.0, EXPERTS), axis=2)[:, :, :top_k]


def expected_of(name, inputs, room):
    fates, tally = oracle.simulate(name, inputs["ids"], EXPERTS, room)
    arrays = [inputs[n] for n in ("x", "ids", "weights")]
    return fates, tally, *oracle.carried(*arrays, inputs, inputs["mix"], fates)


QUICK = {
    ("pooled", "hardly any room"),
    ("ragged", "hardly any room"),
    ("pooled", "more waves than rows, more chunks than experts"),
    ("ragged", "three uneven chunks"),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(CARRIED, SHAPES)
    ],
)
def test_awkward_sizes_equal_the_simulation(name, shape):
    devices, tokens, top_k, room = SHAPES[shape]
    for seed in range(3):
        inputs = random_inputs(seed, seeded_ids(seed, devices, tokens, top_k))
        _, expected_tally, expected_y, expected = expected_of(name, inputs, room)
        y, tally, gradients = on_devices(name, inputs, devices, room)
        np.testing.assert_array_equal(tally, expected_tally)
        assert_near(y, expected_y, FLOAT32)
        for n in TREE:
            compare = assert_each_near if n in ("gate", "up", "down") else assert_near
            compare(gradients[n], expected[n], FLOAT32)


@pytest.mark.parametrize("name", CARRIED)
def test_receivers_drop_of_every_sender_alike(name):
    """Every device sends the same to each; each has each turn at one receiver: none loses more."""
    devices, tokens, top_k, room = SHAPES["hardly any room"]
    flat = [*np.repeat(np.arange(4) * 2, 5) + np.tile([0, 1, 0, 1, 0], 4), EXPERTS]
    ids = np.broadcast_to(np.reshape(flat, (tokens, top_k)), (devices, tokens, top_k))
    _, tally, gradients = on_devices(name, random_inputs(0, ids), devices, room)
    lost = np.sum((gradients["weights"] == 0.0) & (ids < EXPERTS), axis=(1, 2)) - tally[:, 0]
    assert lost[0] > 0
    assert set(lost) == {lost[0]}
    assert tally[:, 1].tolist() == lost.tolist()


@pytest.mark.parametrize("name", CARRIED)
def test_the_drops_of_many_random_steps_are_of_no_device_in_particular(name):
    devices, tokens, top_k = 4, 7, 3
    _, _, _, room = SHAPES["hardly any room"]
    lost = np.zeros(devices)
    for seed in range(40):
        ids = seeded_ids(seed, devices, tokens, top_k, skew=0.0)
        fates, _ = oracle.simulate(name, ids, EXPERTS, room)
        lost += np.sum(fates == oracle.RECEIVER, axis=(1, 2))
    assert np.ptp(lost) < 0.15 * lost.mean()


@jax.custom_vjp
def poison_rows(rows, inside):
    return jnp.where(inside[:, None], rows, jnp.nan)


poison_rows.defvjp(
    lambda rows, inside: (poison_rows(rows, inside), inside),
    lambda inside, gradient: (poison_rows(gradient, inside), None),
)


def poisonous(params, rows, group_sizes):
    """Experts that leave NaN, forward and backward, in every row that is nobody's."""
    inside = jnp.arange(rows.shape[0]) < jnp.sum(group_sizes)
    out = blocks(params, poison_rows(rows, inside), group_sizes, block_rows=4)
    return poison_rows(out, inside)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_unused_rows_and_padding_may_hold_anything(name):
    """NaN in rows that experts leave unwritten, in padding and its weights, in the step before."""
    room = Room(sender_percent=90, receiver_percent=80)
    inputs = random_inputs(1, seeded_ids(1, 2, 6, 2))
    inputs["ids"][0, 2] = inputs["ids"][1, 5] = inputs["ids"][1, 1, 0] = EXPERTS
    _, _, expected_y, expected = expected_of(name, inputs, room)
    dirty = {n: a.copy() for n, a in inputs.items()}
    dirty["x"][0, 2] = dirty["x"][1, 5] = np.nan
    dirty["weights"][inputs["ids"] == EXPERTS] = np.nan
    broken = {**inputs, "x": np.full_like(inputs["x"], np.nan)}
    y, _, _ = on_devices(name, broken, 2, room, compute=poisonous)
    assert np.isnan(y).any()
    for after in (dirty, inputs):
        y, _, gradients = on_devices(name, after, 2, room, compute=poisonous)
        assert_near(y, expected_y, FLOAT32)
        for n in TREE:
            assert_near(gradients[n], expected[n], FLOAT32, n)


@pytest.mark.parametrize("name", CARRIED)
def test_in_float64_it_is_the_simulation_to_twelve_digits(name):
    """What float32 rounds away would show; ids may be int64."""
    room = Room(sender_percent=90, receiver_percent=80)
    inputs = random_inputs(5, seeded_ids(5, 2, 6, 2))
    _, expected_tally, expected_y, expected = expected_of(name, inputs, room)
    with jax.enable_x64(True):
        tree = {n: jnp.asarray(inputs[n], jnp.float64) for n in TREE}
        ids, mix = jnp.asarray(inputs["ids"], jnp.int64), jnp.asarray(inputs["mix"])
        y, tally, gradients = carrier(name, 2, capacity_of(room))(tree, ids, mix)
    np.testing.assert_array_equal(tally, expected_tally)
    for found, right in [(y, expected_y), *((gradients[n], expected[n]) for n in TREE)]:
        assert found.dtype == jnp.float64
        assert_near(found, right, 1e-12)


def test_local_sums_gradients_of_banks_in_their_own_dtype():
    """Each device alone rounds to bfloat16; their sum is not rounded again."""
    inputs = random_inputs(6, np.zeros((8, 1, 1), int))
    _, _, gradients = on_devices("local", inputs, 8, Room(), dtype=jnp.bfloat16)
    parts = [
        on_devices(
            "local",
            {n: a if n in ("gate", "up", "down") else a[d : d + 1] for n, a in inputs.items()},
            None,
            Room(),
            dtype=jnp.bfloat16,
        )[2]
        for d in range(8)
    ]
    for n in ("gate", "up", "down"):
        assert_near(gradients[n], np.sum([part[n] for part in parts], axis=0), 1e-6)


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_no_row_is_moved_by_a_scatter_forward_or_backward(name):
    inputs = random_inputs(0, seeded_ids(0, 4, 7, 3))
    tree = {n: jnp.asarray(inputs[n], jnp.float32) for n in TREE}
    run = carrier(name, 4, Capacity(), 1, dense)
    traced = run.trace(tree, jnp.asarray(inputs["ids"], jnp.int32), tree["x"])
    found = list(equations(traced.jaxpr.jaxpr))
    assert any(e.primitive.name == "gather" for e in found)
    moved = [
        e for e in found if "scatter" in e.primitive.name and e.primitive.name != "reduce_scatter"
    ]
    assert not [e for e in moved if jnp.issubdtype(e.outvars[0].aval.dtype, jnp.floating)]


def test_headers_hold_as_many_experts_as_bfloat16_counts_and_more_are_refused():
    """256 experts on one device: each multiplies by one and adds nothing, so ids must be right."""

    def numbered(params, rows, group_sizes):
        owner = jnp.searchsorted(jnp.cumsum(group_sizes), jnp.arange(rows.shape[0]), side="right")
        return jnp.broadcast_to(owner.astype(rows.dtype)[:, None], rows.shape)

    def run(num_experts):
        ids = np.random.default_rng(0).permutation(num_experts)[None, :, None]
        inputs = random_inputs(0, ids, num_experts)
        inputs["weights"] = np.ones(ids.shape)
        y, *_ = on_devices("pooled", inputs, None, Room(), dtype=jnp.bfloat16, compute=numbered)
        return ids[0, :, 0], y[0]

    ids, y = run(256)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y.astype(int), np.broadcast_to(ids[:, None], y.shape))
    with pytest.raises(ValueError, match=r"257 experts .* bfloat16 headers.*exact to 256; use"):
        run(257)


@pytest.mark.parametrize("name", CARRIED)
def test_bfloat16_rows_come_back_in_bfloat16_summed_in_float32(name):
    room = Room(sender_percent=10_000, receiver_percent=10_000)
    inputs = random_inputs(3, seeded_ids(3, 2, 6, 5))
    y, *_ = on_devices(name, inputs, 2, room, dtype=jnp.bfloat16)
    expected, *_ = on_devices("local", inputs, 2, room, dtype=jnp.bfloat16)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(float), expected.astype(float), rtol=2**-7, atol=0.02)


@cache
def jitted(function, **static):
    return quick_jit(partial(function, **static))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=10, max_size=10))
def test_every_assignment_has_one_slot_or_is_dropped_or_padding(flat):
    """Five tokens, two choices, three devices of two experts, two waves of two rows."""
    ids = np.array(flat).reshape(5, 2)
    out = jax.device_get(
        jitted(address, shards=3, experts=2, waves=2, rows=2)(jnp.asarray(ids, jnp.int32))
    )
    held = out.slot_ids[out.slot_ids < 10]
    assert len(set(held)) == len(held)
    assert len(held) + out.dropped == np.sum(ids < 6)
    for a, (wave, slot) in enumerate(zip(out.waves.ravel(), out.slots.ravel(), strict=True)):
        if slot < 6:
            assert out.slot_ids[wave, slot] == a
            assert slot // 2 == flat[a] // 2
    for shard in range(3):
        mine = [a for a in range(10) if flat[a] // 2 == shard]
        assert [a for a in mine if out.slots.ravel()[a] < 6] == mine[:4]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(0, 3))
def test_an_expert_takes_the_first_rows_of_the_turned_order(flat, start):
    """Four devices of three rows, three experts that take two rows each."""
    ids = np.array(flat).reshape(4, 3)
    box = jax.device_get(
        jitted(arrange, experts=3, rows=2)(jnp.asarray(ids, jnp.int32), start=jnp.asarray(start))
    )
    turned = [(start + j) % 4 * 3 + p for j in range(4) for p in range(3)]
    laid = [q for expert in (1, 2, 3) for q in [q for q in turned if flat[q] == expert][:2]]
    assert box.sources.tolist() == laid + [12] * (6 - len(laid))
    assert box.group_sizes.tolist() == [min(flat.count(expert), 2) for expert in (1, 2, 3)]
    assert box.dropped == sum(i > 0 for i in flat) - len(laid)
    assert [box.rows[q] for q in laid] == list(range(len(laid)))
    assert all(box.rows[q] == 6 for q in range(12) if q not in laid)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=18, max_size=18), st.sampled_from([1, 7, 18, 60]))
def test_a_receiver_takes_all_it_has_room_for_source_by_source(flat, room):
    """Three devices, two experts each."""
    counts = np.array(flat).reshape(3, 3, 2)
    taken = np.asarray(jitted(accepted, room=room)(jnp.asarray(counts, jnp.int32)))
    for d in range(3):
        left = room
        for turn in range(3):
            for x in range(2):
                s = (d + turn) % 3
                assert taken[s, d, x] == min(left, counts[s, d, x])
                left -= taken[s, d, x]
