"""A run's state on its mesh: where every leaf stands, drawn anew or as shapes alone, and batches.

A leaf's place follows from the weight's declaration; moments and gradients stand like their weight.
With `train.memory` parts of the state rest in pinned host memory between steps. The step brings
them to the device and back; the numbers are the same.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from shoal.arrays.mesh import Placing, rests_at, tokens_at, whole
from shoal.arrays.weights import draw, specs_of
from shoal.optim.law import Rates
from shoal.train.config import Config
from shoal.train.step import Batch, State, describe_model, optimizer_of

type Rows = Callable[[slice], Any]


def shardings(config: Config, peak: Rates, mesh: Placing) -> State | None:
    """Return where every leaf of the state rests; None on one device without a mesh."""
    if mesh is None:
        return None
    described, memory = describe_model(config), config.train.memory
    params = jax.tree.map(lambda s: rests_at(s, mesh, on_host=memory == "state_on_host"), described)
    moments = jax.tree.map(lambda s: rests_at(s, mesh, on_host=memory != "device"), described)
    optimizer = optimizer_of(config, peak, mesh)
    shapes = jax.eval_shape(optimizer.init, _shapes(described))
    placed = optax.tree_map_params(
        optimizer,
        lambda leaf, place: leaf if _is_masked(leaf) else place,
        shapes,
        moments,
        transform_non_params=lambda _: whole(mesh),
        is_leaf=_is_masked,
    )
    return State(whole(mesh), params, placed, whole(mesh))


def abstract_state(config: Config, peak: Rates, mesh: Placing = None) -> State:
    """Return the state as shapes, dtypes and places, allocating nothing."""
    described = describe_model(config)
    params = _shapes(described)
    state = State(
        jax.ShapeDtypeStruct((), jnp.int32),
        params,
        jax.eval_shape(optimizer_of(config, peak, mesh).init, params),
        jax.ShapeDtypeStruct((config.model.num_layers, 2), jnp.float32),
    )
    places = shardings(config, peak, mesh)
    if places is None:
        return state
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        state,
        places,
    )


def initial_state(config: Config, peak: Rates, mesh: Placing = None) -> State:
    """Draw the parameters and make the empty optimizer state of step 0.

    Of the experts every process draws only what its devices hold, of other weights all, one leaf at
    a time; a value depends on neither mesh nor process.
    """
    described, like = describe_model(config), abstract_state(config, peak, mesh)
    specs = iter(specs_of(described))
    std, seed = config.model.init_std, config.train.seed

    def drawn(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        spec = next(specs)
        if "expert" in spec.axes[:-2]:
            own = cache(lambda cut: draw(spec, std=std, seed=seed, index=_slices(cut)))
            return _made(leaf, lambda index: own(_numbers(index, leaf.shape)))
        every = draw(spec, std=std, seed=seed)
        return _made(leaf, lambda index: every[index])

    def zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return _made(leaf, lambda index: np.zeros(_sizes(leaf.shape, index), leaf.dtype))

    params = jax.tree.map(drawn, like.params)
    return State(zeros(like.step), params, jax.tree.map(zeros, like.optimizer), zeros(like.grid))


def global_batch(mesh: Placing, num_rows: int, length: int, rows: Rows) -> Batch:
    """Make a batch on the mesh from the rows that this process's devices hold.

    Args:
        rows: a slice of rows -> an object with the fields of `Batch` as numpy arrays.
    """
    if mesh is None:
        loaded = rows(slice(0, num_rows))
        return Batch(*(jnp.asarray(getattr(loaded, name)) for name in Batch._fields))
    place, kept = tokens_at(mesh), {}

    def at(name: str, index: Any) -> np.ndarray:
        span = range(*index[0].indices(num_rows))
        key = (span.start, span.stop)
        if key not in kept:
            kept[key] = rows(slice(*key))
        return getattr(kept[key], name)[:, index[1]]

    return Batch(
        *(
            jax.make_array_from_callback(
                (num_rows, length), place, lambda index, name=name: at(name, index)
            )
            for name in Batch._fields
        )
    )


def _is_masked(leaf: Any) -> bool:
    return isinstance(leaf, optax.MaskedNode)


def _shapes(described: Any) -> Any:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.float32), described)


type _Cut = tuple[tuple[int, int], ...]


def _numbers(index: tuple[slice, ...], shape: tuple[int, ...]) -> _Cut:
    """Return an index as numbers, which can be a key."""
    return tuple(cut.indices(size)[:2] for cut, size in zip(index, shape, strict=True))


def _slices(cut: _Cut) -> tuple[slice, ...]:
    return tuple(slice(*ends) for ends in cut)


def _sizes(shape: tuple[int, ...], index: tuple[slice, ...]) -> list[int]:
    return [len(range(*cut.indices(size))) for cut, size in zip(index, shape, strict=True)]


def _made(leaf: jax.ShapeDtypeStruct, part: Callable[[Any], np.ndarray]) -> jax.Array:
    if leaf.sharding is None:
        return jnp.asarray(part((slice(None),) * len(leaf.shape)))
    assert isinstance(leaf.sharding, NamedSharding)
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, part)
