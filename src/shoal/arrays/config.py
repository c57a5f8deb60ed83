"""The mesh of a run: how many devices along each axis; no arrays, no jax.

replica  whole copies of the weights, far apart (racks): gradients are summed across them
data     fully sharded data parallelism: every device holds a part of the weights
expert   experts spread over devices; rows travel to them (`moe.transport`)
context  a sequence cut into pieces

The batch is cut over replica, data and expert; a sequence over context.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from shoal.core.config import placement

REPLICA, DATA, EXPERT, CONTEXT = "replica", "data", "expert", "context"
AXES = (REPLICA, DATA, EXPERT, CONTEXT)
BATCH_AXES = (REPLICA, DATA, EXPERT)


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The degree of each axis; one of them may be -1: what the other three leave."""

    replica: int = placement(1)
    data: int = placement(-1)
    expert: int = placement(1)
    context: int = placement(1)

    def __post_init__(self) -> None:
        for field in fields(self):
            degree = getattr(self, field.name)
            if degree < 1 and degree != -1:
                raise ValueError(
                    f"mesh.{field.name}={degree} must be 1 or more, or -1 for what is left"
                )
        free = [f.name for f in fields(self) if getattr(self, f.name) == -1]
        if len(free) > 1:
            raise ValueError(
                f"mesh.{free[0]} and mesh.{free[1]} are both -1; only one axis can take what is"
                " left: give the other a number"
            )


def degrees(config: MeshConfig, num_devices: int) -> dict[str, int]:
    """Return the degree of every axis on a number of devices; -1 is resolved here alone.

    Raises:
        ValueError: the degrees do not make up the devices.
    """
    given = {axis: getattr(config, axis) for axis in AXES}
    fixed = math.prod(degree for degree in given.values() if degree != -1)
    free = [axis for axis, degree in given.items() if degree == -1]
    spelled = ", ".join(f"{axis}={degree}" for axis, degree in given.items())
    if free and num_devices % fixed == 0 and num_devices >= fixed:
        return {**given, free[0]: num_devices // fixed}
    if free:
        raise ValueError(
            f"mesh ({spelled}) needs a multiple of {fixed} devices, there are {num_devices};"
            f" lower a degree to a divisor of {num_devices}"
        )
    if fixed != num_devices:
        raise ValueError(
            f"mesh ({spelled}) has {fixed} devices, there are {num_devices}; set one degree to -1"
            " to take all of them, or make only some visible"
        )
    return given


def batch_shards(degree: Mapping[str, int]) -> int:
    """Return over how many shards the rows of a batch are cut."""
    return math.prod(degree[axis] for axis in BATCH_AXES)
