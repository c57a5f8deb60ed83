"""The whole optimizer on a whole model's leaves, against one oracle per leaf."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from oracles import optim as oracle
from oracles.bridge import assert_near, model_config, quick_jit, stacked
from oracles.shape import Shape, random_params
from shoal.model.lm import describe_lm
from shoal.optim import law
from shoal.optim.build import build, step_rates
from shoal.optim.config import OptimizerConfig

SHAPE = Shape(num_layers=2)
MODEL = model_config(SHAPE, 8)
# An epsilon as large as the gradients shows on which side of the square root, and of the bias
# correction, it stands.
PEAK = law.Rates(muon_lr=0.03, adam_lr=0.01, beta2=0.97, eps=0.1)
NUM_STEPS, COMPARED = 400, 100

GROUPS = {
    "muonh": {
        *("attn.w_q", "attn.w_k", "attn.w_v", "attn.w_o", "moe.latent_down", "moe.latent_up"),
        *("moe.experts.gate", "moe.experts.up", "moe.experts.down"),
        *("moe.shared.gate", "moe.shared.up", "moe.shared.down"),
        *("attn_norm.down", "attn_norm.up", "moe_norm.down", "moe_norm.up"),
        *("embed_norm.down", "embed_norm.up", "final_norm.down", "final_norm.up"),
    },
    "adamh": {"head"},
    "adam": {
        *("embed", "moe.router", "attn.head_gate", "attn.conv_k", "attn_conv", "moe_conv"),
        *("attn_norm.gain", "moe_norm.gain", "embed_norm.gain", "final_norm.gain"),
        "moe.latent_norm",
    },
    "balance": {"moe.router_bias"},
}
DECAYED = {"moe.router", "attn.head_gate"}


def base(name):
    return name.removeprefix("local.").removeprefix("global.")


def specs(shared_sphere=False):
    return {s.name: s for s in jax.tree.leaves(describe_lm(MODEL, shared_sphere=shared_sphere))}


def test_every_weight_is_in_the_group_that_the_recipe_names():
    found = {group: set() for group in GROUPS}
    for name, spec in specs().items():
        found[spec.group].add(base(name))
    assert found == GROUPS
    assert {base(name) for name, spec in specs().items() if spec.decay} == DECAYED


def test_only_expert_banks_may_share_a_sphere():
    for name, spec in specs(shared_sphere=True).items():
        if spec.group in {"muonh", "adamh"}:
            assert len(spec.norm_axes) == (3 if ".experts." in name else 2), name
    assert all(len(s.norm_axes) == 2 for s in specs().values() if s.group in {"muonh", "adamh"})


@cache
def gradients():
    """[steps, ...] per leaf; experts' sizes differ by a thousand, one expert has none at all."""
    rng = np.random.default_rng(0)
    out = {}
    for name, spec in specs().items():
        drawn = 0.1 * rng.normal(size=(NUM_STEPS, *spec.shape))
        if ".experts." in name:
            scale = np.logspace(-3, 0, SHAPE.num_experts)
            scale[2] = 0.0
            drawn *= scale[:, None, None]
        out[name] = drawn
    return out


@cache
def trained(expert_sphere):
    """(weights by name at step 0, and [4, ...] after every hundred steps)."""
    config = OptimizerConfig(expert_sphere=expert_sphere, warmup_fraction=0.1)
    described = describe_lm(MODEL, shared_sphere=expert_sphere == "layer")
    if expert_sphere == "layer":  # every other leaf is as in the other case
        described = [described.local.moe.experts, described.global_.moe.experts]
    optimizer = build(described, config, PEAK)
    weights, drawn = random_params(SHAPE, 1), gradients()
    params = jax.tree.map(
        lambda s: jnp.asarray(stacked(weights, s.name, MODEL), jnp.float32), described
    )
    tree = jax.tree.map(lambda s: jnp.asarray(drawn[s.name], jnp.float32), described)

    @quick_jit
    def run(params, tree):
        def step(carried, at):
            params, state = carried
            rates = step_rates(at, config, PEAK, NUM_STEPS)
            slopes = jax.tree.map(lambda a: a[at], tree)
            updates, state = optimizer.update(slopes, state, params, rates=rates)
            params = optax.apply_updates(params, updates)
            return (params, state), None

        def steps(carried, start):
            carried, _ = jax.lax.scan(step, carried, start + jnp.arange(COMPARED))
            return carried, carried[0]

        carried = (params, optimizer.init(params))
        return jax.lax.scan(steps, carried, jnp.arange(0, NUM_STEPS, COMPARED))[1]

    names = [spec.name for spec in jax.tree.leaves(described)]
    before, after = (map(np.asarray, jax.tree.leaves(t)) for t in (params, run(params, tree)))
    return dict(zip(names, before, strict=True)), dict(zip(names, after, strict=True))


def oracle_trained(name, weight, drawn, expert_sphere):
    group = next(g for g, members in GROUPS.items() if base(name) in members)
    weight = weight.astype(np.float64)
    buffer, moments = np.zeros_like(weight), oracle.Moments.zeros_like(weight)
    shared = expert_sphere == "layer" and ".experts." in name
    for count, gradient in enumerate(drawn):
        share = oracle.schedule(count, NUM_STEPS, warmup=0.1)
        muon, adam = share * PEAK.muon_lr, share * PEAK.adam_lr
        if group == "muonh":
            weight, buffer = oracle.muonh(weight, gradient, buffer, muon, shared_sphere=shared)
        elif group == "adamh":
            weight, moments = oracle.adamh(weight, gradient, moments, muon, PEAK.beta2, PEAK.eps)
        elif group == "adam":
            decay = oracle.decay_coefficient(count, NUM_STEPS) if base(name) in DECAYED else 0.0
            weight, moments = oracle.adam(
                weight, gradient, moments, adam, PEAK.beta2, PEAK.eps, decay
            )
    return weight


@pytest.mark.parametrize("expert_sphere", ["expert", "layer"])
def test_a_hundred_steps_equal_the_oracles_on_every_leaf(expert_sphere):
    before, after = trained(expert_sphere)
    for name, weight in before.items():
        drawn = gradients()[name][:COMPARED]
        expected = oracle_trained(name, weight, drawn, expert_sphere)
        found = after[name][0]
        if base(name) in GROUPS["balance"]:
            np.testing.assert_array_equal(found, weight)
            continue
        assert_near(found - weight, expected - weight, 2e-4, name)


@pytest.mark.parametrize("expert_sphere", ["expert", "layer"])
def test_constrained_norms_are_constant_for_four_hundred_steps(expert_sphere):
    before, after = trained(expert_sphere)
    described = specs(shared_sphere=expert_sphere == "layer")
    for name in before:
        spec = described[name]
        if spec.group not in {"muonh", "adamh"}:
            continue
        first = np.linalg.norm(flat(before[name], spec), axis=-1)
        later = np.linalg.norm(flat(after[name], spec), axis=-1)
        # Each step rounds by up to 1e-7; at low rates the roundings of many steps are alike.
        np.testing.assert_allclose(later, np.broadcast_to(first, later.shape), rtol=4e-5)
        assert np.linalg.norm(after[name][-1] - before[name]) > 0.1 * np.linalg.norm(first), name


def flat(value, spec):
    """Float64, the axes of one sphere joined into the last."""
    axes = len(spec.norm_axes)
    return value.astype(np.float64).reshape(*value.shape[:-axes], -1)


def test_experts_change_size_inside_a_shared_sphere_alone():
    for expert_sphere, constant in (("expert", True), ("layer", False)):
        before, after = trained(expert_sphere)
        sizes = [
            np.linalg.norm(w, axis=(-2, -1))
            for w in (before["local.moe.experts.gate"], after["local.moe.experts.gate"][-1])
        ]
        assert np.allclose(*sizes, rtol=1e-4) == constant


def test_adamw_takes_matrices_and_head_with_a_decay_and_leaves_the_rest_as_it_was():
    config = OptimizerConfig(matrices="adamw", weight_decay=0.3, warmup_fraction=0.0)
    described, weights = describe_lm(MODEL), random_params(SHAPE, 1)
    optimizer, drawn = build(described, config, PEAK), gradients()
    params = jax.tree.map(
        lambda s: jnp.asarray(stacked(weights, s.name, MODEL), jnp.float32), described
    )

    @quick_jit
    def step(params, state, at):
        rates = step_rates(at, config, PEAK, NUM_STEPS)
        slopes = jax.tree.map(lambda s: jnp.asarray(drawn[s.name], jnp.float32)[at], described)
        updates, state = optimizer.update(slopes, state, params, rates=rates)
        return optax.apply_updates(params, updates), state

    found, state = params, optimizer.init(params)
    for count in range(10):
        found, state = step(found, state, jnp.asarray(count))
    for spec, leaf in zip(jax.tree.leaves(described), jax.tree.leaves(found), strict=True):
        first = weight = stacked(weights, spec.name, MODEL).astype(np.float32).astype(np.float64)
        moments = oracle.Moments.zeros_like(weight)
        for count in range(10):
            share = oracle.schedule(count, NUM_STEPS, warmup=0.0)
            if spec.group == "balance":
                break
            rate, decay = share * PEAK.muon_lr, 0.3
            if spec.group == "adam":
                rate = share * PEAK.adam_lr
                decay = oracle.decay_coefficient(count, NUM_STEPS) if spec.decay else 0.0
            weight, moments = oracle.adam(
                weight, drawn[spec.name][count], moments, rate, PEAK.beta2, PEAK.eps, decay
            )
        assert_near(np.asarray(leaf) - first, weight - first, 2e-4, spec.name)


def test_a_weight_decay_on_spheres_is_refused():
    with pytest.raises(ValueError, match=r"weight_decay=0\.1.*matrices=adamw"):
        OptimizerConfig(weight_decay=0.1)


def test_adamws_matrices_take_the_adam_rate_unless_they_are_given_one():
    size = {"num_steps": 100, "tokens_per_step": 1024, "embed_dim": 64}
    plain = law.rates(OptimizerConfig(matrices="adamw"), **size)
    assert plain.muon_lr == plain.adam_lr == law.rates(OptimizerConfig(), **size).adam_lr
    given = law.rates(OptimizerConfig(matrices="adamw", muon_lr=0.01), **size)
    assert (given.muon_lr, given.adam_lr) == (0.01, plain.adam_lr)


@pytest.mark.parametrize("step", [0, 1, 38, 39, 40, 100, 3_999, 4_000, 4_321])
def test_the_steps_rates_are_the_laws(step):
    config, num_steps = OptimizerConfig(decay_from_step=100), 4_000
    found = quick_jit(lambda at: step_rates(at, config, PEAK, num_steps))(jnp.asarray(step))
    share = law.schedule_fraction(step, config, num_steps)
    if step <= num_steps:
        assert share == pytest.approx(oracle.schedule(step, num_steps), rel=1e-12)
    assert found["muonh"].item() == pytest.approx(share * PEAK.muon_lr, rel=1e-6)
    assert found["adamh"].item() == pytest.approx(share * PEAK.muon_lr, rel=1e-6)
    assert found["adam"].item() == pytest.approx(share * PEAK.adam_lr, rel=1e-6)
    decay = law.decay_coefficient(step, config, num_steps)
    assert found["decay"].item() == pytest.approx(decay, rel=1e-6, abs=2e-8)
    if step <= num_steps:
        assert decay == pytest.approx(oracle.decay_coefficient(step, num_steps, start=100))
