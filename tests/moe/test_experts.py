from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import moe as oracle
from oracles.bridge import FLOAT32, assert_each_near, assert_near, expert_weights, quick_jit
from shoal.moe.experts import ExpertWeights, block_layout, blocks, dense, expert_compute, ragged

NUM_EXPERTS, LATENT, FFN, ROWS = 5, 10, 7, 24
FORMS = {
    "blocks of 1": partial(blocks, block_rows=1),
    "blocks of 4": partial(blocks, block_rows=4),
    "blocks of 64": partial(blocks, block_rows=64),
    "dense": dense,
    "ragged": ragged,
}
GROUPS = {
    "even": [4, 8, 4, 4, 4],
    "unaligned": [7, 3, 5, 6, 3],
    "empty": [0, 11, 0, 13, 0],
    "one row": [1, 10, 1, 11, 1],
    "all to the first": [24, 0, 0, 0, 0],
    "all to the last": [0, 0, 0, 0, 24],
    "rows that nobody owns": [3, 0, 5, 1, 6],
}


@cache
def inputs():
    rng = np.random.default_rng(0)
    params = {
        "gate": rng.normal(size=(NUM_EXPERTS, LATENT, FFN)),
        "up": rng.normal(size=(NUM_EXPERTS, LATENT, FFN)),
        "down": rng.normal(size=(NUM_EXPERTS, FFN, LATENT)),
    }
    # Experts and rows of very different size: an absolute tolerance would not see the small.
    for name in params:
        params[name] *= np.logspace(-3, 0, NUM_EXPERTS)[:, None, None]
    rows, cotangent = rng.normal(size=(2, ROWS, LATENT))
    return params, rows, cotangent


@cache
def gradient_function(form):
    @quick_jit
    def run(params, rows, sizes, cotangent):
        out, back = jax.vjp(lambda p, r: FORMS[form](p, r, sizes), params, rows)
        return out, *back(cotangent)

    return run


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("form", FORMS)
def test_each_expert_has_the_oracles_rows_and_gradients(form, groups):
    params, rows, cotangent = inputs()
    sizes = np.array(GROUPS[groups], np.int32)
    out, found, found_rows = gradient_function(form)(
        expert_weights(params),
        jnp.asarray(rows, jnp.float32),
        jnp.asarray(sizes),
        jnp.asarray(cotangent, jnp.float32),
    )
    expected = oracle.expert_gradients(rows, sizes, params, cotangent)
    experts = [f"expert {e} of {n} rows" for e, n in enumerate(sizes)]
    for name in ("gate", "up", "down"):
        assert_each_near(getattr(found, name), expected[name], FLOAT32, experts)
    starts = np.cumsum(sizes)
    pieces = zip(
        np.split(np.asarray(out), starts),
        np.split(oracle.grouped_swiglu(rows, sizes, params), starts),
        np.split(np.asarray(found_rows), starts),
        np.split(expected["rows"], starts),
        strict=True,
    )
    for expert, (mine, theirs, slopes, expected_slopes) in enumerate(pieces):
        assert_near(mine, theirs, FLOAT32, f"rows of {expert}")
        assert_near(slopes, expected_slopes, FLOAT32, f"row gradients of {expert}")


@pytest.mark.parametrize("form", FORMS)
def test_rows_past_the_last_group_may_hold_anything_and_be_asked_for_anything(form):
    """NaN in them and in their cotangent: zeros come back, and every gradient is as without."""
    params, rows, cotangent = inputs()
    sizes = np.array(GROUPS["rows that nobody owns"], np.int32)
    nobodys = np.arange(ROWS) >= sizes.sum()

    def run(*arrays):
        given, slopes = (jnp.asarray(a, jnp.float32) for a in arrays)
        return gradient_function(form)(expert_weights(params), given, jnp.asarray(sizes), slopes)

    expected = run(rows, cotangent)
    found = run(*(np.where(nobodys[:, None], np.nan, a) for a in (rows, cotangent)))
    for mine, clean in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, clean)
    for mine in (found[0], found[2]):
        assert not np.asarray(mine)[nobodys].any()


def test_forms_agree_above_the_size_of_a_block():
    """Many rows per block and several blocks per expert, as in a run."""
    rng = np.random.default_rng(1)
    params = ExpertWeights(
        *(
            jnp.asarray(rng.normal(size=s) / 6, jnp.float32)
            for s in [(6, 40, 24)] * 2 + [(6, 24, 40)]
        )
    )
    rows, cotangent = jnp.asarray(rng.normal(size=(2, 500, 40)), jnp.float32)
    sizes = jnp.asarray([129, 0, 1, 64, 190, 116], jnp.int32)

    def run(form):
        _, back = jax.vjp(lambda p, r: form(p, r, sizes), params, rows)
        return back(cotangent)

    expected, expected_rows = quick_jit(partial(run, dense))()
    for rows_per_block in (64, 128):
        form = partial(blocks, block_rows=rows_per_block)
        found, found_rows = quick_jit(partial(run, form))()
        for name in ("gate", "up", "down"):
            assert_each_near(getattr(found, name), np.asarray(getattr(expected, name)), 1e-5)
        assert_near(found_rows, np.asarray(expected_rows), 1e-5)


@pytest.mark.parametrize("block_rows", [1, 3, 8])
def test_every_row_has_one_slot_in_a_block_of_its_expert_whatever_the_load(block_rows):
    layout = quick_jit(partial(block_layout, num_rows=ROWS, block_rows=block_rows))
    rng = np.random.default_rng(2)
    loads = [rng.multinomial(ROWS, rng.dirichlet([0.2] * NUM_EXPERTS)) for _ in range(50)]
    for sizes in [*loads, *(np.array(g) for g in list(GROUPS.values())[:-1])]:
        to_row, to_slot, block_expert = (
            np.asarray(a) for a in layout(jnp.asarray(sizes, jnp.int32))
        )
        owner = np.repeat(np.arange(NUM_EXPERTS), sizes)
        np.testing.assert_array_equal(np.sort(to_row[to_row < ROWS]), np.arange(ROWS))
        np.testing.assert_array_equal(to_row[to_slot], np.arange(ROWS))
        np.testing.assert_array_equal(block_expert[to_slot // block_rows], owner)


def test_an_unknown_form_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"fast.*auto, blocks, ragged, dense"):
        expert_compute("fast", block_rows=64)


def test_a_cpu_computes_experts_in_blocks():
    chosen = expert_compute("auto", block_rows=32)
    assert isinstance(chosen, partial)
    assert chosen.func is blocks
    assert chosen.keywords == {"block_rows": 32}
