import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import layers as oracle
from oracles.bridge import FLOAT32, assert_near, assert_slopes, quick_jit
from oracles.shape import packed_segments
from shoal.arrays.ops import rms_norm, unit_rms
from shoal.model.layers import GatedNorm, gated_norm, same_segment, short_conv

EPS = 1e-5
SEGMENTS = packed_segments([[1, 2, 6], [4, 5, 0]])


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(2, 9, 12)) * np.exp(rng.normal(size=(2, 9, 1))),
        "gain": 1.0 + 0.2 * rng.normal(size=12),
        "down": rng.normal(size=(12, 5)),
        "up": rng.normal(size=(5, 12)),
        "taps": rng.normal(size=(4, 12)),
        "mix": rng.normal(size=(2, 9, 12)),
    }


def oracle_conv(tree):
    rows = zip(tree["x"], SEGMENTS, strict=True)
    return np.stack([oracle.short_conv(x, tree["taps"], segments) for x, segments in rows])


def code_conv(tree):
    same = same_segment(jnp.asarray(SEGMENTS), 4)
    return short_conv(tree["taps"], tree["x"], same)


def oracle_gated(tree):
    return oracle.gated_norm(tree["x"], tree, EPS)


def code_gated(tree):
    return gated_norm(GatedNorm(tree["gain"], tree["down"], tree["up"]), tree["x"], EPS)


CASES = {
    "rms_norm": (
        lambda tree: rms_norm(tree["x"], tree["gain"], EPS),
        lambda tree: oracle.rms_norm(tree["x"], tree["gain"], EPS),
        ("x", "gain"),
    ),
    "unit_rms": (
        lambda tree: unit_rms(tree["x"], 1e-6),
        lambda tree: oracle.rms_norm(tree["x"], 1.0, 1e-6),
        ("x",),
    ),
    "gated_norm": (code_gated, oracle_gated, ("x", "gain", "down", "up")),
    "short_conv": (code_conv, oracle_conv, ("x", "taps")),
}


@pytest.mark.parametrize("name", CASES)
def test_layer_equals_the_oracle(name, inputs):
    code, expected, _ = CASES[name]
    tree = {key: jnp.asarray(value, jnp.float32) for key, value in inputs.items()}
    assert_near(quick_jit(code)(tree), expected(inputs), FLOAT32)


@pytest.mark.parametrize("name", CASES)
def test_layer_gradients_equal_finite_differences(name, inputs):
    code, expected, names = CASES[name]
    with jax.enable_x64(True):
        tree = {key: jnp.asarray(value) for key, value in inputs.items()}
        found = quick_jit(jax.grad(lambda t: jnp.sum(t["mix"] * code(t))))(tree)
        assert_slopes(
            lambda t: float(np.sum(t["mix"] * expected(t))),
            inputs,
            {key: found[key] for key in names},
            tolerance=1e-7,
        )


def test_norms_of_bfloat16_compute_in_float32_and_return_bfloat16(inputs):
    wide = jnp.asarray(inputs["x"], jnp.float32)
    low = wide.astype(jnp.bfloat16)
    gain = jnp.asarray(inputs["gain"], jnp.float32)
    found = quick_jit(lambda x: rms_norm(x, gain, EPS))(low)
    assert found.dtype == jnp.bfloat16
    # One rounding, of the result; half a unit in the last of 8 bits.
    expected = oracle.rms_norm(np.asarray(low, np.float64), inputs["gain"], EPS)
    gap = np.abs(np.asarray(found, np.float64) - expected)
    assert (gap <= 2**-8 * np.abs(expected)).all()


def test_the_norm_of_a_zero_row_is_zero_and_its_gradient_finite():
    x, gain = jnp.zeros((1, 2, 12)), jnp.ones(12)
    value, slope = jax.value_and_grad(lambda x: jnp.sum(rms_norm(x, gain, EPS)))(x)
    assert value == 0.0
    assert np.isfinite(slope).all()


def test_a_new_convolution_changes_nothing(inputs):
    x = jnp.asarray(inputs["x"], jnp.float32)
    taps = jnp.zeros((4, 12)).at[0].set(1.0)
    np.testing.assert_array_equal(short_conv(taps, x, same_segment(jnp.asarray(SEGMENTS), 4)), x)
