"""Devices as a named mesh, and where arrays stand on it.

The rest of the model is written as if there were one device. What makes it run on many stands
here: weights rest cut into parts and are gathered where they are used, layer by layer; tokens stay
cut over the batch axes; `on_each_device` runs the few pieces that talk to other devices themselves.
`None` for a mesh means one device without any of this.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from shoal.arrays.axes import placed
from shoal.arrays.config import AXES, BATCH_AXES, CONTEXT, DATA, EXPERT
from shoal.arrays.weights import WeightSpec

type Placing = Mesh | None

_HOST = "pinned_host"
_SHARDS = (DATA, EXPERT)


def make_mesh(degrees: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """Lay devices out as a mesh with an axis for each name, in that order.

    Axes of degree 1 are kept, so that one program serves every mesh. Neighbors in the device list
    stand along `context` first, then `expert`: these talk the most.

    Args:
        degrees: from `arrays.config.degrees`.
        devices: all of this job's by default.
    """
    found = np.array(jax.devices() if devices is None else devices)
    shape = tuple(degrees[axis] for axis in AXES)
    return Mesh(found.reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def degrees_of(mesh: Placing) -> dict[str, int]:
    """Return the degree of every axis."""
    return dict.fromkeys(AXES, 1) if mesh is None else dict(mesh.shape)


def axis_or_none(mesh: Placing, axis: str) -> str | None:
    """Return the axis for a collective, or None where it has one device."""
    return axis if degrees_of(mesh)[axis] > 1 else None


def whole(mesh: Mesh) -> NamedSharding:
    """Where an array stands that every device holds in full."""
    return NamedSharding(mesh, P())


def tokens_at(mesh: Mesh) -> NamedSharding:
    """Where an array [B, S, ...] of tokens stands."""
    return NamedSharding(mesh, P(BATCH_AXES, CONTEXT))


def over_rows(rows: np.ndarray, mesh: Placing) -> jax.Array:
    """Put an array [B, S, ...] that every process has whole onto the mesh, cut over the batch."""
    if mesh is None:
        return jnp.asarray(rows)
    return jax.make_array_from_callback(rows.shape, tokens_at(mesh), lambda index: rows[index])


def rests_at(spec: WeightSpec, mesh: Mesh, *, on_host: bool = False) -> NamedSharding:
    """Where a weight, its gradient and its moments stand between uses."""
    cut = _partition(spec.axes, spec.shape, mesh)
    return NamedSharding(mesh, cut, memory_kind=_HOST if on_host else None)


def _partition(axes: Sequence[str], shape: Sequence[int], mesh: Mesh) -> P:
    cut = placed(axes, shape, dict(mesh.shape))
    return P(*(axes or None for axes in cut))


def bank_partition(mesh: Mesh, num_experts: int) -> P:
    """How one layer's bank [E, ...] is cut."""
    return _partition(("expert",), (num_experts,), mesh)


def gathered_bank(bank: Any, mesh: Placing, num_experts: int, dtype: Any) -> Any:
    """Gather what of a layer's bank is cut over data, inside `on_each_device`.

    What remains is this device's share along the expert axis, whole. Banks travel in `dtype`; their
    gradients are summed and scattered in the banks' own, float32.
    """
    if mesh is None or DATA not in placed(("expert",), (num_experts,), dict(mesh.shape))[0]:
        return bank
    return jax.tree.map(lambda leaf: from_all(leaf, DATA, dtype), bank)


def from_all(leaf: Float[Array, "e I O"], axis: str, dtype: Any) -> Float[Array, "E I O"]:
    """Gather the parts of a bank over a mesh axis, inside `on_each_device`.

    They travel in `dtype`; gradients are summed and scattered back in the bank's own.
    """
    return _from_all(leaf, axis, leaf.dtype, dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _from_all(leaf: Array, axis: str, own: Any, dtype: Any) -> Array:
    del own
    return jax.lax.all_gather(leaf.astype(dtype), axis, tiled=True)


def _from_all_forward(leaf: Array, axis: str, own: Any, dtype: Any) -> tuple[Array, None]:
    return _from_all(leaf, axis, own, dtype), None


def _from_all_backward(
    axis: str, own: Any, dtype: Any, kept: None, gradient: Array
) -> tuple[Array]:
    del dtype, kept
    return (jax.lax.psum_scatter(gradient.astype(own), axis, tiled=True),)


_from_all.defvjp(_from_all_forward, _from_all_backward)


def on_device(tree: Any, mesh: Placing) -> Any:
    """Bring leaves that rest in host memory to the device, inside a jitted function."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.memory.Space.Device), tree)


def along_tokens(x: Float[Array, "B S *rest"], mesh: Placing) -> Float[Array, "B S *rest"]:
    """Keep tokens cut over the batch and context axes."""
    return x if mesh is None else jax.lax.with_sharding_constraint(x, tokens_at(mesh))


def at_use(params: Any, described: Any, mesh: Placing, dtype: Any) -> Any:
    """Gather weights for their use, in the dtype of their use; banks stay as and where they are.

    The gradient goes back to where the weight rests, and becomes the weight's own dtype there: of a
    matrix used in bfloat16 the devices' parts are summed in bfloat16. Vectors and what is looked up
    (the embedding) keep their dtype, and so do their gradients.

    Args:
        described: the same tree of WeightSpecs; a leading `layer` axis that the weights lack, as
            inside a loop over layers, is dropped.
    """
    if mesh is None:
        return params

    def one(spec: WeightSpec, leaf: Array) -> Array:
        extra = len(spec.axes) - leaf.ndim
        axes, shape = spec.axes[extra:], spec.shape[extra:]
        is_matrix = len(axes) > 1 and "channel" not in axes and spec.name != "embed"
        rest = NamedSharding(mesh, _partition(axes, shape, mesh))
        if "expert" in axes[:-2]:
            return jax.lax.with_sharding_constraint(leaf, rest)
        use = whole(mesh)
        return _gathered(leaf, leaf.dtype, dtype if is_matrix else leaf.dtype, use, rest)

    return jax.tree.map(one, described, params)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gathered(w: Array, own: Any, dtype: Any, use: NamedSharding, rest: NamedSharding) -> Array:
    del own, rest
    return jax.lax.with_sharding_constraint(w.astype(dtype), use)


def _gathered_forward(
    w: Array, own: Any, dtype: Any, use: NamedSharding, rest: NamedSharding
) -> tuple[Array, None]:
    return _gathered(w, own, dtype, use, rest), None


def _gathered_backward(
    own: Any, dtype: Any, use: NamedSharding, rest: NamedSharding, kept: None, gradient: Array
) -> tuple[Array]:
    del dtype, use, kept
    return (jax.lax.with_sharding_constraint(gradient.astype(own), rest),)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def settled(tree: Any, described: Any, mesh: Placing) -> Any:
    """Put weights, gradients or updates back to where they rest."""
    if mesh is None:
        return tree
    return jax.tree.map(
        lambda spec, leaf: jax.lax.with_sharding_constraint(leaf, rests_at(spec, mesh)),
        described,
        tree,
    )


def spread_matrices(parts: list[Array], mesh: Placing) -> Float[Array, "n I O"]:
    """Join batches [n_i, I, O] of matrices and give every shard whole ones of them.

    The batch is padded with zero matrices to a multiple of the shards. The parts are brought to
    one cut before they are joined: parts with different cuts would be gathered whole.
    """
    if mesh is None:
        return jnp.concatenate(parts)
    shards = math.prod(mesh.shape[axis] for axis in _SHARDS)
    cut = P(None, None, _SHARDS) if parts[0].shape[-1] % shards == 0 else P()

    def keep(x: Array, spec: P) -> Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    joined = jnp.concatenate([keep(part, cut) for part in parts])
    padded = jnp.pad(joined, ((0, -joined.shape[0] % shards), (0, 0), (0, 0)))
    # In two moves: in one, the padding would be cut before its batch divides.
    return keep(keep(padded, cut), P(_SHARDS))


def on_each_device[**A, R](
    function: Callable[A, R], mesh: Placing, takes: tuple[Any, ...], gives: Any
) -> Callable[A, R]:
    """Run a function on every device's own part (`shard_map`).

    Args:
        takes: per argument a PartitionSpec (or a tree of them).
        gives: the same for the result.
    """
    if mesh is None:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=takes, out_specs=gives, check_vma=False)


def over_all(x: Array, reduce: Callable[[Array, Any], Array], mesh: Placing) -> Array:
    """Reduce over every device of the mesh, inside `on_each_device`."""
    return x if mesh is None else reduce(x, AXES)
