"""The oracles against published numbers and each other: what is wrong here misleads everything."""

import math

import numpy as np
import pytest

from oracles import lm, moe, optim
from oracles.attention import context_qk_scale, exclude_self, visible
from oracles.differences import finite_difference, leaf, leaf_difference, paths
from oracles.layers import rotate_half_of_dims, short_conv
from oracles.shape import Shape, is_global, packed_segments, random_params

PUBLISHED = [
    # width, batch in sequences of 4,096, steps, muon, adam, eps, beta2: recipe.md 8.5
    (768, 1024, 11_420, 0.01582, 0.003651, 1.03e-15, 0.9685),
    (1024, 2048, 15_276, 0.01441, 0.003326, 1.20e-15, 0.95),
    (1536, 6144, 15_128, 0.01489, 0.003436, 1.19e-15, 0.95),
    (2048, 11_264, 20_072, 0.01342, 0.003097, 1.37e-15, 0.95),
    (6144, 11_264, 390_251, 0.003290, 0.0007593, 6.04e-15, 0.95),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"d{row[0]}")
def test_the_laws_give_the_published_rates(row):
    width, batch, steps, muon, adam, eps, beta2 = row
    tokens_per_step = batch * 4096
    law = (steps * tokens_per_step, width, tokens_per_step)
    assert optim.muon_rate_law(*law) == pytest.approx(muon, rel=1e-3)
    assert optim.adam_rate_law(*law) == pytest.approx(adam, rel=1e-3)
    assert optim.eps_rule(steps) == pytest.approx(eps, rel=5e-3)
    assert optim.beta2_rule(tokens_per_step) == pytest.approx(beta2, abs=5e-5)


def test_the_scale_rule_gives_the_published_context_values():
    found = [round(context_qk_scale(n * 1024), 2) for n in (4, 8, 16, 64, 256)]
    assert found == [1.3, 1.39, 1.48, 1.66, 1.84]


def test_decay_gives_the_published_coefficient_when_switched_on():
    assert optim.decay_coefficient(58_014, 390_251) == pytest.approx(0.01703, abs=5e-6)


def test_the_schedule_starts_at_zero_peaks_after_warmup_and_ends_at_a_twentieth():
    assert optim.schedule(0, 390_251) == 0.0
    assert optim.schedule(3_902, 390_251) == 1.0
    assert optim.schedule(390_251, 390_251) == pytest.approx(0.05)


def test_twelve_of_forty_eight_layers_are_global_and_the_last_always_is():
    assert [i for i in range(48) if is_global(i, 48)] == list(range(3, 48, 4))
    assert [i for i in range(6) if is_global(i, 6)] == [3, 5]


def test_rotation_keeps_lengths_is_relative_and_leaves_the_second_half():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 8))
    near = rotate_half_of_dims(q, 3, 1e4) @ rotate_half_of_dims(k, 1, 1e4)
    far = rotate_half_of_dims(q, 1003, 1e4) @ rotate_half_of_dims(k, 1001, 1e4)
    assert near == pytest.approx(far)
    turned = rotate_half_of_dims(q, 7, 1e4)
    np.testing.assert_array_equal(turned[4:], q[4:])
    assert turned[0] == pytest.approx(q[0] * math.cos(7) - q[1] * math.sin(7))
    assert turned[2] == pytest.approx(q[2] * math.cos(0.07) - q[3] * math.sin(0.07))


def test_a_window_of_five_counts_the_query_itself():
    segments = np.zeros(12, np.int32)
    assert [s for s in range(12) if visible(9, s, segments, 5)] == [5, 6, 7, 8, 9]


def test_the_convolution_keeps_the_own_token_and_drops_the_other_document():
    x, taps = np.ones((5, 1)), np.array([[1.0], [10.0], [100.0], [1000.0]])
    found = short_conv(x, taps, np.array([0, 0, 0, 1, 1]))[:, 0]
    np.testing.assert_array_equal(found, [1.0, 11.0, 111.0, 1.0, 11.0])


def test_the_self_value_is_excluded():
    y, v = np.random.default_rng(0).normal(size=(2, 8))
    assert abs(exclude_self(y, v) @ v) < 1e-5


def test_weights_ignore_the_bias_and_sum_to_two_and_a_half():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20, 6))
    plain = moe.route(logits, np.zeros(6), 2)
    pushed = moe.route(logits, np.array([50.0, 0, 0, 0, 0, 0]), 2)
    assert (pushed.experts[:, 0] == 0).all()
    np.testing.assert_allclose(pushed.weights.sum(axis=1), 2.5, rtol=1e-7)
    np.testing.assert_allclose(plain.weights.sum(axis=1), 2.5, rtol=1e-7)
    scores = 1 / (1 + np.exp(-logits[3, pushed.experts[3]]))
    np.testing.assert_allclose(pushed.weights[3], 2.5 * scores / scores.sum(), rtol=1e-7)


def test_the_histogram_is_within_one_bin_of_the_exact_quantile():
    margins = np.random.default_rng(0).normal(size=(600, 6)) * np.linspace(0.5, 3, 6)
    for bins in (100, moe.HISTOGRAM_BINS):
        _, width = moe.histogram_grid(margins, bins)
        gap = np.abs(moe.histogram_beta(margins, 2, bins) - moe.exact_beta(margins, 2))
        assert gap.max() <= width


@pytest.mark.parametrize("beta", [moe.exact_beta, moe.histogram_beta])
def test_skewed_load_is_even_after_three_steps(beta):
    rng = np.random.default_rng(0)
    skew, bias, variation = np.linspace(-2, 2, 16), np.zeros(16), []
    for _ in range(4):
        taken = moe.route(rng.normal(size=(1500, 16)) + skew, bias, 2)
        load = np.bincount(taken.experts.ravel(), minlength=16)
        variation.append(load.std() / load.mean())
        bias = moe.bias_from_beta(beta(taken.margins, 2))
        assert abs(bias.mean()) < 1e-12
    assert variation[0] > 1.0
    assert variation[3] < 0.1


def test_expert_gradients_by_hand_equal_finite_differences():
    rng = np.random.default_rng(1)
    params = random_params(Shape(), 1)["layers"][0]["moe"]["experts"]
    rows, cotangent = rng.normal(size=(2, 9, 10))
    sizes = np.array([3, 0, 1, 2, 0, 2])  # one row has no expert
    grads = moe.expert_gradients(rows, sizes, params, cotangent)

    def scalar(tree):
        return float(np.sum(cotangent * moe.grouped_swiglu(tree["rows"], sizes, tree)))

    tree = {**params, "rows": rows}
    for name, value in tree.items():
        direction = rng.normal(size=value.shape)
        expected = finite_difference(scalar, tree, {name: direction})
        assert np.sum(grads[name] * direction) == pytest.approx(expected, rel=1e-7)


def test_grouped_experts_equal_one_token_at_a_time():
    rng = np.random.default_rng(2)
    params = random_params(Shape(), 2)["layers"][0]["moe"]["experts"]
    z, chosen = rng.normal(size=(8, 10)), rng.integers(0, 6, size=(8, 1))
    order = np.argsort(chosen[:, 0], kind="stable")
    sizes = np.bincount(chosen[:, 0], minlength=6)
    grouped = moe.grouped_swiglu(z[order], sizes, params)
    np.testing.assert_allclose(grouped, moe.routed(z, chosen, np.ones((8, 1)), params)[order])


def test_newton_schulz_brings_singular_values_near_one():
    matrix = np.random.default_rng(0).normal(size=(9, 5))
    values = np.linalg.svd(optim.newton_schulz(matrix), compute_uv=False)
    assert values.min() > 0.8
    assert values.max() < 1.2


@pytest.mark.parametrize("shared", [False, True])
def test_muonh_keeps_the_norm_of_its_sphere(shared):
    rng = np.random.default_rng(0)
    weight, buffer = rng.normal(size=(2, 3, 5, 4)), np.zeros((2, 3, 5, 4))
    axes = (-3, -2, -1) if shared else (-2, -1)
    before = np.sqrt(np.sum(weight**2, axis=axes))
    apart = np.sqrt(np.sum(weight**2, axis=(-2, -1)))
    for _ in range(30):
        gradient = rng.normal(size=weight.shape)
        weight, buffer = optim.muonh(weight, gradient, buffer, 0.05, shared_sphere=shared)
    np.testing.assert_allclose(np.sqrt(np.sum(weight**2, axis=axes)), before, rtol=1e-12)
    moved = np.abs(np.sqrt(np.sum(weight**2, axis=(-2, -1))) - apart).max()
    assert (moved > 1e-3) == shared


def test_one_document_does_not_see_another():
    shape = Shape()
    params = random_params(shape, 3)
    rng = np.random.default_rng(3)
    segments = packed_segments([[6, 10]])
    tokens = rng.integers(0, shape.vocab, size=(1, 16))
    other = tokens.copy()
    other[0, :6] = (other[0, :6] + 1) % shape.vocab
    first, second = (lm.lm(params, t, segments, shape)[0] for t in (tokens, other))
    np.testing.assert_array_equal(first[0, 6:], second[0, 6:])
    assert np.abs(first[0, :6] - second[0, :6]).min(axis=-1).max() > 0


def test_dead_stored_heads_change_nothing():
    shape = Shape(num_layers=1, stored_global_kv_heads=2)
    params = random_params(shape, 4)
    tokens = np.arange(8)[None]
    segments = np.zeros((1, 8), np.int32)
    before, _ = lm.lm(params, tokens, segments, shape)
    for name in ("w_k", "w_v"):
        params["layers"][0]["attn"][name][:, shape.head_dim :] = 9.0
    after, _ = lm.lm(params, tokens, segments, shape)
    np.testing.assert_array_equal(before, after)


def test_the_loss_of_equal_logits_is_known():
    found = lm.loss_from_logits(np.zeros((1, 3, 8)), np.array([[1, 2, 3]]))
    assert found.cross_entropy == pytest.approx(math.log(8))
    assert found.z_loss == pytest.approx(1e-4 * math.log(8) ** 2)


def test_every_leaf_but_the_bias_moves_the_loss():
    shape = Shape(num_layers=1)
    params = random_params(shape, 5)
    rng = np.random.default_rng(5)
    tokens, targets = rng.integers(0, shape.vocab, size=(2, 1, 6))
    segments = packed_segments([[4, 2]])

    def scalar(tree):
        return lm.loss(tree, tokens, targets, segments, shape).total

    for path in paths(params):
        value = leaf(params, path)
        slope = leaf_difference(scalar, params, path, rng.normal(size=value.shape))
        assert (slope == 0.0) == (path[-1] == "router_bias"), path
