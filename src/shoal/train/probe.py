"""Raw gradients of two settings on the same state and batch, compared; no update is taken.

When a gradient norm moves after a change of kernel or transport, this tells whether the gradients
changed or the run did.
"""

from typing import Any

import jax
import jax.numpy as jnp

from shoal.arrays.weights import WeightSpec


def products(one: Any, other: Any) -> Any:
    """Return per leaf the sums of one * one, other * other and one * other, in float32."""

    def sums(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return jnp.stack([jnp.sum(a * a), jnp.sum(b * b), jnp.sum(a * b)])

    return jax.tree.map(sums, one, other)


def compare(described: Any, found: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Return norms, their ratio and the cosine, per optimizer group and per weight.

    Args:
        described: the WeightSpecs of the gradients' tree.
        found: what `products` returned, as numbers.
    """
    specs: list[WeightSpec] = jax.tree.leaves(described)
    groups: dict[str, list[float]] = {}
    weights: dict[str, dict[str, float]] = {}
    for spec, leaf in zip(specs, jax.tree.leaves(found), strict=True):
        if spec.group == "balance" or not spec.size:
            continue
        sums = [float(value) for value in leaf]
        weights[spec.name] = _told(sums)
        for group in (spec.group, "all"):
            before = groups.get(group, [0.0, 0.0, 0.0])
            groups[group] = [a + b for a, b in zip(before, sums, strict=True)]
    return {"groups": {name: _told(sums) for name, sums in groups.items()}, "weights": weights}


def _told(sums: list[float]) -> dict[str, float]:
    old, new = sums[0] ** 0.5, sums[1] ** 0.5
    both = old * new
    return {
        "old": old,
        "new": new,
        "ratio": new / old if old else float(new == old),
        "cosine": sums[2] / both if both else float(old == new),
    }
