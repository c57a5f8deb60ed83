"""The ragged exchange against numpy, bit for bit, and the real collective as far as a CPU goes."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from oracles import transport as oracle
from oracles.bridge import quick_jit
from oracles.devices import TREE, carrier, mesh_of, random_inputs
from shoal.moe import exchange
from shoal.moe.exchange import exchange_kind, ragged_exchange
from shoal.moe.transport import Capacity

ROWS, OUTPUT_ROWS, LATENT = 20, 25, 3


def exchanged(devices, kind=None):
    """(operand, output, four indices, cotangent) of all devices -> result and gradients."""

    def own(operand, output, where, cotangent):
        where = [a.reshape(-1) for a in where]

        def run(operand, output):
            return ragged_exchange(operand, output, *where, axis="expert", kind=kind)

        result, back = jax.vjp(run, operand, output)
        return result, *back(cotangent)

    return jax.shard_map(
        own, mesh=mesh_of(devices), in_specs=P("expert"), out_specs=P("expert"), check_vma=False
    )


@cache
def compiled(devices):
    return quick_jit(exchanged(devices))


def laid_out(rng, sizes, num_rows):
    """Offsets of slices in random order with random gaps, none of them overlapping."""
    order = rng.permutation(len(sizes))
    gaps = rng.multinomial(num_rows - sizes.sum(), np.ones(len(sizes) + 1) / (len(sizes) + 1))
    offsets = np.zeros(len(sizes), np.int32)
    at = 0
    for i, gap in zip(order, gaps, strict=False):
        offsets[i] = at + gap
        at += gap + sizes[i]
    return offsets


def random_slices(rng, devices, per_peer, most):
    """Sizes and offsets [D, n] as senders name them, and what each receiver will get."""
    n = devices * per_peer
    sizes = rng.integers(0, most + 1, size=(devices, n)).astype(np.int32)
    inputs = np.stack([laid_out(rng, own, ROWS) for own in sizes])
    by_pair = sizes.reshape(devices, devices, per_peer)
    received = by_pair.transpose(1, 0, 2).reshape(devices, n)
    placed = np.stack([laid_out(rng, own, OUTPUT_ROWS) for own in received])
    outputs = placed.reshape(devices, devices, per_peer).transpose(1, 0, 2).reshape(devices, n)
    return inputs, sizes, outputs, received


def flat(array, dtype=None):
    return jnp.asarray(array.reshape(-1, *array.shape[2:]), dtype)


@pytest.mark.parametrize(("devices", "per_peer"), [(2, 3), (4, 1), (8, 2)])
def test_the_exchange_and_its_gradient_are_those_of_numpy_to_the_bit(devices, per_peer):
    rng = np.random.default_rng(devices)
    for most in (0, 1, 20 // (devices * per_peer), 20 // (devices * per_peer)):
        operand = rng.normal(size=(devices, ROWS, LATENT)).astype(np.float32)
        output, cotangent = rng.normal(size=(2, devices, OUTPUT_ROWS, LATENT)).astype(np.float32)
        inputs, sizes, outputs, received = random_slices(rng, devices, per_peer, most)
        where = [flat(a) for a in (inputs, sizes, outputs, received)]
        found = compiled(devices)(flat(operand), flat(output), where, flat(cotangent))
        expected = [
            oracle.exchange(operand, output, inputs, sizes, outputs),
            *oracle.exchange_gradients(cotangent, ROWS, inputs, sizes, outputs),
        ]
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(mine).reshape(theirs.shape), theirs)


def test_the_example_of_the_collectives_own_documentation():
    where = [[0, 1, 0, 1], [1, 2, 1, 1], [0, 0, 1, 2], [1, 1, 2, 1]]
    operand = jnp.asarray([[1.0, 2, 2, 3, 4, 0]]).T
    result, *_ = compiled(2)(
        operand,
        jnp.zeros((8, 1)),
        [jnp.asarray(a, jnp.int32) for a in where],
        jnp.zeros((8, 1)),
    )
    assert result[:, 0].tolist() == [1, 3, 0, 0, 2, 2, 4, 0]


def test_rows_that_travel_by_no_slice_leak_nothing_forward_or_back():
    """NaN in what is not sent and in the cotangent of what is overwritten by nobody's row."""
    rng = np.random.default_rng(0)
    inputs, sizes, outputs, received = random_slices(rng, 4, 1, 3)
    operand = np.full((4, ROWS, LATENT), np.nan, np.float32)
    cotangent = np.full((4, OUTPUT_ROWS, LATENT), np.nan, np.float32)
    for s in range(4):
        for i in range(4):
            operand[s, inputs[s, i] : inputs[s, i] + sizes[s, i]] = 1.0
            cotangent[i, outputs[s, i] : outputs[s, i] + sizes[s, i]] = 1.0
    where = [flat(a) for a in (inputs, sizes, outputs, received)]
    output = jnp.zeros((4 * OUTPUT_ROWS, LATENT))
    result, to_operand, _ = compiled(4)(flat(operand), output, where, flat(cotangent))
    assert np.isfinite(result).all()
    assert np.isfinite(to_operand).all()
    assert int(result.sum()) == int(to_operand.sum()) == sizes.sum() * LATENT


def test_on_one_device_without_a_mesh_it_copies_slices():
    where = [jnp.asarray(a, jnp.int32) for a in ([3, 0], [2, 1], [0, 4], [2, 1])]
    operand = jnp.arange(5.0)[:, None]
    result = ragged_exchange(operand, jnp.full((6, 1), -1.0), *where, axis=None)
    assert result[:, 0].tolist() == [3, 4, -1, -1, 0, -1]


def test_a_cpu_exchanges_by_gathering_even_when_first_asked_inside_a_mapped_function():
    exchange_kind.cache_clear()

    def own(x):
        assert exchange_kind() == "all_gather"
        return x

    mapped = jax.shard_map(own, mesh=mesh_of(2), in_specs=P("expert"), out_specs=P("expert"))
    jax.jit(mapped)(jnp.zeros(2))
    assert exchange_kind() == "all_gather"
    assert exchange_kind.cache_info().hits >= 1


def test_a_backend_that_fails_otherwise_is_not_taken_for_one_that_cannot(monkeypatch):
    def broken(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("INTERNAL: the device is gone")

    exchange_kind.cache_clear()
    monkeypatch.setattr(exchange.jax.lax, "ragged_all_to_all", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the device is gone"):
        exchange_kind()


def test_the_real_collective_lowers_with_its_gradient():
    rng = np.random.default_rng(0)
    where = [flat(a) for a in random_slices(rng, 4, 2, 2)]
    operand, output = jnp.zeros((4 * ROWS, LATENT)), jnp.zeros((4 * OUTPUT_ROWS, LATENT))
    run = jax.jit(exchanged(4, "ragged_all_to_all"))
    text = run.lower(operand, output, where, output).as_text()
    assert text.count("@ragged_all_to_all") == 2
    assert "all_gather" not in text


def test_the_ragged_transport_lowers_with_the_real_collective_there_and_back(monkeypatch):
    """Two chunks, each sent and returned, forward and backward; only counts are gathered."""
    monkeypatch.setattr(exchange, "exchange_kind", lambda: "ragged_all_to_all")
    inputs = random_inputs(0, np.zeros((4, 3, 2), int))
    tree = {n: jnp.asarray(inputs[n], jnp.float32) for n in TREE}
    run = carrier.__wrapped__("ragged", 4, Capacity())
    text = run.lower(tree, jnp.asarray(inputs["ids"], jnp.int32), tree["x"]).as_text()
    assert text.count("@ragged_all_to_all") == 8
    gathered = [line for line in text.splitlines() if "stablehlo.all_gather" in line]
    assert len(gathered) == 1
    assert "xi32>" in gathered[0]
