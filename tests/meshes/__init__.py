"""The training step on meshes of fake devices, beside the same step on one device.

The first step's raw gradients are read off the optimizer's state: momentum begins at zero, so its
buffer is the gradient, and Adam's first moment is (1 - beta1) of it.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from journey.tiny import MODEL
from shoal.arrays.config import AXES
from shoal.arrays.mesh import Placing, make_mesh
from shoal.model.config import ModelConfig
from shoal.moe.config import MoEConfig
from shoal.recipes.quickstart import quickstart
from shoal.train.config import Config
from shoal.train.derive import peak_rates
from shoal.train.state import abstract_state, global_batch, initial_state, shardings
from shoal.train.step import Batch, State, describe_model, make_step

ROWS, LENGTH = 24, 8

EVEN = replace(
    MODEL,
    vocab_size=64,
    num_layers=4,
    embed_dim=32,
    num_experts=8,
    expert_dim=16,
    latent_dim=16,
    window=5,
    block_rows=8,
    attention_chunk=4,
    base_context=LENGTH,
)
# Nothing divides the devices but the rows and the experts.
ODD = replace(EVEN, vocab_size=67, num_layers=5, embed_dim=34, num_experts=6, latent_dim=18)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one run of steps depends on; `degree` is of replica, data, expert and context."""

    degree: tuple[int, int, int, int] | None = None
    model: ModelConfig = EVEN
    moe: MoEConfig = MoEConfig()
    accumulation: int = 1
    memory: Any = "device"

    def config(self) -> Config:
        base = quickstart()
        train = replace(
            base.train,
            num_steps=60,
            batch_sequences=ROWS,
            sequence_tokens=LENGTH,
            accumulation=self.accumulation,
            memory=self.memory,
        )
        optimizer = replace(base.optimizer, muon_lr=0.02, adam_lr=0.01, warmup_fraction=0.0)
        return replace(base, model=self.model, optimizer=optimizer, train=train, moe=self.moe)

    def mesh(self) -> Placing:
        if self.degree is None:
            return None
        devices = jax.devices()[: int(np.prod(self.degree))]
        return make_mesh(dict(zip(AXES, self.degree, strict=True)), devices)

    def like(self) -> State:
        config = self.config()
        return abstract_state(config, peak_rates(config), self.mesh())

    def initial(self) -> State:
        config = self.config()
        return initial_state(config, peak_rates(config), self.mesh())


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Some steps of a run, on the host.

    Attributes:
        gradients: of the first step, by the weight's name; [] where none was taken.
    """

    metrics: list[dict[str, Any]]
    gradients: dict[str, Any]
    weights: dict[str, Any]
    state: State


def batch(setup: Setup, number: int) -> Batch:
    """Random tokens in documents; padding, without weight, at the ends of some rows."""
    rng = np.random.default_rng([number, 5])
    tokens = rng.integers(0, setup.model.vocab_size, (ROWS, LENGTH + 1)).astype(np.int32)
    segments = np.cumsum(rng.random((ROWS, LENGTH)) < 0.2, axis=1).astype(np.int32)
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, ROWS)
    segments[np.arange(LENGTH)[None] >= lengths[:, None]] = -1
    weights = (segments >= 0).astype(np.float32)
    whole = Batch(tokens[:, :-1], tokens[:, 1:], segments, weights)
    return global_batch(
        setup.mesh(), ROWS, LENGTH, lambda rows: Batch(*(array[rows] for array in whole))
    )


@cache
def step_of(setup: Setup) -> Callable[[State, Batch], tuple[State, dict[str, Any]]]:
    """The compiled step, without LLVM's optimizations."""
    config = setup.config()
    peak, mesh = peak_rates(config), setup.mesh()
    places = shardings(config, peak, mesh)
    options = {} if places is None else {"out_shardings": (places, None)}
    return jax.jit(
        make_step(config, peak, mesh),
        donate_argnums=0,
        compiler_options={"xla_backend_optimization_level": 0},
        **options,
    )


@cache
def walk(setup: Setup, num_steps: int = 1) -> Walk:
    """Run steps from the beginning."""
    return walk_from(setup, setup.initial(), 0, num_steps)


def walk_from(setup: Setup, state: State, first: int, num_steps: int) -> Walk:
    """Run steps from a state."""
    step, metrics, gradients = step_of(setup), [], {}
    for number in range(first, first + num_steps):
        state, found = step(state, batch(setup, number))
        metrics.append({name: np.asarray(value) for name, value in found.items()})
        if number == 0:
            gradients = _first_gradients(setup, state)
    host: State = jax.tree.map(np.asarray, state)
    return Walk(
        metrics=metrics,
        gradients=gradients,
        weights=_by_name(setup, host.params),
        state=host,
    )


def _by_name(setup: Setup, tree: Any) -> dict[str, Any]:
    specs = jax.tree.leaves(describe_model(setup.config()))
    return {spec.name: np.asarray(w) for spec, w in zip(specs, jax.tree.leaves(tree), strict=True)}


def _first_gradients(setup: Setup, state: State) -> dict[str, Any]:
    config = setup.config()
    specs = jax.tree.leaves(describe_model(config))
    parts = state.optimizer[0].inner_states
    trees = {
        "muonh": (parts["muonh"].inner_state.buffer, 1.0),
        **{
            group: (parts[group].inner_state.mu, 1.0 - config.optimizer.adam_beta1)
            for group in ("adamh", "adam")
        },
    }
    masked = {
        group: jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, optax.MaskedNode))
        for group, (tree, _) in trees.items()
    }
    found = {}
    for index, spec in enumerate(specs):
        if spec.group in trees:
            value = np.asarray(masked[spec.group][index], np.float64)
            found[spec.name] = value / trees[spec.group][1]
    return found


def relative(found: Any, expected: Any, axes: Any = None) -> float:
    """Largest distance over the norm of what is expected, per matrix or over all."""
    gap = np.asarray(found, np.float64) - np.asarray(expected, np.float64)
    size = np.sqrt(np.sum(np.square(np.asarray(expected, np.float64)), axis=axes))
    away = np.sqrt(np.sum(np.square(gap), axis=axes))
    return float(np.max(away / np.maximum(size, 1e-12 + 1e-6 * np.max(size, initial=0.0))))


def forget() -> None:
    """Free the compiled steps; what was walked is kept, on the host."""
    step_of.cache_clear()
    jax.clear_caches()
    gc.collect()


def jnp_tree(tree: Any) -> Any:
    """Arrays of a host tree."""
    return jax.tree.map(jnp.asarray, tree)
