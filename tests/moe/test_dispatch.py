import jax
import jax.numpy as jnp
import numpy as np

from oracles.bridge import assert_near, quick_jit
from shoal.moe.dispatch import combine, gather_rows, sort_by_expert

NUM_EXPERTS = 5


def test_assignments_are_sorted_by_expert_and_in_token_order_within_one():
    ids = np.random.default_rng(0).integers(0, NUM_EXPERTS - 1, size=(30, 2))
    order = quick_jit(sort_by_expert, static_argnums=1)(jnp.asarray(ids, jnp.int32), NUM_EXPERTS)
    expected = np.argsort(ids.ravel(), kind="stable")
    np.testing.assert_array_equal(order.sorted_ids, expected)
    np.testing.assert_array_equal(order.tokens, expected // 2)
    np.testing.assert_array_equal(np.asarray(order.sorted_ids)[order.rows].ravel(), np.arange(60))
    np.testing.assert_array_equal(
        order.group_sizes, np.bincount(ids.ravel(), minlength=NUM_EXPERTS)
    )
    assert order.group_sizes[-1] == 0


def test_padding_is_sorted_last_and_belongs_to_no_token_and_no_row():
    ids = jnp.asarray([[4, 1], [5, 5], [0, 5], [1, 4]], jnp.int32)
    order = sort_by_expert(ids, NUM_EXPERTS)
    assert order.group_sizes.tolist() == [1, 2, 0, 0, 2]
    assert order.sorted_ids.tolist() == [4, 1, 6, 0, 7, 8, 8, 8]
    assert order.tokens.tolist() == [2, 0, 3, 0, 3, 4, 4, 4]
    assert order.rows.tolist() == [[3, 1], [8, 8], [0, 8], [2, 4]]


def test_rows_are_summed_by_weight_in_float32_and_missing_ones_contribute_nothing():
    """256 + 1 + 1 in bfloat16 is 256; a weight of a missing row may be NaN."""
    rows = jnp.asarray([[256.0], [1.0], [1.0]], jnp.bfloat16)
    index = jnp.asarray([[0, 1, 2], [3, 1, 3]])
    owners = jnp.asarray([0, 1, 2])
    weights = jnp.asarray([[1.0, 1.0, 1.0], [jnp.nan, 2.0, jnp.nan]])
    y = combine(rows, index, owners, weights)
    assert y.dtype == jnp.float32
    assert y[:, 0].tolist() == [258.0, 2.0]


def test_gathering_with_a_known_inverse_has_the_gradient_of_indexing():
    """Rows taken twice, once and never, and a position that stays empty."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
    index = jnp.asarray([2, 0, 4, 2, 3])
    inverse = jnp.asarray([[1, 5], [5, 5], [0, 3], [4, 5]])
    cotangent = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    out, back = jax.vjp(lambda x: gather_rows(x, index, inverse), x)
    padded = np.concatenate([np.asarray(x), np.zeros((1, 3), np.float32)])
    np.testing.assert_array_equal(out, padded[np.asarray(index)])
    expected = np.zeros((5, 3))
    np.add.at(expected, np.asarray(index), np.asarray(cotangent))
    assert_near(back(cotangent)[0], expected[:4], 1e-6)
