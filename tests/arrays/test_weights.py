import math
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest

from oracles.bridge import model_config
from oracles.shape import Shape
from shoal.arrays.weights import Weight, WeightSpec, describe, initialize, part, specs_of, weight
from shoal.model.lm import describe_lm

SHAPE = Shape(num_layers=5, width=48, vocab=200)
STD = 0.5 / math.sqrt(SHAPE.width)


def drawn(shape=SHAPE, seed=0):
    config = model_config(shape, 8)
    assert config.init_std == pytest.approx(0.5 / math.sqrt(shape.width))
    described = describe_lm(config)
    values = jax.tree.leaves(initialize(described, std=config.init_std, seed=seed))
    return {spec.name: value for spec, value in zip(specs_of(described), values, strict=True)}


@pytest.fixture(scope="module")
def weights():
    return drawn()


def test_every_matrix_has_the_recipes_spread_whatever_its_depth_or_fan_in(weights):
    """0.98658: a normal cut at three standard deviations and not rescaled."""
    others = ("gain", "latent_norm", "router_bias", "head_gate", "conv_k", "attn_conv", "moe_conv")
    matrices = {name: w for name, w in weights.items() if not name.endswith(others)}
    assert {"embed", "head", "local.moe.router", "global.attn.w_o"} <= matrices.keys()
    for name, value in matrices.items():
        assert np.abs(value).max() <= 3 * STD * (1 + 1e-6), name
        noise = 5 / math.sqrt(2 * value.size)
        assert value.std() == pytest.approx(0.98658 * STD, rel=noise), name
        assert abs(value.mean()) < 5 * STD / math.sqrt(value.size), name


def test_gains_are_one_gates_and_biases_zero_and_convolutions_the_identity(weights):
    for name, value in weights.items():
        assert value.dtype == np.float32, name
        if name.endswith(("gain", "latent_norm")):
            np.testing.assert_array_equal(value, 1.0, err_msg=name)
        if name.endswith(("head_gate", "router_bias")):
            np.testing.assert_array_equal(value, 0.0, err_msg=name)
        if name.endswith(("conv_k", "attn_conv", "moe_conv")):
            np.testing.assert_array_equal(value[..., 0, :], 1.0, err_msg=name)
            np.testing.assert_array_equal(value[..., 1:, :], 0.0, err_msg=name)


def test_no_two_matrices_are_alike(weights):
    corners = [
        tuple(matrix[:2, :2].ravel())
        for value in weights.values()
        for matrix in value.reshape(-1, *value.shape[-2:])
        if value.ndim > 1 and value.std() > 0 and not np.isin(value, [0.0, 1.0]).all()
    ]
    assert len(set(corners)) == len(corners)


def test_a_matrix_does_not_depend_on_how_many_layers_and_experts_stand_beside_it(weights):
    more = drawn(replace(SHAPE, num_layers=9, num_experts=8))
    assert more["local.moe.experts.gate"].shape[:2] == (6, 8)
    assert weights["local.moe.experts.gate"].shape[:2] == (3, 6)
    for name, value in weights.items():
        if name.endswith(("router", "router_bias")):
            continue
        cut = tuple(slice(n) for n in value.shape)
        np.testing.assert_array_equal(more[name][cut], value, err_msg=name)


def test_the_seed_decides_every_drawn_value(weights):
    again, other = drawn(), drawn(seed=1)
    for name, value in weights.items():
        np.testing.assert_array_equal(again[name], value)
        if not np.isin(value, [0.0, 1.0]).all():
            assert (other[name] != value).mean() > 0.99, name


class Inner(eqx.Module):
    bank: Weight = weight("expert", "rows", "columns")
    scale: Weight = weight("columns", init="ones", group="adam", decay=True)


class Outer(eqx.Module):
    first_: Inner = part(layer="depth", columns="narrow")
    second: Inner = part()


SIZES = {"expert": 3, "rows": 4, "columns": 6, "narrow": 2, "depth": 7}


def test_a_description_names_stacks_and_sizes_every_weight_without_an_array():
    bank, scale, plain, _ = specs_of(describe(Outer, SIZES))
    assert bank == WeightSpec(
        name="first.bank",
        axes=("layer", "expert", "rows", "columns"),
        shape=(7, 3, 4, 2),
        init="normal",
        group="muonh",
        norm_axes=(-2, -1),
        decay=False,
    )
    assert bank.size == 168
    assert (scale.name, scale.shape, scale.group) == ("first.scale", (7, 2), "adam")
    assert scale.decay
    assert (plain.name, plain.shape) == ("second.bank", (3, 4, 6))


def test_a_shared_sphere_spans_the_experts_of_one_layer_and_no_more():
    bank, scale, plain, _ = specs_of(describe(Outer, SIZES, shared_sphere=True))
    assert bank.norm_axes == plain.norm_axes == (-3, -2, -1)
    assert scale.norm_axes == (-1,)


def test_a_field_that_declares_no_weight_is_our_mistake():
    class Bare(eqx.Module):
        value: Weight

    with pytest.raises(AssertionError, match=r"Bare\.value is not declared"):
        describe(Bare, {})
