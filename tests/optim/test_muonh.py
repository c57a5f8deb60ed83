from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import optim as oracle
from oracles.bridge import FLOAT32, assert_near, quick_jit
from shoal.optim.hyperball import hyperball_step, sphere_norm
from shoal.optim.muonh import muon_direction, newton_schulz, orthogonalize

SHAPES = {"wide": (3, 5, 9), "tall": (3, 9, 5), "square": (7, 7), "banks": (2, 3, 5, 9)}


@pytest.fixture(scope="module")
def leaves():
    rng = np.random.default_rng(0)
    scale = {name: np.exp(rng.normal(size=(*s[:-2], 1, 1))) for name, s in SHAPES.items()}
    return {name: rng.normal(size=s) * scale[name] for name, s in SHAPES.items()}


def oracle_orthogonal(leaf):
    out = np.zeros_like(leaf)
    for index in np.ndindex(*leaf.shape[:-2]):
        out[index] = oracle.newton_schulz(leaf[index])
    return out


def test_each_matrix_of_each_leaf_is_orthogonalized_by_itself(leaves):
    """Wide, tall and stacked leaves of one shape share a batch and must not be mixed up."""
    arrays = [jnp.asarray(leaf, jnp.float32) for leaf in leaves.values()]
    found = quick_jit(partial(orthogonalize, dtype=jnp.float32))(arrays)
    for name, result in zip(leaves, found, strict=True):
        assert_near(result, oracle_orthogonal(leaves[name]), FLOAT32, name)


def test_float64_newton_schulz_equals_the_oracle_to_the_last_digits(leaves):
    with jax.enable_x64(True):
        found = quick_jit(partial(newton_schulz, dtype=jnp.float64))(jnp.asarray(leaves["wide"]))
        assert_near(found, oracle_orthogonal(leaves["wide"]), 1e-12)


def test_bfloat16_products_keep_the_direction(leaves):
    low = quick_jit(partial(newton_schulz, dtype=jnp.bfloat16))(
        jnp.asarray(leaves["wide"], jnp.float32)
    )
    assert low.dtype == jnp.float32
    assert_near(low, oracle_orthogonal(leaves["wide"]), 0.05)


def test_momentum_is_nesterov_without_a_factor_for_ten_steps(leaves):
    transform = muon_direction(0.95, jnp.float64)
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        params = {name: jnp.asarray(leaf) for name, leaf in leaves.items()}
        state = transform.init(params)
        update = quick_jit(transform.update)
        buffers = {name: np.zeros_like(leaf) for name, leaf in leaves.items()}
        for _ in range(10):
            gradients = {name: rng.normal(size=leaf.shape) for name, leaf in leaves.items()}
            found, state = update({n: jnp.asarray(g) for n, g in gradients.items()}, state)
            for name, gradient in gradients.items():
                buffers[name] = 0.95 * buffers[name] + gradient
                expected = oracle_orthogonal(0.95 * buffers[name] + gradient)
                assert_near(found[name], expected, 1e-10, name)
                assert_near(state.buffer[name], buffers[name], 1e-12, name)


@pytest.mark.parametrize("axes", [(-2, -1), (-3, -2, -1)])
def test_a_hyperball_step_equals_the_oracle_on_the_sphere_of_its_axes(axes, leaves):
    weight = leaves["banks"]
    direction = np.random.default_rng(2).normal(size=weight.shape)
    expected = np.zeros_like(weight)
    for index in np.ndindex(*weight.shape[: -len(axes)]):
        expected[index] = oracle.hyperball(weight[index], direction[index], 0.1)
    args = [jnp.asarray(a, jnp.float32) for a in (weight, direction, 0.1)]
    found = quick_jit(partial(hyperball_step, axes=axes))(*args)
    assert_near(found, expected, FLOAT32)


def test_norms_of_bfloat16_are_summed_in_float32():
    """4,096 ones: a bfloat16 sum stops at 256."""
    norm = quick_jit(partial(sphere_norm, axes=(-2, -1)))(jnp.ones((64, 64), jnp.bfloat16))
    assert norm.dtype == jnp.float32
    assert norm.item() == 64.0


def test_a_zero_gradient_leaves_the_weight_where_it_is():
    weight = jnp.asarray(np.random.default_rng(3).normal(size=(2, 5, 9)), jnp.float32)
    direction = quick_jit(partial(newton_schulz, dtype=jnp.float32))(jnp.zeros((2, 5, 9)))
    np.testing.assert_array_equal(direction, 0.0)
    moved = quick_jit(partial(hyperball_step, axes=(-2, -1)))(weight, direction, jnp.asarray(0.1))
    assert_near(moved, np.asarray(weight), 1e-6)


def test_a_zero_weight_stays_zero_and_finite():
    zero = jnp.zeros((5, 9))
    step = quick_jit(partial(hyperball_step, axes=(-2, -1)))
    np.testing.assert_array_equal(step(zero, zero + 1.0, jnp.asarray(0.1)), 0.0)
