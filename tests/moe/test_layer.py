"""The MoE branch against the oracle, and against a dense layer of the same active size."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from oracles import moe as oracle
from oracles.bridge import FLOAT32, assert_near, assert_slopes, quick_jit
from oracles.shape import Shape, random_params
from shoal.moe.carry import Capacity
from shoal.moe.experts import ExpertWeights, blocks, dense
from shoal.moe.layer import MoE, Routing, SharedWeights, moe_layer, shared_experts
from shoal.moe.route import balancing_bias
from shoal.moe.transport import local, transport

SHAPE = Shape()
TOKENS = 15
BLOCKS = partial(blocks, block_rows=4)


def run_layer(p, x, compute=BLOCKS, top_k=SHAPE.top_k, real=None, num_bins=1000, **changes):
    how = Routing(
        **{
            "top_k": top_k,
            "routed_scale": 2.5,
            "num_bins": num_bins,
            "norm_eps": SHAPE.norm_eps,
            "round_router_bf16": False,
            "carry": local,
            "capacity": Capacity(),
            "compute": compute,
            "own_grid": True,
            "mesh": None,
            **changes,
        }
    )
    real = jnp.ones(len(x), bool) if real is None else real
    y, stats = moe_layer(p, x[None], real[None], jnp.zeros(2, x.dtype), how)
    return y[0], stats


def flat(params):
    """The layer's parameters in one level, as `assert_slopes` wants them."""
    return {
        **{name: value for name, value in params.items() if not isinstance(value, dict)},
        **{f"experts.{name}": value for name, value in params["experts"].items()},
        **{f"shared.{name}": value for name, value in params["shared"].items()},
    }


def nested(tree):
    out = {"experts": {}, "shared": {}}
    for name, value in tree.items():
        first, _, last = name.partition(".")
        if last:
            out[first][last] = value
        else:
            out[first] = value
    return out


def module(tree, dtype=None):
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), nested(tree))
    parts = {
        "experts": ExpertWeights(**params.pop("experts")),
        "shared": SharedWeights(**params.pop("shared")),
    }
    return MoE(**params, **parts)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return {
        "tree": flat(random_params(SHAPE, 1)["layers"][0]["moe"]),
        "x": rng.normal(size=(TOKENS, SHAPE.width)),
        "mix": rng.normal(size=(TOKENS, SHAPE.width)),
    }


@pytest.mark.parametrize("compute", [BLOCKS, dense], ids=["blocks", "dense"])
def test_the_branch_equals_the_oracle(compute, inputs):
    expected, taken = oracle.moe(inputs["x"], nested(inputs["tree"]), SHAPE)
    p = module(inputs["tree"], jnp.float32)
    found, stats = quick_jit(partial(run_layer, compute=compute))(
        p, jnp.asarray(inputs["x"], p.router.dtype)
    )
    assert_near(found, expected, FLOAT32)
    assert_near(stats.margins.span, [taken.margins.min(), taken.margins.max()], FLOAT32)
    counts = np.bincount(taken.experts.ravel(), minlength=SHAPE.num_experts)
    np.testing.assert_array_equal(stats.load, counts)
    assert stats.load.sum() == TOKENS * SHAPE.top_k
    assert (stats.sender, stats.receiver, stats.delivered) == (0, 0, TOKENS * SHAPE.top_k)


def test_every_gradient_of_the_branch_equals_finite_differences(inputs):
    def scalar(tree):
        x = tree.pop("x")
        return float(np.sum(inputs["mix"] * oracle.moe(x, nested(tree), SHAPE)[0]))

    def code(tree):
        x = tree["x"]
        p = module({name: value for name, value in tree.items() if name != "x"})
        return jnp.sum(jnp.asarray(inputs["mix"]) * run_layer(p, x)[0])

    tree = {**inputs["tree"], "x": inputs["x"]}
    with jax.enable_x64(True):
        found = quick_jit(jax.grad(code))(
            {name: jnp.asarray(value) for name, value in tree.items()}
        )
        assert not np.any(np.asarray(found.pop("router_bias")))
        assert_slopes(scalar, tree, found, tolerance=1e-7)


def test_the_router_learns_through_the_combine_weights_alone(inputs):
    """With one expert per token the renormalized weight is constant and the router gets nothing."""
    x = jnp.asarray(inputs["x"], jnp.float32)
    mix = jnp.asarray(inputs["mix"], jnp.float32)

    def slope(top_k):
        p = module(inputs["tree"], jnp.float32)
        grad = jax.grad(lambda p: jnp.sum(mix * run_layer(p, x, top_k=top_k)[0]))
        return quick_jit(grad)(p).router

    assert np.abs(slope(2)).max() > 1e-3
    assert np.abs(slope(1)).max() < 1e-4


def test_without_shared_experts_their_part_is_zero():
    x = jnp.ones((1, 3, 4))
    none = SharedWeights(jnp.zeros((0, 4, 2)), jnp.zeros((0, 4, 2)), jnp.zeros((0, 2, 4)))
    np.testing.assert_array_equal(shared_experts(none, x), jnp.zeros((1, 3, 4)))


@pytest.mark.parametrize("name", ["local", "pooled", "ragged"])
def test_logits_of_ten_thousand_stay_finite_and_every_assignment_is_accounted_for(name, inputs):
    """Routing is all or nothing then, and little room takes most of it away."""
    tree = {**inputs["tree"], "router": 1e4 * inputs["tree"]["router"]}
    p = module(tree, jnp.float32)
    x = jnp.asarray(inputs["x"], jnp.float32)
    room = Capacity(sender=1.0, receiver=0.3, waves=2, chunks=2)

    @quick_jit
    def run(p, x):
        def total(p, x):
            y, stats = run_layer(p, x, carry=transport(name), capacity=room)
            return jnp.sum(jnp.square(y)), stats

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(p, x)

    (value, stats), slopes = run(p, x)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    accounted = stats.sender + stats.receiver + stats.delivered
    assert accounted == TOKENS * SHAPE.top_k
    assert (stats.sender + stats.receiver > 0) == (name != "local")


def test_padding_gets_nothing_from_the_routed_experts_and_counts_nowhere(inputs):
    p = module(inputs["tree"], jnp.float32)
    x = jnp.asarray(inputs["x"], jnp.float32)
    real = jnp.arange(TOKENS) < 9
    run = quick_jit(run_layer)
    y, stats = run(p, x, real=real)
    want, alone = run(p, x[:9])
    assert_near(y[:9], np.asarray(want), FLOAT32)
    assert_near(y[9:], np.asarray(shared_experts(p.shared, x[None])[0, 9:]), FLOAT32)
    np.testing.assert_array_equal(stats.load, alone.load)
    np.testing.assert_array_equal(stats.margins.counts, alone.margins.counts)
    assert stats.margins.tokens == 9
    assert stats.delivered == 9 * SHAPE.top_k
    assert_near(stats.entropy, np.asarray(alone.entropy), FLOAT32)


# A task that needs experts: half of the input names a cluster, and the cluster has a linear map of
# its own for the other half.
CLUSTERS, HALF, WIDTH, LATENT, FFN, STEPS = 16, 12, 24, 24, 16, 250


def task():
    rng = np.random.default_rng(7)
    names = rng.normal(size=(CLUSTERS, HALF))
    maps = rng.normal(size=(CLUSTERS, HALF, WIDTH)) / np.sqrt(HALF)
    cluster = rng.integers(0, CLUSTERS, size=1024)
    content = rng.normal(size=(1024, HALF))
    x = np.concatenate([names[cluster], content], axis=1)
    y = np.einsum("td,tde->te", content, maps[cluster])
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def new_moe(num_experts):
    rng = np.random.default_rng(8)

    def matrix(*dims):
        return jnp.asarray(rng.normal(size=dims) / np.sqrt(dims[-2]), jnp.float32)

    bank = (num_experts, LATENT, FFN)
    return MoE(
        router=matrix(WIDTH, num_experts),
        router_bias=jnp.zeros(num_experts),
        latent_down=matrix(WIDTH, LATENT),
        latent_norm=jnp.ones(LATENT),
        latent_up=matrix(LATENT, WIDTH),
        experts=ExpertWeights(matrix(*bank), matrix(*bank), matrix(num_experts, FFN, LATENT)),
        shared=SharedWeights(matrix(1, WIDTH, FFN), matrix(1, WIDTH, FFN), matrix(1, FFN, WIDTH)),
    )


def train(loss, params, after=lambda params, aux: params):
    adam = optax.adam(1e-2)

    @jax.jit
    def run(params):
        def step(carried, _):
            params, state = carried
            (value, aux), slopes = jax.value_and_grad(loss, has_aux=True)(params)
            with jax.numpy_dtype_promotion("standard"):
                updates, state = adam.update(slopes, state, params)
            return (after(optax.apply_updates(params, updates), aux), state), (value, aux)

        return jax.lax.scan(step, (params, adam.init(params)), None, length=STEPS)

    return run(params)[1]


def test_experts_beat_a_dense_layer_of_the_same_active_size_and_stay_balanced():
    x, y = task()

    def moe_loss(p):
        found, stats = run_layer(p, x, compute=partial(blocks, block_rows=64))
        return jnp.mean(jnp.square(found - y)), stats

    def rebalanced(p, stats):
        bias = balancing_bias(stats.margins, top_k=SHAPE.top_k)
        return MoE(**{**vars(p), "router_bias": bias})

    losses, stats = train(moe_loss, new_moe(CLUSTERS), rebalanced)

    # The twin has as many weights as one token meets above: router, latent, shared, two experts.
    rng = np.random.default_rng(9)
    active = WIDTH * CLUSTERS + 2 * WIDTH * LATENT + 3 * FFN * (WIDTH + SHAPE.top_k * LATENT)
    width = -(-active // (3 * WIDTH))
    shapes = [(1, WIDTH, width), (1, WIDTH, width), (1, width, WIDTH)]
    twin = SharedWeights(
        *(jnp.asarray(rng.normal(size=s) / np.sqrt(s[1]), jnp.float32) for s in shapes)
    )
    dense_losses, _ = train(
        lambda p: (jnp.mean(jnp.square(shared_experts(p, x[None])[0] - y)), None), twin
    )
    assert losses[-1] < 0.5 * dense_losses[-1], (losses[-1], dense_losses[-1])
    load = np.asarray(stats.load[-1], np.float64)
    assert load.std() / load.mean() < 0.2
