"""Between the oracle's nested dicts, one per layer, and the model's two stacks.

The only module here that knows the code under test.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oracles.differences import Path, finite_difference, leaf
from oracles.shape import Array, Shape, Tree
from shoal.arrays.weights import WeightSpec
from shoal.model.config import ModelConfig
from shoal.model.lm import LM, describe_lm
from shoal.moe.experts import ExpertWeights

# An error of a float32 sum of squares is relative to the norm of the whole, not to each entry.
FLOAT32 = 2e-5

# Compiling a whole model costs ten times its run here; without LLVM's optimizations half.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def model_config(shape: Shape, context: int, **changes: Any) -> ModelConfig:
    """The same model; chunks, blocks and bins small, so that tiny inputs use several."""
    numbers: dict[str, Any] = {
        "vocab_size": shape.vocab,
        "num_layers": shape.num_layers,
        "embed_dim": shape.width,
        "num_heads": shape.num_heads,
        "head_dim": shape.head_dim,
        "kv_heads_local": shape.local_kv_heads,
        "kv_heads_global": shape.global_kv_heads,
        "kv_heads_stored_global": shape.stored_global_kv_heads,
        "num_experts": shape.num_experts,
        "top_k": shape.top_k,
        "expert_dim": shape.ffn,
        "latent_dim": shape.latent,
        "num_shared": shape.num_shared,
        "shared_dim": shape.shared_ffn,
        "gate_rank": shape.gate_rank,
        "conv_taps": shape.conv_taps,
        "window": shape.window,
        "global_every": shape.global_every,
        "rotary_global": shape.rotary_global,
        "rotary_dim": shape.head_dim // 2,
        "rope_theta": shape.rope_theta,
        "qk_scale": shape.qk_scale,
        "base_context": context,
        "norm_eps": shape.norm_eps,
        "routed_scale": shape.weight_sum,
        "z_loss": shape.z_loss,
        "block_rows": 4,
        "attention_chunk": 4,
    }
    return ModelConfig(**{**numbers, **changes})


def layers_of(config: ModelConfig, kind: str) -> list[int]:
    """The model-order indices of one stack's layers."""
    return [i for i, own in enumerate(config.layer_kinds) if own == kind]


def stacked(params: Tree, name: str, config: ModelConfig) -> Array:
    """The oracle's array for a leaf of the model, by the leaf's dotted name."""
    first, *rest = name.split(".")
    if first not in {"local", "global"}:
        return leaf(params, tuple(name.split(".")))
    return np.stack([leaf(params["layers"][i], tuple(rest)) for i in layers_of(config, first)])


def lm_of(params: Tree, config: ModelConfig, dtype: Any = jnp.float32) -> LM:
    def take(spec: WeightSpec) -> Any:
        empty = 0 in spec.shape
        value = np.zeros(spec.shape) if empty else stacked(params, spec.name, config)
        assert value.shape == spec.shape, (spec.name, value.shape, spec.shape)
        return jnp.asarray(value, dtype)

    return jax.tree.map(take, describe_lm(config))


def oracle_paths(name: str, config: ModelConfig) -> list[tuple[Path, Any]]:
    """(path in the oracle's tree, index in the model's leaf) of every part of a leaf."""
    first, *rest = name.split(".")
    if first not in {"local", "global"}:
        return [(tuple(name.split(".")), ())]
    indices = layers_of(config, first)
    return [(("layers", layer, *rest), (row,)) for row, layer in enumerate(indices)]


def named_leaves(tree: LM, config: ModelConfig) -> dict[str, np.ndarray]:
    specs = jax.tree.leaves(describe_lm(config))
    return {
        spec.name: np.asarray(value)
        for spec, value in zip(specs, jax.tree.leaves(tree), strict=True)
    }


def expert_weights(params: Tree, dtype: Any = jnp.float32) -> ExpertWeights:
    return ExpertWeights(*(jnp.asarray(params[name], dtype) for name in ("gate", "up", "down")))


def relative_error(found: Any, expected: Any) -> float:
    """Norm of the difference over the norm of the expected."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    gap = np.linalg.norm((found - expected).ravel())
    size = np.linalg.norm(expected.ravel())
    return float(gap) if size == 0.0 else float(gap / size)


def assert_near(found: Any, expected: Any, tolerance: float, what: object = "") -> None:
    """Relative to the whole array; an expected zero must be exactly zero."""
    error = relative_error(found, expected)
    limit = tolerance if np.any(np.asarray(expected)) else 0.0
    assert error <= limit, f"{what}: relative error {error:.3g} above {limit:.3g}"


def assert_each_near(
    found: Any, expected: Any, tolerance: float, names: Sequence[object] | None = None
) -> None:
    """`assert_near` per entry of the leading axis: one wrong expert cannot hide in the norm."""
    for i in range(len(expected)):
        assert_near(found[i], expected[i], tolerance, names[i] if names else f"entry {i}")


def assert_slopes(
    f: Callable[[Any], float],
    x: Mapping[str, Array],
    gradients: Mapping[str, Any],
    *,
    tolerance: float,
    seed: int = 0,
) -> None:
    """Every gradient along a random direction against the finite difference of the oracle.

    The tolerance is relative to the size that such a slope has for a gradient of this norm.
    """
    rng = np.random.default_rng(seed)
    for name, gradient in gradients.items():
        direction = rng.normal(size=np.shape(x[name]))
        expected = finite_difference(f, dict(x), {name: direction})
        found = float(np.sum(np.asarray(gradient, np.float64) * direction))
        size = max(float(np.linalg.norm(np.asarray(gradient))), abs(expected))
        assert abs(found - expected) <= tolerance * size, (name, found, expected)
