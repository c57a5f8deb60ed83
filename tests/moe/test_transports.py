"""Every transport against one device, and against a simulation of its gates where room is short.

A new transport joins by its simulation in `oracles.transport.SIMULATIONS`.
"""

import numpy as np
import pytest

from oracles import transport as oracle
from oracles.bridge import FLOAT32, assert_each_near, assert_near
from oracles.devices import EXPERTS, TREE, on_devices, random_inputs
from oracles.transport import DELIVERED, SIMULATIONS, Room
from shoal.moe.config import TRANSPORTS
from shoal.moe.transport import transport

TOKENS, TOP_K = 7, 3
CARRIED = [name for name in SIMULATIONS if name != "local"]
AMPLE = Room(sender_percent=10_000, receiver_percent=10_000)
SHORT = Room(sender_percent=90, receiver_percent=65)
# (expert, data): sizes of the axes, the first of them None for no mesh at all.
MESHES = [(None, 1), (1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2)]
BANKS = ("gate", "up", "down")


def routings(devices: int) -> dict[str, np.ndarray]:
    """Assignments [D, T, K] with E for padding."""
    rng = np.random.default_rng(devices)
    shape = (devices, TOKENS, TOP_K)
    skewed = rng.gumbel(size=(devices, TOKENS, EXPERTS)) + np.linspace(0.0, 3.0, EXPERTS)
    skewed = np.argsort(-skewed, axis=2)[:, :, :TOP_K]
    padded = np.where(rng.random((devices, TOKENS, 1)) < 0.4, EXPERTS, skewed)
    few = rng.permuted(np.broadcast_to([0, 5, 6], shape), axis=2)
    return {
        "skewed": skewed,
        "whole tokens and single choices are padding": np.where(
            rng.random(shape) < 0.1, EXPERTS, padded
        ),
        "all to one expert": np.full(shape, EXPERTS - 1),
        "most experts empty": few,
        "nothing but padding": np.full(shape, EXPERTS),
    }


def meshes(*quick: tuple[int | None, int]):
    """All meshes, those not named marked slow: compiling is what takes the time."""
    marks = {mesh: () if mesh in quick else pytest.mark.slow for mesh in MESHES}
    cases = [pytest.param(*mesh, marks=mark) for mesh, mark in marks.items()]
    return pytest.mark.parametrize(("expert", "data"), cases)


def assert_same(found, expected, tolerance):
    (y, gradients), (expected_y, expected_gradients) = found, expected
    assert_near(y, expected_y, tolerance / 10, "outputs")
    for name in TREE:
        compare = assert_each_near if name in BANKS else assert_near
        compare(gradients[name], np.asarray(expected_gradients[name]), tolerance)


@pytest.mark.parametrize("name", CARRIED)
@meshes((4, 1), (8, 1), (2, 2))
def test_with_room_for_all_it_equals_one_device_in_values_and_raw_gradients(name, expert, data):
    devices = (expert or 1) * data
    for seed, ids in enumerate(routings(devices).values()):
        inputs = random_inputs(seed, ids)
        whole = {n: v if n in BANKS else v.reshape(1, -1, v.shape[-1]) for n, v in inputs.items()}
        y, _, gradients = on_devices("local", whole, None, AMPLE)
        flat = {n: v.reshape(inputs[n].shape) for n, v in gradients.items()}
        found_y, tally, found = on_devices(name, inputs, expert, AMPLE, data)
        assert_same((found_y, found), (y.reshape(found_y.shape), flat), 1e-5)
        assert tuple(tally.sum(axis=0)) == (0, 0, np.sum(ids < EXPERTS))


@pytest.mark.parametrize("name", CARRIED)
@meshes((None, 1), (8, 1), (2, 2))
def test_where_room_is_short_it_equals_the_simulation_of_its_gates(name, expert, data):
    dropped = 0
    for seed, ids in enumerate(routings((expert or 1) * data).values()):
        inputs = random_inputs(seed, ids)
        fates, expected_tally = oracle.simulate(name, ids, EXPERTS, SHORT, data)
        arrays = [inputs[n] for n in ("x", "ids", "weights")]
        expected = oracle.carried(*arrays, inputs, inputs["mix"], fates)
        y, tally, gradients = on_devices(name, inputs, expert, SHORT, data)
        assert_same((y, gradients), expected, FLOAT32)
        np.testing.assert_array_equal(tally, expected_tally)
        assert tally.sum() == np.sum(ids < EXPERTS)
        assert not gradients["weights"][fates != DELIVERED].any()
        dropped += tally[:, :2].sum()
    assert dropped > 0


@pytest.mark.parametrize("expert", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_local_gathers_the_banks_and_returns_to_each_device_its_own_experts_gradients(expert):
    for seed, ids in enumerate(routings(expert).values()):
        inputs = random_inputs(seed, ids)
        fates, expected_tally = oracle.simulate("local", ids, EXPERTS, SHORT)
        arrays = [inputs[n] for n in ("x", "ids", "weights")]
        expected = oracle.carried(*arrays, inputs, inputs["mix"], fates)
        y, tally, gradients = on_devices("local", inputs, expert, SHORT)
        assert_same((y, gradients), expected, FLOAT32)
        np.testing.assert_array_equal(tally, expected_tally)


def test_every_transport_of_the_configuration_is_known_and_simulated():
    assert set(TRANSPORTS) == set(SIMULATIONS)
    assert len({transport(name) for name in TRANSPORTS}) == len(TRANSPORTS)


def test_an_unknown_transport_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'pigeon' is unknown; use local, pooled, ragged"):
        transport("pigeon")
