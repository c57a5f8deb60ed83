"""One training step: what it applies, when, and that its numerics choices change no number."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import moe as oracle
from oracles.bridge import assert_near, model_config, quick_jit
from oracles.shape import Shape, packed_segments
from shoal.model.lm import forward
from shoal.recipes.quickstart import quickstart
from shoal.train.derive import peak_rates
from shoal.train.step import Batch, initial_state, make_step, with_router_bias

SHAPE = Shape(num_layers=2)
SEQUENCES, LENGTH = 4, 12


def config_of(accumulation=1, **changes):
    base = quickstart()
    train = replace(
        base.train,
        num_steps=50,
        batch_sequences=SEQUENCES,
        sequence_tokens=LENGTH,
        accumulation=accumulation,
    )
    optimizer = replace(base.optimizer, muon_lr=0.02, adam_lr=0.01, warmup_fraction=0.0)
    model = model_config(SHAPE, LENGTH, attention_chunk=LENGTH, experts="dense", **changes)
    return replace(base, model=model, train=train, optimizer=optimizer)


@cache
def batch(step=0):
    """Rows of different numbers of real tokens, so that a mean of parts is not the mean."""
    rng = np.random.default_rng([step, 7])
    tokens, targets = rng.integers(0, SHAPE.vocab, size=(2, SEQUENCES, LENGTH))
    weights = np.arange(LENGTH)[None] < np.array([[12], [5], [9], [1]])
    return Batch(
        inputs=jnp.asarray(tokens, jnp.int32),
        targets=jnp.asarray(targets, jnp.int32),
        segments=jnp.asarray(packed_segments([[6, 6], [12, 0], [1, 11], [8, 4]])),
        weights=jnp.asarray(weights, jnp.float32),
    )


@cache
def built(accumulation=1, **changes):
    """(initial state, compiled step)."""
    config = config_of(accumulation, **changes)
    peak = peak_rates(config)
    return initial_state(config, peak), quick_jit(make_step(config, peak))


@cache
def walked(num_steps=3, accumulation=1, **changes):
    """(state, metrics of every step)."""
    state, step = built(accumulation, **changes)
    metrics = []
    for number in range(num_steps):
        state, found = step(state, batch(number))
        metrics.append(found)
    return state, metrics


@pytest.mark.parametrize(
    "changes",
    [{"accumulation": 2}, {"accumulation": 4}, {"remat": True}],
    ids=["two parts", "four parts", "recomputed"],
)
def test_metrics_and_weights_are_those_of_the_plain_step(changes):
    state, metrics = walked(**changes)
    expected_state, expected = walked()
    for found, want in zip(metrics, expected, strict=True):
        assert found.keys() == want.keys()
        for name, value in want.items():
            assert_near(found[name], np.asarray(value), 2e-4, name)
    leaves, wanted = (jax.tree.leaves(s.params) for s in (state, expected_state))
    for found, want in zip(leaves, wanted, strict=True):
        assert_near(found, np.asarray(want), 5e-4)


def test_the_bias_of_the_next_step_comes_from_the_margins_of_this_one():
    """Every state holds the bias that its next batch, its evaluation and its export use."""
    config = config_of()
    state, step = built()
    margins_of = quick_jit(
        lambda p, b: forward(p, b.inputs, b.segments, config.model, context=LENGTH)[1].margins
    )
    for leaf in (state.params.local.moe.router_bias, state.params.global_.moe.router_bias):
        np.testing.assert_array_equal(leaf, 0.0)
    for number in range(2):
        margins = np.asarray(margins_of(state.params, batch(number)), np.float64)
        state, _ = step(state, batch(number))
        biases = (state.params.local.moe.router_bias, state.params.global_.moe.router_bias)
        for layer, (bias,) in enumerate(biases):
            beta = oracle.histogram_beta(margins[layer], SHAPE.top_k)
            _, width = oracle.histogram_grid(margins[layer])
            np.testing.assert_allclose(bias, oracle.bias_from_beta(beta), atol=2 * width)
            assert np.abs(bias).max() > 10 * width


def test_biases_in_model_order_go_to_the_stack_of_their_layer():
    config = replace(config_of().model, num_layers=6)
    params = initial_state(replace(config_of(), model=config), peak_rates(config_of())).params
    bias = jnp.arange(6.0)[:, None] * jnp.ones((6, SHAPE.num_experts))
    params = with_router_bias(params, bias, config)
    np.testing.assert_array_equal(params.local.moe.router_bias[:, 0], [0, 1, 2, 4])
    np.testing.assert_array_equal(params.global_.moe.router_bias[:, 0], [3, 5])


def test_skewed_routers_are_balanced_within_a_few_steps():
    """All tokens share a direction, and two experts of six love it."""
    state, step = built()
    love = np.array([2.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    router = 0.3 * np.random.default_rng(0).normal(size=(1, SHAPE.width, SHAPE.num_experts)) + love
    changed = {"embed": state.params.embed + 0.2}
    for name in ("local", "global_"):
        block = getattr(state.params, name)
        moe = replace(block.moe, router=jnp.asarray(router, jnp.float32))
        changed[name] = replace(block, moe=moe)
    state = state._replace(params=replace(state.params, **changed))
    variation = []
    for _ in range(4):
        state, found = step(state, batch())
        variation.append(np.asarray(found["router/load_cv"]))
    assert (variation[0] > 1.0).all()
    assert (variation[3] < 0.35).all(), variation


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_step_that_is_not_finite_counts_and_changes_nothing(poison):
    state, step = built()
    state, _ = step(state, batch())
    bad = state._replace(params=replace(state.params, head=state.params.head.at[0, 0].set(poison)))
    after, metrics = step(bad, batch(1))
    assert metrics["applied"] == 0.0
    assert after.step == bad.step + 1
    for name in ("params", "optimizer"):
        old, new = (jax.tree.leaves(getattr(s, name)) for s in (bad, after))
        for one, other in zip(old, new, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_finite_step_is_applied_to_every_leaf():
    state, step = built()
    after, metrics = step(state, batch())
    assert metrics["applied"] == 1.0
    for one, other in zip(*(jax.tree.leaves(s.params) for s in (state, after)), strict=True):
        assert (np.asarray(one) != np.asarray(other)).any(), one.shape


def test_the_record_gets_every_number_that_it_names_with_the_right_shape():
    _, metrics = walked()
    groups = ("muonh", "adamh", "adam")
    norms = {f"{kind}_norm/{group}" for kind in ("grad", "weight", "update") for group in groups}
    per_layer = {"router/entropy", "router/load_cv", "router/load_max", "router/bias_abs_max"}
    scalars = {"loss", "z_loss", "learning_rate/muon", "learning_rate/adam", "applied", "grad_norm"}
    shapes = {name: np.shape(value) for name, value in metrics[0].items()}
    expected = {
        **dict.fromkeys(scalars | norms, ()),
        **dict.fromkeys(per_layer | {"dropped"}, (2,)),
        "router/load": (2, SHAPE.num_experts),
    }
    assert shapes == expected
    squares = [metrics[0][f"grad_norm/{group}"] ** 2 for group in groups]
    assert metrics[0]["grad_norm"] == pytest.approx(np.sqrt(sum(squares)), rel=1e-5)
    assert np.asarray(metrics[0]["router/load"]).mean() == pytest.approx(1.0)
    assert (np.asarray(metrics[0]["router/entropy"]) < np.log(SHAPE.num_experts)).all()
