"""A small state, and a process that saves it again and again until it is killed."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from shoal.train import checkpoint
from shoal.train.step import State


def some_state(step: int = 4) -> State:
    """Float32 and int32 leaves, a scalar, one empty."""
    rng = np.random.default_rng(step)
    params = {
        "head": jnp.asarray(rng.normal(size=(3, 5)), jnp.float32),
        "router_bias": jnp.asarray(rng.normal(size=7), jnp.float32),
        "none": jnp.zeros((0, 4), jnp.float32),
    }
    optimizer = {"count": jnp.asarray(step, jnp.int32), "buffer": jnp.ones((2, 3), jnp.float32)}
    grid = jnp.asarray([[-1.0, 2.0]])
    return State(jnp.asarray(step, jnp.int32), params, optimizer, grid)


def forever(run: Path) -> None:
    """Save step after step from the newest on, keeping two; says where it began."""
    found = checkpoint.steps(run)
    print(f"from {found[-1] if found else 0}", flush=True)
    for step in itertools.count(found[-1] + 1 if found else 1):
        checkpoint.save(run, some_state(step), link={}, facts={})
        checkpoint.prune(run, 2)
