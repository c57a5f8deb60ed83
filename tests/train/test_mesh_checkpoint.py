"""A checkpoint knows nothing of the mesh, the transport or the memory that it was written from."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import jax
import numpy as np
import pytest

from meshes import EVEN, Setup, jnp_tree, walk, walk_from
from shoal.moe.config import MoEConfig
from shoal.train import checkpoint
from shoal.train.digest import census, leaves_of

LINK = {"link": "of the record"}
MESHES = {
    "8 devices, experts": Setup(degree=(1, 1, 8, 1), moe=MoEConfig(transport="pooled")),
    "4 devices, all three, on host": Setup(degree=(1, 2, 2, 1), memory="state_on_host"),
    "2 devices, data": Setup(degree=(1, 2, 1, 1), memory="optimizer_on_host"),
    "1 device": Setup(),
    "8 devices, replicas": Setup(degree=(2, 2, 2, 1), moe=MoEConfig(transport="ragged")),
    "6 devices, which divide little": Setup(degree=(1, 3, 2, 1)),
}


@cache
def numbers(setup):
    """A state of a run in which every element is another number and every expert its own."""
    drawn = jax.tree.map(np.array, setup.initial())
    rng = np.random.default_rng(1)
    filled = jax.tree.map(lambda a: rng.integers(-999, 999, a.shape).astype(a.dtype), drawn)
    for stack in (filled.params.local, filled.params.global_):
        for bank in (stack.moe.experts.gate, stack.moe.experts.up, stack.moe.experts.down):
            bank[...] = np.arange(1, bank.shape[1] + 1).reshape(1, -1, 1, 1)
    return filled._replace(step=np.int32(3))


def placed(setup):
    """The same numbers on a mesh."""
    return jax.tree.map(
        lambda value, like: jax.device_put(value, like.sharding) if like.sharding else value,
        jnp_tree(numbers(Setup())),
        setup.like(),
    )


def assert_is_the_state(state, setup):
    expected = leaves_of(numbers(Setup()))
    found, like = leaves_of(state), leaves_of(setup.like())
    assert found.keys() == expected.keys() == like.keys()
    for path, leaf in found.items():
        assert np.asarray(leaf).tobytes() == np.asarray(expected[path]).tobytes(), path
        assert leaf.dtype == expected[path].dtype
        if like[path].sharding is not None:
            assert leaf.sharding.memory_kind == like[path].sharding.memory_kind, path
            assert leaf.sharding.is_equivalent_to(like[path].sharding, leaf.ndim), path
    for stack in (state.params.local, state.params.global_):
        for expert in range(EVEN.num_experts):
            gate = np.asarray(stack.moe.experts.gate)[:, expert]
            np.testing.assert_array_equal(gate, expert + 1.0)


@pytest.mark.parametrize(("one", "other"), [*pairwise(MESHES), ("1 device", "8 devices, experts")])
def test_what_one_mesh_saves_another_restores_to_the_bit(one, other, tmp_path):
    checkpoint.save(tmp_path, placed(MESHES[one]), link=LINK, facts={})
    like = MESHES[other].like()
    assert_is_the_state(checkpoint.restore(tmp_path, 3, like), MESHES[other])
    manifest = checkpoint.manifest_of(tmp_path, 3)
    assert manifest["leaves"] == census(numbers(Setup()))
    masters = [e["dtype"] for path, e in manifest["leaves"].items() if path.startswith("params")]
    assert set(masters) == {"float32"}


def test_the_initial_weights_are_the_same_on_every_mesh():
    expected = census(Setup().initial())
    for setup in MESHES.values():
        assert census(setup.initial()) == expected


def test_a_run_goes_on_from_one_mesh_on_another_as_if_nothing_had_been(tmp_path):
    first = Setup(degree=(2, 2, 2, 1))
    moe = MoEConfig(transport="ragged", capacity_receiver=8.0)
    second = Setup(degree=(1, 1, 2, 1), moe=moe, memory="optimizer_on_host")
    straight = walk(first, 4)
    begun = walk(first, 2).state
    checkpoint.save(tmp_path, jnp_tree(begun), link=LINK, facts={})
    state = checkpoint.restore(tmp_path, 2, second.like())
    went_on = walk_from(second, state, 2, 2)
    for found, expected in zip(went_on.metrics, straight.metrics[2:], strict=True):
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
        np.testing.assert_allclose(found["grad_norm"], expected["grad_norm"], rtol=1e-4)


@pytest.mark.slow
def test_where_the_state_rests_changes_no_bit():
    device, optimizer, everything = (
        walk(replace(MESHES["2 devices, data"], memory=memory), 2)
        for memory in ("device", "optimizer_on_host", "state_on_host")
    )
    expected = census(device.state)
    assert census(optimizer.state) == expected
    assert census(everything.state) == expected


def test_a_state_without_a_leaf_is_never_taken_for_a_whole_one(tmp_path):
    setup = MESHES["2 devices, data"]
    state = placed(setup)
    checkpoint.save(tmp_path, state._replace(grid=None), link=LINK, facts={})
    with pytest.raises(ValueError, match="lacks grid"):
        checkpoint.restore(tmp_path, 3, setup.like())


def test_padding_is_no_state(tmp_path):
    """Matrices are padded for the optimizer alone: the checkpoint is as large as the model."""
    checkpoint.save(tmp_path, placed(MESHES["6 devices, which divide little"]), link=LINK, facts={})
    leaves = checkpoint.manifest_of(tmp_path, 3)["leaves"].values()
    saved = sum(int(np.prod(leaf["shape"])) for leaf in leaves)
    assert saved == sum(leaf.size for leaf in jax.tree.leaves(numbers(Setup())))
