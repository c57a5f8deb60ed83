"""The digest of a state: the same wherever its parts stand, another for any other bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shoal.arrays.config import AXES
from shoal.arrays.mesh import make_mesh
from shoal.train.digest import census, digest

MESH = make_mesh(dict(zip(AXES, (2, 2, 2, 1), strict=True)), jax.devices()[:8])
CUTS = (P(), P("expert"), P(("data", "expert"), None), P(None, "data"), P("replica", "expert"))


def values(dtype="float32", shape=(8, 6)):
    return np.random.default_rng(3).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_a_leaf_has_one_sum_wherever_it_stands(cut, memory):
    place = NamedSharding(MESH, cut, memory_kind=memory)
    for dtype in ("float32", "int32"):
        host = values(dtype)
        assert census({"w": jax.device_put(host, place)}) == census({"w": host})


def test_bits_count_not_values():
    odd = {"w": np.array([0.0, np.nan], np.float32)}
    other = {"w": np.array([-0.0, np.nan], np.float32)}
    payload = {"w": odd["w"].copy()}
    payload["w"].view(np.uint32)[1] |= 1
    assert len({digest(census(tree)) for tree in (odd, other, payload)}) == 3
    bfloat16 = jnp.asarray([0.5, 1.5], jnp.bfloat16)
    assert census({"w": bfloat16})["w"]["dtype"] == "bfloat16"


def test_elements_that_change_places_change_the_sum():
    host = values()
    swapped = host.copy()
    swapped[[1, 4]] = swapped[[4, 1]]
    assert census({"w": host}) != census({"w": swapped})
    assert census({"w": host}) != census({"w": host.T.copy()})


@given(st.integers(0, 47), st.integers(0, 31))
def test_one_flipped_bit_changes_both_halves_of_the_sum(place, bit):
    host = values()
    flipped = host.copy()
    flipped.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << bit)
    one, other = (census({"w": a})["w"]["sum"] for a in (host, flipped))
    assert one[:16] != other[:16]
    assert one[16:] != other[16:]


def test_a_leaf_larger_than_a_piece_is_summed_whole():
    host = np.arange((1 << 20) + 3, dtype=np.float32)
    changed = host.copy()
    changed[-1] += 1.0
    rows = np.arange(3 * (1 << 19), dtype=np.float32).reshape(-1, 1 << 18)
    assert census({"w": host}) != census({"w": changed})
    assert census({"w": jax.device_put(rows, NamedSharding(MESH, P(("replica",))))}) == census(
        {"w": rows}
    )


def test_the_parts_of_several_processes_are_added_up():
    class Two:
        """Both halves of a leaf, as two processes would hold them."""

        leader = True

        def gather(self, value, timeout_s=0.0):
            return [value, {"w": census({"w": np.zeros((2, 2), np.float32)})["w"]["sum"]}]

        def barrier(self, name, timeout_s=0.0): ...
        def from_leader(self, make, timeout_s=0.0): ...
        def share(self, items): ...
        def stops(self, asked, step, what="stop"): ...

    one = census({"w": np.zeros((2, 2), np.float32)})["w"]["sum"]
    both = census({"w": np.zeros((2, 2), np.float32)}, Two())["w"]["sum"]
    halves = [(int(text[:16], 16), int(text[16:], 16)) for text in (one, both)]
    assert halves[1] == tuple(2 * half % 2**64 for half in halves[0])
