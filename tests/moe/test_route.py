from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import moe as oracle
from oracles.bridge import FLOAT32, assert_near, assert_slopes, quick_jit
from shoal.moe.route import balancing_bias, count_margins, route, router_logits

NUM_EXPERTS, TOP_K = 6, 2


@quick_jit
def run(logits, bias):
    return route(logits, bias, top_k=TOP_K, scale=2.5)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return {
        "logits": rng.normal(size=(40, NUM_EXPERTS)),
        "bias": 2.0 * rng.normal(size=NUM_EXPERTS),
        "mix": rng.normal(size=(40, TOP_K)),
    }


def test_routes_equal_the_oracle_under_a_strong_bias(inputs):
    logits, bias = inputs["logits"], inputs["bias"]
    expected = oracle.route(logits, bias, TOP_K)
    unbiased = oracle.route(logits, np.zeros(NUM_EXPERTS), TOP_K)
    assert (expected.experts != unbiased.experts).any(axis=1).mean() > 0.3
    found = run(jnp.asarray(logits, jnp.float32), jnp.asarray(bias, jnp.float32))
    np.testing.assert_array_equal(found.expert_ids, expected.experts)
    assert_near(found.weights, expected.weights, FLOAT32)
    assert_near(found.margins, expected.margins, FLOAT32)


def test_weights_do_not_know_the_bias_that_chose_their_experts(inputs):
    """A bias that keeps the chosen experts keeps every weight to the bit."""
    logits = jnp.asarray(inputs["logits"], jnp.float32).at[:, :TOP_K].add(10.0)
    plain, pushed = (
        run(logits, jnp.zeros(NUM_EXPERTS).at[:TOP_K].set(bias)) for bias in (0.0, 3.0)
    )
    np.testing.assert_array_equal(plain.expert_ids, pushed.expert_ids)
    np.testing.assert_array_equal(plain.weights, pushed.weights)


def test_weights_sum_to_the_scale(inputs):
    found = run(jnp.asarray(inputs["logits"], jnp.float32), jnp.zeros(NUM_EXPERTS))
    np.testing.assert_allclose(found.weights.sum(axis=1), 2.5, rtol=1e-6)


def test_only_logits_of_chosen_experts_get_a_gradient_and_it_is_the_oracles(inputs):
    bias = inputs["bias"]

    def scalar(tree):
        taken = oracle.route(tree["logits"], bias, TOP_K)
        return float(np.sum(tree["mix"] * taken.weights))

    with jax.enable_x64(True):
        logits, mix = jnp.asarray(inputs["logits"]), jnp.asarray(inputs["mix"])
        slopes = quick_jit(
            jax.grad(
                lambda s, b: (
                    jnp.sum(mix * (found := route(s, b, top_k=TOP_K, scale=2.5)).weights)
                    + jnp.sum(found.margins)
                ),
                argnums=(0, 1),
            )
        )(logits, jnp.asarray(bias))
        assert_slopes(scalar, inputs, {"logits": slopes[0]}, tolerance=1e-7)
    assert not np.any(np.asarray(slopes[1]))
    chosen = np.zeros((40, NUM_EXPERTS), bool)
    np.put_along_axis(chosen, oracle.route(inputs["logits"], bias, TOP_K).experts, True, axis=1)
    np.testing.assert_array_equal(np.asarray(slopes[0]) != 0, chosen)


def test_logits_of_ten_thousand_route_as_the_oracle_with_finite_gradients():
    rng = np.random.default_rng(1)
    logits = rng.choice([-1e4, -9e3, -1.0, 1.0, 9e3, 1e4], size=(40, NUM_EXPERTS))
    logits += rng.normal(size=logits.shape)
    low = jnp.asarray(logits, jnp.float32)
    wide = np.asarray(low, np.float64)
    expected = oracle.route(wide, np.zeros(NUM_EXPERTS), TOP_K)
    found = run(low, jnp.zeros(NUM_EXPERTS))
    np.testing.assert_array_equal(found.expert_ids, expected.experts)
    assert_near(found.weights, expected.weights, FLOAT32)
    assert_near(found.margins, expected.margins, FLOAT32)

    def first_weights(logits):
        return jnp.sum(route(logits, jnp.zeros(NUM_EXPERTS), top_k=TOP_K, scale=2.5).weights[:, 0])

    slopes = quick_jit(jax.grad(first_weights))(low)
    assert np.isfinite(slopes).all()


def test_equal_logits_choose_different_experts():
    found = run(jnp.zeros((3, NUM_EXPERTS)), jnp.zeros(NUM_EXPERTS))
    assert all(len(set(row)) == TOP_K for row in np.asarray(found.expert_ids).tolist())
    np.testing.assert_array_equal(found.margins, 0.0)
    np.testing.assert_allclose(found.weights, 1.25)


def test_router_logits_are_float32_of_float32_operands_unless_the_quirk_is_on():
    rng = np.random.default_rng(2)
    x, router = rng.normal(size=(16, 12)), rng.normal(size=(12, NUM_EXPERTS))
    args = (jnp.asarray(x, jnp.float32), jnp.asarray(router, jnp.float32))
    exact = quick_jit(partial(router_logits, round_bf16=False))(*args)
    assert exact.dtype == jnp.float32
    assert_near(exact, x @ router, FLOAT32)
    rounded = quick_jit(partial(router_logits, round_bf16=True))(*args)
    assert rounded.dtype == jnp.float32
    np.testing.assert_array_equal(rounded.astype(jnp.bfloat16).astype(jnp.float32), rounded)
    assert_near(rounded, x @ router, 0.02)
    assert (np.asarray(rounded) != np.asarray(exact)).any()


def test_bfloat16_activations_still_give_unrounded_float32_logits():
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(16, 12)), jnp.bfloat16)
    router = jnp.asarray(rng.normal(size=(12, NUM_EXPERTS)), jnp.float32)
    found = quick_jit(partial(router_logits, round_bf16=False))(x, router)
    assert found.dtype == jnp.float32
    product = np.asarray(x, np.float64) @ np.asarray(router.astype(jnp.bfloat16), np.float64)
    assert_near(found, product, FLOAT32)


def counted(margins, num_bins=oracle.HISTOGRAM_BINS, grid=None, real=None):
    real = jnp.ones(len(margins), bool) if real is None else real
    return count_margins(margins, real, grid=grid, num_bins=num_bins, mesh=None)


@partial(quick_jit, static_argnames="num_bins")
def balance(margins, num_bins=oracle.HISTOGRAM_BINS):
    return balancing_bias(counted(margins, num_bins), top_k=TOP_K)


def skewed_margins(num_tokens, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_tokens, NUM_EXPERTS)) * np.linspace(
        0.3, 3, NUM_EXPERTS
    ) + rng.normal(size=NUM_EXPERTS)


@pytest.mark.parametrize("num_tokens", [7, 500])
@pytest.mark.parametrize("num_bins", [16, oracle.HISTOGRAM_BINS])
def test_the_bias_equals_the_histogram_oracle(num_tokens, num_bins):
    margins = skewed_margins(num_tokens, 4)
    expected = oracle.bias_from_beta(oracle.histogram_beta(margins, TOP_K, num_bins))
    with jax.enable_x64(True):
        found = balance(jnp.asarray(margins), num_bins)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_tokens", [7, 500])
def test_the_bias_is_within_a_bin_of_the_exact_quantile_and_has_mean_zero(num_tokens):
    for seed in range(5):
        margins = skewed_margins(num_tokens, seed)
        _, width = oracle.histogram_grid(margins)
        found = np.asarray(balance(jnp.asarray(margins, jnp.float32)), np.float64)
        exact = oracle.exact_beta(margins, TOP_K)
        # Up to their common mean, since the bias has none; float32 rounds the grid too.
        gap = -found - (exact - exact.mean())
        assert np.abs(gap).max() <= 2 * width + 1e-5
        assert abs(found.mean()) <= 1e-6


def test_load_is_even_within_three_steps_on_skewed_logits():
    rng = np.random.default_rng(5)
    num_experts, num_tokens = 16, 3000
    skew = np.linspace(-2, 2, num_experts)
    bias, variation = jnp.zeros(num_experts), []
    routed = quick_jit(partial(route, top_k=TOP_K, scale=2.5))
    for _ in range(4):
        logits = jnp.asarray(rng.normal(size=(num_tokens, num_experts)) + skew, jnp.float32)
        taken = routed(logits, bias)
        load = np.bincount(np.asarray(taken.expert_ids).ravel(), minlength=num_experts)
        variation.append(load.std() / load.mean())
        bias = balance(taken.margins)
    assert variation[0] > 1.0
    assert max(variation[2:]) < 0.1


def test_the_mean_of_the_bias_stays_zero_for_a_thousand_steps():
    rng = np.random.default_rng(6)
    draws = jnp.asarray(rng.normal(size=(20, 32, NUM_EXPERTS)), jnp.float32)

    @quick_jit
    def walk(draws):
        def step(bias, index):
            taken = route(draws[index % 20], bias, top_k=TOP_K, scale=2.5)
            bias = balancing_bias(counted(taken.margins, 100), top_k=TOP_K)
            return bias, jnp.mean(bias)

        return jax.lax.scan(step, jnp.zeros(NUM_EXPERTS), jnp.arange(1000))

    _, means = walk(draws)
    assert np.abs(means).max() < 1e-6


@pytest.mark.parametrize(
    "margins",
    [
        np.zeros((40, NUM_EXPERTS)),
        np.where(np.arange(NUM_EXPERTS) == 2, 1e4, -1e4) * np.ones((40, 1)),
        np.zeros((1, NUM_EXPERTS)),
    ],
    ids=["all equal", "one expert wants all", "one token"],
)
def test_degenerate_margins_give_a_finite_bias_of_mean_zero(margins):
    found = np.asarray(balance(jnp.asarray(margins, jnp.float32)))
    assert np.isfinite(found).all()
    assert abs(found.mean()) <= 1e-3 * max(1.0, np.abs(found).max()) * 1e-3
