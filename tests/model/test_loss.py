from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import lm as oracle
from oracles.bridge import FLOAT32, assert_near, assert_slopes, quick_jit
from shoal.model.loss import blocked, one_shot, token_loss

VOCAB = 29
FORMS = {
    "one shot": one_shot,
    "blocks that divide nothing": partial(blocked, block_vocab=8),
    "one block too wide": partial(blocked, block_vocab=64),
}


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return {
        "hidden": rng.normal(size=(11, 6)),
        "head": rng.normal(size=(6, VOCAB)),
        "weights": rng.uniform(size=11) * (rng.uniform(size=11) > 0.3),
    }


TARGETS = np.array([0, 28, 7, 8, 15, 16, 23, 24, 1, 1, 27], np.int32)


def code_loss(form, hidden, head, weights):
    # As wide as the mode's own integers: the blocks count in those.
    found = form(hidden, head, jnp.asarray(TARGETS.tolist()))
    share = weights / jnp.sum(weights)
    return jnp.sum(share * found.nats) + 1e-2 * jnp.sum(share * jnp.square(found.log_z))


def oracle_loss(tree):
    logits = tree["hidden"] @ tree["head"]
    return oracle.loss_from_logits(logits, TARGETS, tree["weights"], z_loss=1e-2).total


@pytest.mark.parametrize("name", FORMS)
def test_each_token_costs_what_the_oracle_says(name, inputs):
    hidden, head = (jnp.asarray(inputs[key], jnp.float32) for key in ("hidden", "head"))
    found = quick_jit(FORMS[name])(hidden, head, jnp.asarray(TARGETS))
    logits = inputs["hidden"] @ inputs["head"]
    log_z = [oracle.logsumexp(row) for row in logits]
    assert_near(found.log_z, log_z, FLOAT32)
    assert_near(found.nats, np.array(log_z) - logits[np.arange(11), TARGETS], FLOAT32)


@pytest.mark.parametrize("name", FORMS)
def test_loss_gradients_equal_finite_differences(name, inputs):
    with jax.enable_x64(True):
        args = [jnp.asarray(value) for value in inputs.values()]
        run = quick_jit(jax.grad(partial(code_loss, FORMS[name]), argnums=(0, 1)))
        found = dict(zip(("hidden", "head"), run(*args), strict=True))
        assert_slopes(oracle_loss, inputs, found, tolerance=1e-7)


@pytest.mark.parametrize("name", FORMS)
def test_logits_of_ten_thousand_give_exact_losses_and_finite_gradients(name):
    hidden = jnp.asarray([[1e4], [-1e4], [1e4], [-1e4]])
    head = jnp.asarray(np.linspace(-1, 1, VOCAB)[None], jnp.float32)
    targets = jnp.asarray([0, 0, 28, 28])

    def total(hidden, head):
        found = FORMS[name](hidden, head, targets)
        return jnp.sum(found.nats) + jnp.sum(jnp.square(found.log_z)), found

    run = quick_jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (_, found), slopes = run(hidden, head)
    np.testing.assert_allclose(found.nats, [2e4, 0, 0, 2e4], rtol=1e-6)
    np.testing.assert_allclose(found.log_z, [1e4] * 4, rtol=1e-6)
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_the_threshold_chooses_the_form_and_not_the_value(inputs):
    hidden, head = (jnp.asarray(inputs[key], jnp.float32) for key in ("hidden", "head"))

    def run(above_bytes):
        form = partial(token_loss, block_vocab=8, block_above_bytes=above_bytes)
        return quick_jit(form).lower(hidden, head, jnp.asarray(TARGETS))

    logits_bytes = 4 * 11 * VOCAB
    whole, parts = run(logits_bytes), run(logits_bytes - 1)
    assert "while" not in whole.as_text()
    assert "while" in parts.as_text()
    args = (hidden, head, jnp.asarray(TARGETS))
    for one, other in zip(whole.compile()(*args), parts.compile()(*args), strict=True):
        assert_near(one, np.asarray(other), 1e-6)
