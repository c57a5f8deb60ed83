"""The ragged exchange: slices of rows to every device, by the real collective or exactly as it.

XLA for CPUs does not compile `jax.lax.ragged_all_to_all`. There all rows are gathered and each
device picks its own: the same numbers, with the memory of every device's rows.
"""

from functools import cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

type Kind = Literal["ragged_all_to_all", "all_gather"]

_AXIS = "probe"


@cache
def exchange_kind() -> Kind:
    """Return what exchanges ragged rows here: the real collective if this backend compiles it.

    Raises:
        jax.errors.JaxRuntimeError: it failed to compile for another reason than being unknown.
    """
    devices = np.array(jax.local_devices()[:2])
    rows = jax.ShapeDtypeStruct((8 * devices.size, 4), jnp.float32)
    index = jax.ShapeDtypeStruct((devices.size**2,), jnp.int32)

    def probe(rows: Array, index: Array) -> Array:
        return jax.lax.ragged_all_to_all(
            rows, jnp.zeros_like(rows), index, index, index, index, axis_name=_AXIS
        )

    mesh = Mesh(devices, (_AXIS,))
    mapped = jax.shard_map(probe, mesh=mesh, in_specs=P(_AXIS), out_specs=P(_AXIS), check_vma=False)
    try:
        # The first to ask may be a layer that is being traced on another mesh.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            jax.jit(mapped).lower(rows, index).compile()
    except jax.errors.JaxRuntimeError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        return "all_gather"
    return "ragged_all_to_all"


def ragged_exchange(
    operand: Float[Array, "R L"],
    output: Float[Array, "M L"],
    input_offsets: Int[Array, " n"],
    send_sizes: Int[Array, " n"],
    output_offsets: Int[Array, " n"],
    recv_sizes: Int[Array, " n"],
    *,
    axis: str | None,
    kind: Kind | None = None,
) -> Float[Array, "M L"]:
    """Send slices of `operand` to every device; return `output` with what came written over it.

    The meaning is `jax.lax.ragged_all_to_all`'s, with n / S consecutive slices for each of the S
    devices. Slices sent must not overlap, nor those received: the gradient is the same exchange
    with the directions reversed.

    Args:
        output_offsets: where each slice is written on the device that receives it.
        recv_sizes: of the slices that come, n / S from each device.
        axis: None where there is one device.
        kind: what to use, if not what this backend can.
    """
    chosen = "all_gather" if axis is None else (kind or exchange_kind())
    return _exchange(
        axis, chosen, operand, output, input_offsets, send_sizes, output_offsets, recv_sizes
    )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _exchange(
    axis: str | None,
    kind: Kind,
    operand: Float[Array, "R L"],
    output: Float[Array, "M L"],
    *where: Int[Array, " n"],
) -> Float[Array, "M L"]:
    if kind == "ragged_all_to_all":
        return jax.lax.ragged_all_to_all(operand, output, *where, axis_name=axis)
    input_offsets, _, output_offsets, recv_sizes = where
    from_offsets, to_offsets = _swap(input_offsets, axis, kind), _swap(output_offsets, axis, kind)
    slices, written = _covering(to_offsets, recv_sizes, output.shape[0])
    row = from_offsets[slices] + jnp.arange(output.shape[0], dtype=jnp.int32) - to_offsets[slices]
    source = slices // (recv_sizes.shape[0] // _size(axis))
    everything = operand if axis is None else jax.lax.all_gather(operand, axis, tiled=True)
    came = jnp.take(everything, source * operand.shape[0] + row, axis=0, mode="clip")
    return jnp.where(written[:, None], came, output)


def _exchange_forward(
    axis: str | None,
    kind: Kind,
    operand: Float[Array, "R L"],
    output: Float[Array, "M L"],
    *where: Int[Array, " n"],
) -> tuple[Float[Array, "M L"], tuple[Array, ...]]:
    # An empty slice carries the number of rows to the backward pass.
    return _exchange(axis, kind, operand, output, *where), (operand[:, :0], *where)


def _exchange_backward(
    axis: str | None, kind: Kind, saved: tuple[Array, ...], gradient: Float[Array, "M L"]
) -> tuple[Array | None, ...]:
    empty, input_offsets, send_sizes, output_offsets, recv_sizes = saved
    sources, targets = _swap(input_offsets, axis, kind), _swap(output_offsets, axis, kind)
    nothing = jnp.zeros((empty.shape[0], gradient.shape[1]), gradient.dtype)
    back = _exchange(axis, kind, gradient, nothing, targets, recv_sizes, sources, send_sizes)
    _, written = _covering(targets, recv_sizes, gradient.shape[0])
    return back, jnp.where(written[:, None], 0.0, gradient), None, None, None, None


_exchange.defvjp(_exchange_forward, _exchange_backward)


def _covering(
    offsets: Int[Array, " n"], sizes: Int[Array, " n"], num_rows: int
) -> tuple[Int[Array, " M"], Bool[Array, " M"]]:
    """Return the slice that covers each row, and whether one does."""
    begins = jnp.where(sizes > 0, offsets, num_rows)
    order = jnp.argsort(begins).astype(jnp.int32)
    row = jnp.arange(num_rows, dtype=jnp.int32)
    nearest = jnp.searchsorted(begins[order], row, side="right") - 1
    slices = order[jnp.maximum(nearest, 0)]
    return slices, (nearest >= 0) & (row < offsets[slices] + sizes[slices])


def _swap(values: Int[Array, " n"], axis: str | None, kind: Kind) -> Int[Array, " n"]:
    """Give every peer its part of the values and take what the peers have for this device."""
    if axis is None:
        return values
    if kind == "ragged_all_to_all":
        return jax.lax.all_to_all(values, axis, 0, 0, tiled=True)
    # On a CPU an all-to-all is one kernel per pair of peers: thousands of them to compile.
    peers = jax.lax.axis_size(axis)
    everything = jax.lax.all_gather(values, axis).reshape(peers, peers, -1)
    return jax.lax.dynamic_index_in_dim(
        everything, jax.lax.axis_index(axis), axis=1, keepdims=False
    ).reshape(-1)


def _size(axis: str | None) -> int:
    return 1 if axis is None else jax.lax.axis_size(axis)
