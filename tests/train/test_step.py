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
from shoal.arrays.weights import specs_of
from shoal.model.lm import forward
from shoal.recipes.quickstart import quickstart
from shoal.train.derive import peak_rates
from shoal.train.state import abstract_state, initial_state
from shoal.train.step import Batch, describe_model, make_step, with_router_bias

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
    """Parts count on a grid of twice the width: their bias is within two of its bins.

    So the step after may send a token elsewhere, and only the first can be compared to the digit.
    """
    num_steps = 1 if "accumulation" in changes else 3
    state, metrics = walked(num_steps, **changes)
    expected_state, expected = walked(num_steps)
    for found, want in zip(metrics, expected, strict=True):
        assert found.keys() == want.keys()
        for name, value in want.items():
            tolerance = 2e-3 if name == "router/bias_abs_max" else 2e-4
            assert_near(found[name], np.asarray(value), tolerance, name)
    specs = specs_of(describe_model(config_of()))
    leaves, wanted = (jax.tree.leaves(s.params) for s in (state, expected_state))
    for spec, found, want in zip(specs, leaves, wanted, strict=True):
        tolerance = 2e-3 if spec.group == "balance" else 5e-4
        assert_near(found, np.asarray(want), tolerance, spec.name)
    losses = [[float(m["loss"]) for m in walked(3, **c)[1]] for c in (changes, {})]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


def test_the_bias_of_the_next_step_comes_from_the_margins_of_this_one():
    """Every state holds the bias that its next batch, its evaluation and its export use."""
    config = config_of()
    state, step = built()
    counted_by = quick_jit(
        lambda p, b: forward(p, b.inputs, b.segments, config.model, context=LENGTH)[1].margins
    )
    for leaf in (state.params.local.moe.router_bias, state.params.global_.moe.router_bias):
        np.testing.assert_array_equal(leaf, 0.0)
    for number in range(2):
        counted = jax.tree.map(np.asarray, counted_by(state.params, batch(number)))
        state, _ = step(state, batch(number))
        biases = (state.params.local.moe.router_bias, state.params.global_.moe.router_bias)
        for layer, (bias,) in enumerate(biases):
            counts, (low, high) = counted.counts[layer], counted.grid[layer]
            width = (high - low) / counts.shape[1]
            middles = low + width * (np.arange(counts.shape[1]) + 0.5)
            margins = np.stack([np.repeat(middles, expert) for expert in counts], axis=1)
            assert margins.shape == (SEQUENCES * LENGTH, SHAPE.num_experts)
            beta = oracle.exact_beta(margins, SHAPE.top_k)
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
    counted = {"dropped/sender", "dropped/receiver", "delivered"}
    counted |= {f"drop_share/{side}" for side in ("sender", "receiver", "receiver_of_sent")}
    shapes = {name: np.shape(value) for name, value in metrics[0].items()}
    expected = {
        **dict.fromkeys(scalars | norms | {"dropped/fraction"}, ()),
        **dict.fromkeys(per_layer | counted, (2,)),
        "router/load": (2, SHAPE.num_experts),
    }
    assert shapes == expected
    squares = [metrics[0][f"grad_norm/{group}"] ** 2 for group in groups]
    assert metrics[0]["grad_norm"] == pytest.approx(np.sqrt(sum(squares)), rel=1e-5)
    assert np.asarray(metrics[0]["router/load"]).mean() == pytest.approx(1.0)
    assert (np.asarray(metrics[0]["router/entropy"]) < np.log(SHAPE.num_experts)).all()


def test_a_batch_without_a_finite_loss_changes_nothing():
    """Neither does one without a single target: there is no mean over nothing."""
    state, step = built()
    state, _ = step(state, batch())
    for value in (np.nan, np.inf, 0.0):
        weights = jnp.full_like(batch(1).weights, value)
        after, metrics = step(state, batch(1)._replace(weights=weights))
        assert metrics["applied"] == 0.0
        assert after.step == state.step + 1
        old, new = (jax.tree.leaves(s._replace(step=None)) for s in (state, after))
        for one, other in zip(old, new, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_step_after_one_that_was_not_applied_is_as_if_it_had_not_been():
    """But for the schedule, which counts steps."""
    state, step = built()
    state, _ = step(state, batch())
    skipped, _ = step(state, batch(1)._replace(weights=jnp.full_like(batch().weights, np.nan)))
    found, _ = step(skipped._replace(step=state.step), batch(2))
    expected, _ = step(state, batch(2))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_losses_are_means_over_targets_however_documents_are_packed():
    """Three documents of six tokens: in two rows, or in three with padding between them."""
    rng = np.random.default_rng(3)
    documents = rng.integers(0, SHAPE.vocab, size=(3, 2, 6)).astype(np.int32)
    state, step = built()
    found = []
    for places in ([(0, 0), (0, 6), (1, 0)], [(3, 6), (1, 0), (2, 3)]):
        inputs, targets, segments = np.zeros((3, SEQUENCES, LENGTH), np.int32)
        weights = np.zeros((SEQUENCES, LENGTH), np.float32)
        for number, (row, column) in enumerate(places):
            span = slice(column, column + 6)
            inputs[row, span], targets[row, span] = documents[number]
            segments[row, span] = number + 1
            segments[row, column + 6 :] = number + 9
            weights[row, span] = 1.0
        _, metrics = step(state, Batch(*map(jnp.asarray, (inputs, targets, segments, weights))))
        found.append(metrics)
    for name in ("loss", "z_loss", "grad_norm/muonh", "grad_norm/adamh", "grad_norm/adam"):
        assert_near(found[0][name], np.asarray(found[1][name]), 2e-5, name)


@cache
def long_run(num_steps=200):
    """(initial state, final state, metrics) of a run whose every step is given up to the next."""
    base = config_of()
    config = replace(base, train=replace(base.train, num_steps=num_steps))
    peak = peak_rates(config)
    first = initial_state(config, peak)
    state = jax.tree.map(jnp.copy, first)
    step = quick_jit(make_step(config, peak), donate_argnums=0)
    metrics, given = [], []
    for number in range(num_steps):
        given.append(state)
        state, found = step(state, batch(number))
        metrics.append({name: np.asarray(value) for name, value in found.items()})
    return first, state, metrics, given


def test_a_step_takes_the_memory_of_the_state_that_it_is_given():
    """Warnings are errors: a buffer that could not be used would have failed the run."""
    _, _, _, given = long_run()
    assert all(leaf.is_deleted() for state in given for leaf in jax.tree.leaves(state))


def test_weights_on_a_sphere_keep_their_norm_for_hundreds_of_steps():
    first, last, metrics, _ = long_run()
    specs = specs_of(describe_model(config_of()))
    leaves = zip(specs, jax.tree.leaves(first.params), jax.tree.leaves(last.params), strict=True)
    seen = set()
    for spec, before, after in leaves:
        if spec.group in ("muonh", "adamh"):
            radius, radius_now = (
                np.sqrt(np.sum(np.square(np.asarray(w, np.float64)), axis=spec.norm_axes))
                for w in (before, after)
            )
            np.testing.assert_allclose(radius_now, radius, rtol=2e-5, err_msg=spec.name)
            moved = np.linalg.norm(np.asarray(after - before)) / np.linalg.norm(before)
            assert moved > 0.3, spec.name
            seen.add(spec.group)
    assert seen == {"muonh", "adamh"}
    for group in seen:
        norms = [found[f"weight_norm/{group}"] for found in metrics]
        np.testing.assert_allclose(norms, norms[0], rtol=2e-5)


def test_the_mean_of_every_bias_stays_zero():
    _, last, metrics, _ = long_run()
    for block in (last.params.local, last.params.global_):
        bias = np.asarray(block.moe.router_bias, np.float64)
        largest = np.abs(bias).max()
        assert largest > 0.01
        np.testing.assert_allclose(bias.mean(axis=1), 0.0, atol=1e-6 * largest)
    assert all(found["applied"] == 1.0 for found in metrics)


def test_nothing_is_dropped_and_every_assignment_is_counted():
    _, _, metrics, _ = long_run()
    for found in metrics:
        assert found["dropped/fraction"] == 0.0
        np.testing.assert_array_equal(found["dropped/sender"] + found["dropped/receiver"], 0)
        np.testing.assert_array_equal(found["delivered"], SEQUENCES * LENGTH * SHAPE.top_k)
        counted = found["router/load"].sum(axis=1)
        np.testing.assert_allclose(counted, SHAPE.num_experts, rtol=1e-5)


def test_the_abstract_state_has_the_shapes_and_types_of_the_real_one():
    config = config_of()
    abstract = abstract_state(config, peak_rates(config))
    real = initial_state(config, peak_rates(config))
    assert jax.tree.structure(abstract) == jax.tree.structure(real)
    for one, other in zip(jax.tree.leaves(abstract), jax.tree.leaves(real), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert isinstance(one, jax.ShapeDtypeStruct)


def test_a_seed_decides_every_weight():
    config = config_of()
    states = [
        initial_state(replace(config, train=replace(config.train, seed=seed)), peak_rates(config))
        for seed in (0, 0, 1)
    ]
    same, other = zip(*(jax.tree.leaves(s.params) for s in states[:2]), strict=True), states[2]
    specs = specs_of(describe_model(config))
    for spec, (one, two), three in zip(specs, same, jax.tree.leaves(other.params), strict=True):
        np.testing.assert_array_equal(one, two)
        assert (np.asarray(one) != np.asarray(three)).any() == (spec.init == "normal"), spec.name


def test_every_layer_and_expert_begins_with_its_own_weights():
    config = config_of()
    config = replace(config, model=replace(config.model, num_layers=6))
    state = initial_state(config, peak_rates(config))
    specs = specs_of(describe_model(config))
    for spec, leaf in zip(specs, jax.tree.leaves(state.params), strict=True):
        if spec.init == "normal":
            matrices = np.asarray(leaf).reshape(-1, *leaf.shape[-2:])
            assert len({matrix.tobytes() for matrix in matrices}) == len(matrices), spec.name


def test_layers_begin_the_same_however_many_stand_behind_them():
    config = config_of()
    few, many = (
        initial_state(
            replace(config, model=replace(config.model, num_layers=n)), peak_rates(config)
        )
        for n in (6, 10)
    )
    leaves = zip(jax.tree.leaves(few.params), jax.tree.leaves(many.params), strict=True)
    for one, other in leaves:
        np.testing.assert_array_equal(one, other[: len(one)])
