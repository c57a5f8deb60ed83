"""The devices of a run: its mesh, checked against the config, and what runs on it, in words."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from shoal.arrays.config import BATCH_AXES, CONTEXT, MeshConfig, batch_shards, degrees
from shoal.core.progress import Progress
from shoal.train.checks import experts_divide_over_their_axis
from shoal.train.config import Config


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What a config runs on.

    Attributes:
        mesh: None for one device.
        degree: of every mesh axis.
        lines: what was resolved and chosen, to print.
    """

    mesh: Any
    degree: dict[str, int]
    lines: tuple[str, ...]


def visible_devices() -> list[Any]:
    """Return the devices of all processes of this run."""
    import jax

    return jax.devices()


def devices_of(config: Config) -> Devices:
    """Lay this run's devices out as its config says.

    Raises:
        ValueError: the mesh does not make up the devices, or does not divide the model or batch.
    """
    from shoal.arrays.mesh import make_mesh
    from shoal.model.attention import attention_kind
    from shoal.moe.exchange import exchange_kind
    from shoal.moe.experts import expert_kind

    devices = visible_devices()
    degree = degrees(config.mesh, len(devices))
    check_degrees(config, degree)
    on_mesh = len(devices) > 1 or config.train.memory != "device"
    mesh = make_mesh(degree, devices) if on_mesh else None
    if degree[CONTEXT] > 1 and attention_kind(config.model) == "kernel":
        raise ValueError(
            f"mesh.context={degree[CONTEXT]} needs model.attention=chunks: the kernel does not cut"
            " sequences"
        )
    kind, moe = devices[0].device_kind, config.moe
    exchange = f", exchanging by {exchange_kind()}" if moe.transport == "ragged" else ""
    experts = expert_kind(config.model.experts)
    attention = attention_kind(config.model)
    spelled = ", ".join(f"{axis}={size}" for axis, size in degree.items())
    return Devices(
        mesh=mesh,
        degree=degree,
        lines=(
            f"devices: {len(devices)} x {kind}; mesh {spelled}",
            f"transport {moe.transport}{exchange}; experts by {experts}; attention by {attention}",
        ),
    )


def mesh_or_none(config: Config, progress: Progress) -> Any:
    """Return the run's mesh on these devices, or None, and so one device, where it does not fit."""
    try:
        return devices_of(config).mesh
    except ValueError as error:
        progress.note(f"on one device, as the run's mesh does not fit here: {error}")
        return None


def check_degrees(config: Config, degree: dict[str, int]) -> None:
    """Refuse a mesh that does not divide what it cuts.

    Raises:
        ValueError: every problem, one a line.
    """
    shards, axes = batch_shards(degree), " x ".join(BATCH_AXES)
    parts = config.train.accumulation
    resolved = dataclasses.replace(config, mesh=MeshConfig(**degree))
    problems = [found for found in (experts_divide_over_their_axis(resolved),) if found]
    for name, rows in (
        ("train.batch_sequences", config.train.batch_sequences),
        ("eval.batch_sequences", config.eval.batch_sequences),
    ):
        pieces = parts * shards if name.startswith("train") else shards
        if rows % pieces:
            by = f"{axes} = {shards}" + (f" x train.accumulation={parts}" if parts > 1 else "")
            problems.append(
                f"{name}={rows} is not divisible by the mesh's {by}; use a multiple of {pieces},"
                " or fewer devices"
            )
    for name, length in (
        ("train.sequence_tokens", config.train.sequence_tokens),
        ("eval.sequence_tokens", config.eval.sequence_tokens),
    ):
        if length % degree[CONTEXT]:
            problems.append(
                f"{name}={length} is not divisible by mesh axis 'context'={degree[CONTEXT]};"
                " use a power of two that divides it"
            )
    if problems:
        raise ValueError("\n".join(problems))
