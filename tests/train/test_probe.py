"""Gradients of two settings, compared by group and by weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshes import EVEN
from shoal.arrays.weights import specs_of
from shoal.model.lm import describe_lm
from shoal.train.probe import compare, products

DESCRIBED = describe_lm(EVEN)


def gradients(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda spec: jnp.asarray(rng.normal(size=spec.shape)), DESCRIBED)


def test_norms_and_cosines_are_those_of_all_numbers_of_a_group_together():
    one, other = gradients(0), gradients(1)
    found = compare(DESCRIBED, products(one, other))
    for group in ("muonh", "adamh", "adam", "all"):
        flat = [
            np.concatenate(
                [
                    np.asarray(leaf, np.float64).ravel()
                    for spec, leaf in zip(specs_of(DESCRIBED), jax.tree.leaves(tree), strict=True)
                    if spec.group == group or (group == "all" and spec.group != "balance")
                ]
            )
            for tree in (one, other)
        ]
        old, new = map(np.linalg.norm, flat)
        row = found["groups"][group]
        assert row["old"] == pytest.approx(old, rel=1e-5)
        assert row["new"] == pytest.approx(new, rel=1e-5)
        assert row["ratio"] == pytest.approx(new / old, rel=1e-5)
        assert row["cosine"] == pytest.approx(flat[0] @ flat[1] / (old * new), abs=1e-5)


def test_a_scaled_gradient_has_cosine_one_and_its_scale_as_ratio():
    one = gradients(2)
    found = compare(DESCRIBED, products(one, jax.tree.map(lambda g: 2.0 * g, one)))
    for row in [*found["groups"].values(), *found["weights"].values()]:
        assert row["cosine"] == pytest.approx(1.0, abs=1e-5)
        assert row["ratio"] == pytest.approx(2.0, rel=1e-5)


def test_a_weight_that_gets_no_gradient_under_one_setting_shows():
    one = gradients(3)
    dead = jax.tree.map(lambda g: g, one)
    dead = jax.tree.unflatten(
        jax.tree.structure(dead),
        [
            jnp.zeros_like(leaf) if spec.name == "local.moe.experts.up" else leaf
            for spec, leaf in zip(specs_of(DESCRIBED), jax.tree.leaves(dead), strict=True)
        ],
    )
    row = compare(DESCRIBED, products(one, dead))["weights"]["local.moe.experts.up"]
    assert (row["new"], row["ratio"], row["cosine"]) == (0.0, 0.0, 0.0)
    both = compare(DESCRIBED, products(dead, dead))["weights"]["local.moe.experts.up"]
    assert (both["ratio"], both["cosine"]) == (1.0, 1.0)
