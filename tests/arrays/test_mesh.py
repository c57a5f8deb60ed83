"""The mesh: what cuts what, and that a wrong one is refused in words."""

import math

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.arrays.axes import TABLE, placed
from shoal.arrays.config import AXES, MeshConfig, batch_shards, degrees
from shoal.arrays.mesh import make_mesh, rests_at
from shoal.arrays.weights import specs_of
from shoal.model.lm import describe_lm
from shoal.recipes.flagship import flagship
from shoal.recipes.quickstart import quickstart


def test_minus_one_takes_what_is_left():
    config = MeshConfig(replica=-1, data=1, expert=64)
    assert degrees(config, 704) == {"replica": 11, "data": 1, "expert": 64, "context": 1}
    assert degrees(MeshConfig(), 8) == {"replica": 1, "data": 8, "expert": 1, "context": 1}
    assert degrees(MeshConfig(), 1) == dict.fromkeys(AXES, 1)


@given(st.tuples(*[st.integers(1, 4)] * 4), st.integers(0, 3))
def test_the_free_axis_always_makes_up_the_devices(given_degrees, free):
    named = dict(zip(AXES, given_degrees, strict=True))
    count = math.prod(given_degrees)
    found = degrees(MeshConfig(**{**named, AXES[free]: -1}), count)
    assert found == named == degrees(MeshConfig(**named), count)
    assert batch_shards(found) * found["context"] == count


@pytest.mark.parametrize(
    ("config", "devices", "said"),
    [
        ({"data": 3}, 8, "has 3 devices, there are 8; set one degree to -1"),
        ({"data": -1, "expert": 3}, 8, "needs a multiple of 3 devices, there are 8"),
        ({"data": -1, "expert": 16}, 8, "needs a multiple of 16 devices"),
    ],
)
def test_degrees_that_do_not_make_up_the_devices_are_refused(config, devices, said):
    with pytest.raises(ValueError, match=said):
        degrees(MeshConfig(**config), devices)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"expert": 0}, "mesh.expert=0 must be 1 or more, or -1"),
        ({"context": -2}, "mesh.context=-2 must be"),
        ({"replica": -1}, "mesh.replica and mesh.data are both -1"),
    ],
)
def test_a_degree_that_means_nothing_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        MeshConfig(**config)


def test_every_logical_axis_of_the_model_stands_in_the_table_and_every_row_is_used():
    used = {axis for spec in specs_of(describe_lm(quickstart().model)) for axis in spec.axes}
    assert used == set(TABLE)


def test_the_flagship_is_cut_as_the_run_was():
    """Experts over the rack, other matrices over all of it, vectors whole, racks are copies."""
    degree = degrees(flagship().mesh, 704)
    for spec in specs_of(describe_lm(flagship().model)):
        cut = placed(spec.axes, spec.shape, degree)
        shards = math.prod(degree[axis] for axes in cut for axis in axes)
        assert "replica" not in {axis for axes in cut for axis in axes}
        if "expert" in spec.axes:
            assert cut[1] == ("expert",)
            assert cut[2:] == ((), ())
        assert shards == (64 if {"embed", "expert"} & set(spec.axes) else 1), spec.name


def test_a_bank_is_never_cut_along_its_matrices_and_data_cuts_it_where_it_divides():
    degree = {"replica": 1, "data": 2, "expert": 4, "context": 1}
    axes = ("layer", "expert", "latent", "expert_ffn")
    assert placed(axes, (3, 8, 4, 4), degree) == ((), ("expert", "data"), (), ())
    assert placed(axes, (3, 12, 4, 4), degree) == ((), ("expert",), (), ())


def test_what_does_not_divide_stays_whole():
    degree = {"replica": 2, "data": 3, "expert": 2, "context": 1}
    assert placed(("embed", "query"), (34, 8), degree) == ((), ())
    assert placed(("embed", "query"), (33, 8), degree) == (("data",), ())
    assert placed(("embed", "query"), (36, 8), degree) == (("data", "expert"), ())


def test_a_mesh_keeps_axes_of_one_device_and_its_places_are_those_of_the_table():
    degree = {"replica": 1, "data": 2, "expert": 2, "context": 1}
    mesh = make_mesh(degree, jax.devices()[:4])
    assert mesh.axis_names == AXES
    assert dict(mesh.shape) == degree
    for spec in specs_of(describe_lm(quickstart().model)):
        place = rests_at(spec, mesh)
        cut = placed(spec.axes, spec.shape, degree)
        parts = [math.prod(degree[axis] for axis in axes) for axes in cut]
        shape = tuple(size // by for size, by in zip(spec.shape, parts, strict=True))
        assert place.shard_shape(spec.shape) == shape
        assert rests_at(spec, mesh, on_host=True).memory_kind == "pinned_host"
