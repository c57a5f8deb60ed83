"""What a transport is: the signature, the room it is given, and what it says of its drops.

    carry(x[T, L], expert_ids[T, K], weights[T, K], params, compute, *, axis, capacity)
        -> (y[T, L], Tally)

It runs inside `shard_map` (or on one device, with `axis` None) and sees local shapes. Expert
parameters are an argument, never closed over: closures over sharded arrays fail in `shard_map`.

An assignment is one choice of one token. An assignment to the expert E, one past the last, is
padding: it is nobody's, takes no room, counts nowhere and contributes nothing. A dropped
assignment contributes nothing either; the weights of those that stay are not rescaled.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Int

from shoal.moe.config import MoEConfig
from shoal.moe.experts import Compute, ExpertWeights


class Tally(NamedTuple):
    """Assignments of real tokens, as one device sees them.

    Summed over the axis, sender + receiver + delivered is the number of real assignments exactly.
    """

    sender: Int[Array, ""]
    """Its own, that it did not send for lack of room."""
    receiver: Int[Array, ""]
    """Sent to it, that it did not take."""
    delivered: Int[Array, ""]
    """That its experts computed, or for `local` its own tokens'."""


class Capacity(NamedTuple):
    """Factors on an even share, and in how many pieces the rows travel."""

    sender: float = 1.15
    receiver: float = 1.15
    waves: int = 3
    chunks: int = 2


def capacity_of(config: MoEConfig) -> Capacity:
    """Return the room that a configuration gives."""
    return Capacity(config.capacity_sender, config.capacity_receiver, config.waves, config.chunks)


@runtime_checkable
class Carry(Protocol):
    """The signature above; the specification of a transport.

    Args:
        weights: of the K choices; y is the weighted sum of their experts' rows, taken in float32
            (or wider) and returned in the dtype of x.
        params: this device's experts, [E / size of the axis, ...], consecutive ones.
        axis: the mesh axis that the experts are spread over; None where one device has them all,
            and then no collective is called.
    """

    def __call__(
        self,
        x: Float[Array, "T L"],
        expert_ids: Int[Array, "T K"],
        weights: Float[Array, "T K"],
        params: ExpertWeights,
        compute: Compute,
        *,
        axis: str | None,
        capacity: Capacity,
    ) -> tuple[Float[Array, "T L"], Tally]: ...


def axis_size(axis: str | None) -> int:
    """Return the number of devices along the axis; one where there is none."""
    return 1 if axis is None else jax.lax.axis_size(axis)


def axis_index(axis: str | None) -> Int[Array, ""] | int:
    """Return this device's place along the axis."""
    return 0 if axis is None else jax.lax.axis_index(axis)
