"""The whole model against the oracle, and its forms against each other."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import lm as oracle
from oracles.bridge import (
    FLOAT32,
    assert_near,
    lm_of,
    model_config,
    named_leaves,
    oracle_paths,
    quick_jit,
)
from oracles.differences import leaf, leaf_difference
from oracles.shape import Shape, packed_segments, random_params
from shoal.model.lm import forward, logits
from shoal.train.step import Batch, accumulate

LENGTH = 12
SEGMENTS = packed_segments([[LENGTH, 0], [5, 7]])
# A larger z-loss than the recipe's, so that its gradient cannot hide.
SHAPE = Shape(stored_global_kv_heads=2, z_loss=0.1)
# The order of sums differs, so their last bits do, and the gradients' a bit more.
SAME_MODEL = 2e-5


# Every layer global and rotated, experts at the full width without shared ones.
PLAIN_SHAPE = Shape(num_layers=2, latent=None, num_shared=0, global_every=1, rotary_global=True)


@cache
def params_of(num_layers: int = SHAPE.num_layers):
    return random_params(replace(SHAPE, num_layers=num_layers), 11)


@cache
def arrays():
    rng = np.random.default_rng(12)
    tokens, targets = rng.integers(0, SHAPE.vocab, size=(2, 2, LENGTH)).astype(np.int32)
    weights = np.where(rng.uniform(size=(2, LENGTH)) > 0.2, 1.0, 0.0)
    return tokens, targets, weights


def batch_of(dtype=jnp.float32, **changes):
    tokens, targets, weights = arrays()
    fields = {"inputs": tokens, "targets": targets, "segments": SEGMENTS, **changes}
    fields = {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}
    return Batch(**fields, weights=jnp.asarray(weights, dtype))


@cache
def gradient_function(num_layers: int, parts: int, dtype, **changes):
    """batch -> (gradients by leaf name, losses, routing statistics)."""
    config = model_config(replace(SHAPE, num_layers=num_layers), LENGTH, **changes)
    run = quick_jit(partial(accumulate, config=config, context=LENGTH, parts=parts))
    params = lm_of(params_of(num_layers), config, dtype)

    def graded(batch):
        gradients, sums, stats = run(params, batch)
        return named_leaves(gradients, config), sums, stats

    return graded


@cache
def graded(num_layers: int = SHAPE.num_layers, parts: int = 1, **changes):
    return gradient_function(num_layers, parts, jnp.float32, **changes)(batch_of())


@cache
def graded64():
    with jax.enable_x64(True):
        run = gradient_function(SHAPE.num_layers, 1, jnp.float64)
        return run(batch_of(jnp.float64))[0]


@cache
def oracle_logits():
    return oracle.lm(params_of(), arrays()[0], SEGMENTS, SHAPE)


@cache
def logits_function(**changes):
    config = model_config(SHAPE, LENGTH, **changes)

    @quick_jit
    def run(p, tokens):
        hidden, stats = forward(p, tokens, jnp.asarray(SEGMENTS), config, context=LENGTH)
        return logits(p, hidden), stats

    p = lm_of(params_of(), config)
    return lambda tokens: run(p, jnp.asarray(tokens))


def assert_same_model(found, expected, tolerance=SAME_MODEL):
    found_gradients, found_sums, found_stats = found
    gradients, sums, stats = expected
    for name in sums:
        assert_near(found_sums[name], sums[name], 1e-6, name)
    assert gradients.keys() == found_gradients.keys()
    for name, value in gradients.items():
        assert_near(found_gradients[name], value, tolerance, name)
    np.testing.assert_array_equal(found_stats.load, stats.load)
    assert_near(found_stats.margins.span, stats.margins.span, FLOAT32, "margins")


@pytest.mark.parametrize("experts", ["blocks", "dense"])
def test_logits_equal_the_oracle(experts):
    found, _ = logits_function(experts=experts)(arrays()[0])
    assert_near(found, oracle_logits()[0], FLOAT32)


def test_routing_statistics_equal_the_oracle_in_model_order():
    _, stats = logits_function(experts="blocks")(arrays()[0])
    for layer, taken in enumerate(oracle_logits()[1]):
        counts = np.bincount(taken.experts.ravel(), minlength=SHAPE.num_experts)
        np.testing.assert_array_equal(stats.load[layer], counts)
        span = [taken.margins.min(), taken.margins.max()]
        assert_near(stats.margins.span[layer], span, FLOAT32, f"layer {layer}")
        shares = np.exp(taken.logits - np.log(np.exp(taken.logits).sum(1, keepdims=True)))
        assert_near(stats.entropy[layer], -np.sum(shares * np.log(shares)), FLOAT32)
        assert stats.sender[layer] == stats.receiver[layer] == 0
        assert stats.delivered[layer] == counts.sum() == stats.margins.tokens[layer] * SHAPE.top_k


def test_loss_and_z_loss_equal_the_oracle():
    tokens, targets, weights = arrays()
    expected = oracle.loss(params_of(), tokens, targets, SEGMENTS, SHAPE, weights)
    _, sums, _ = graded()
    assert_near(sums["nats"], expected.cross_entropy, FLOAT32)
    assert_near(sums["z_loss"], expected.z_loss, FLOAT32)
    assert_near(sums["total"], expected.total, FLOAT32)


def test_every_gradient_of_every_layer_equals_finite_differences():
    tokens, targets, weights = arrays()
    rng = np.random.default_rng(13)

    def scalar(tree):
        return oracle.loss(tree, tokens, targets, SEGMENTS, SHAPE, weights).total

    for name, gradient in graded64().items():
        for path, row in oracle_paths(name, model_config(SHAPE, LENGTH)):
            if path[-1] == "router_bias":
                assert not gradient[row].any(), path
                continue
            direction = rng.normal(size=leaf(params_of(), path).shape)
            expected = leaf_difference(scalar, params_of(), path, direction)
            slope = np.sum(gradient[row] * direction)
            size = np.linalg.norm(gradient[row])
            assert size > 0, path
            # Rotation angles are float32 in any mode.
            assert abs(slope - expected) <= 1e-5 * size, (path, slope, expected)


def test_float32_gradients_equal_float64_ones():
    gradients, _, _ = graded()
    for name, value in graded64().items():
        assert_near(gradients[name], value, 1e-4, name)


# What compiles fastest; other tests hold the parts equal to their fast forms.
PLAIN = {"attention_chunk": LENGTH, "experts": "dense"}


@pytest.mark.parametrize("num_layers", [6, 8])
def test_scanned_layers_equal_unrolled_ones(num_layers):
    """6 is a period and two more, the last of them global; 8 is two whole periods."""
    scanned = graded(num_layers, layer_loop="scan", **PLAIN)
    assert_same_model(scanned, graded(num_layers, layer_loop="unroll", **PLAIN))


@pytest.mark.parametrize(
    "changes",
    [
        {"remat": True, "loss_block_vocab": 8, "loss_block_above_bytes": 1},
        {"parts": 2, "experts": "ragged"},
    ],
    ids=["activations recomputed, loss in blocks", "half batches, ragged products"],
)
def test_how_it_is_computed_changes_no_loss_gradient_or_route(changes):
    """Token weights differ between the halves: a mean of means would fail."""
    weights = arrays()[2]
    assert weights[0].sum() != weights[1].sum()
    assert_same_model(graded(2, **changes), graded(2))


def test_tokens_of_weight_zero_have_no_target():
    _, targets, weights = arrays()
    other = np.where(weights == 0, (targets + 1) % SHAPE.vocab, targets)
    assert (other != targets).any()
    run = gradient_function(SHAPE.num_layers, 1, jnp.float32)
    found, sums, _ = run(batch_of(targets=other))
    gradients, expected, _ = run(batch_of())
    np.testing.assert_array_equal(sums["total"], expected["total"])
    for name, value in found.items():
        np.testing.assert_array_equal(value, gradients[name], err_msg=name)


def changed(rows, columns):
    tokens = arrays()[0].copy()
    tokens[rows, columns] = (tokens[rows, columns] + 1) % SHAPE.vocab
    return tokens


@pytest.mark.parametrize("experts", ["blocks", "dense"])
def test_changing_one_document_leaves_the_others_bit_equal(experts):
    run = logits_function(experts=experts)
    before, after = run(arrays()[0])[0], run(changed(1, slice(0, 5)))[0]
    np.testing.assert_array_equal(before[1, 5:], after[1, 5:])
    np.testing.assert_array_equal(before[0], after[0])
    assert (np.asarray(before[1, :5]) != np.asarray(after[1, :5])).any(axis=-1).all()


def test_changing_a_token_leaves_everything_before_it_bit_equal():
    run = logits_function(experts="blocks")
    before, after = run(arrays()[0])[0], run(changed(slice(None), 8))[0]
    np.testing.assert_array_equal(before[:, :8], after[:, :8])
    assert (np.asarray(before[:, 8]) != np.asarray(after[:, 8])).any()


def test_a_model_whose_only_layer_is_global_equals_the_oracle():
    shape = Shape(num_layers=1)
    params = random_params(shape, 14)
    config = model_config(shape, LENGTH)
    run = quick_jit(lambda p, t, s: logits(p, forward(p, t, s, config, context=LENGTH)[0]))
    found = run(lm_of(params, config), jnp.asarray(arrays()[0]), jnp.asarray(SEGMENTS))
    assert_near(found, oracle.lm(params, arrays()[0], SEGMENTS, shape)[0], FLOAT32)


def test_a_model_without_windows_latent_and_shared_experts_equals_the_oracle():
    """Its logits, and every gradient against finite differences."""
    params, config = random_params(PLAIN_SHAPE, 15), model_config(PLAIN_SHAPE, LENGTH)
    tokens, targets, weights = arrays()
    run = quick_jit(lambda p, t, s: logits(p, forward(p, t, s, config, context=LENGTH)[0]))
    found = run(lm_of(params, config), jnp.asarray(tokens), jnp.asarray(SEGMENTS))
    assert_near(found, oracle.lm(params, tokens, SEGMENTS, PLAIN_SHAPE)[0], FLOAT32)
    with jax.enable_x64(True):
        graded = quick_jit(partial(accumulate, config=config, context=LENGTH, parts=1))
        gradients, _, _ = graded(lm_of(params, config, jnp.float64), batch_of(jnp.float64))
        gradients = named_leaves(gradients, config)
    assert not [name for name in gradients if "latent" in name]

    def scalar(tree):
        return oracle.loss(tree, tokens, targets, SEGMENTS, PLAIN_SHAPE, weights).total

    rng = np.random.default_rng(16)
    for name, gradient in gradients.items():
        if name.endswith("router_bias") or not gradient.size:
            continue
        for path, row in oracle_paths(name, config):
            direction = rng.normal(size=leaf(params, path).shape)
            expected = leaf_difference(scalar, params, path, direction)
            size = np.linalg.norm(gradient[row])
            assert size > 0, path
            assert abs(np.sum(gradient[row] * direction) - expected) <= 1e-5 * size, path


def test_bfloat16_compute_stays_near_float32_with_float32_gradients():
    gradients, sums, _ = graded(2, compute_dtype="bfloat16")
    _, expected, _ = graded(2)
    assert_near(sums["total"], expected["total"], 0.05)
    assert sums["total"].dtype == jnp.float32
    assert {value.dtype for value in gradients.values()} == {np.dtype(np.float32)}
    assert all(np.isfinite(value).all() for value in gradients.values())
