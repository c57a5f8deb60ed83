from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import moe as oracle
from oracles.bridge import FLOAT32, assert_near, assert_slopes, expert_weights, quick_jit
from oracles.shape import Shape, random_params
from shoal.moe.experts import ExpertWeights, blocks, dense
from shoal.moe.transport import local

SHAPE = Shape()
TOKENS = 11
CHOICES = {
    "spread": np.random.default_rng(0).permuted(
        np.tile(np.arange(SHAPE.num_experts), (TOKENS, 1)), axis=1
    )[:, : SHAPE.top_k],
    "all to one pair": np.tile([3, 1], (TOKENS, 1)),
    "two experts empty": np.random.default_rng(1).permuted(
        np.tile([0, 2, 4, 5], (TOKENS, 1)), axis=1
    )[:, : SHAPE.top_k],
}


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(2)
    x, mix = rng.normal(size=(2, TOKENS, SHAPE.latent))
    weights = rng.uniform(0.1, 2.0, size=(TOKENS, SHAPE.top_k))
    params = random_params(SHAPE, 3)["layers"][0]["moe"]["experts"]
    return {"x": x, "mix": mix, "weights": weights, **params}


@pytest.mark.parametrize("choice", CHOICES)
def test_tokens_come_back_as_the_weighted_sum_of_their_experts(choice, inputs):
    ids = CHOICES[choice]
    params = {name: inputs[name] for name in ("gate", "up", "down")}
    for compute in (partial(blocks, block_rows=4), dense):
        run = quick_jit(lambda x, i, w, p, c=compute: local(x, i, w, p, c))
        args = (inputs["x"], inputs["weights"])
        x, weights = (jnp.asarray(a, jnp.float32) for a in args)
        y, tally = run(x, jnp.asarray(ids, jnp.int32), weights, expert_weights(params))
        assert_near(y, oracle.routed(inputs["x"], ids, inputs["weights"], params), FLOAT32)
        assert tuple(map(int, tally)) == (0, 0, ids.size)


def test_with_experts_that_copy_their_rows_nothing_is_lost_or_swapped(inputs):
    """Each expert multiplies by its own number, so a row in a wrong group shows."""

    def copy(params, rows, group_sizes):
        owner = jnp.searchsorted(jnp.cumsum(group_sizes), jnp.arange(rows.shape[0]), side="right")
        return rows * (10.0 ** owner.astype(jnp.float32))[:, None]

    ids = CHOICES["spread"]
    empty = ExpertWeights(*(jnp.zeros((SHAPE.num_experts, 1, 1)) for _ in range(3)))
    x, weights = (jnp.asarray(inputs[name], jnp.float32) for name in ("x", "weights"))
    run = quick_jit(lambda x, i, w: local(x, i, w, empty, copy)[0])
    factor = np.sum(inputs["weights"] * 10.0**ids, axis=1, keepdims=True)
    np.testing.assert_allclose(
        run(x, jnp.asarray(ids, jnp.int32), weights), inputs["x"] * factor, rtol=1e-5
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_gradients_through_the_transport_equal_finite_differences(choice, inputs):
    ids = CHOICES[choice]

    def scalar(tree):
        return float(np.sum(tree["mix"] * oracle.routed(tree["x"], ids, tree["weights"], tree)))

    def code(tree, ids):
        params = ExpertWeights(tree["gate"], tree["up"], tree["down"])
        y, _ = local(tree["x"], ids, tree["weights"], params, partial(blocks, block_rows=4))
        return jnp.sum(tree["mix"] * y)

    with jax.enable_x64(True):
        tree = {name: jnp.asarray(value) for name, value in inputs.items()}
        found = quick_jit(jax.grad(code))(tree, jnp.asarray(ids))
        assert_slopes(scalar, inputs, found, tolerance=1e-7)
