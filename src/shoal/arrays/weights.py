"""The weight line: one declaration per parameter, where the parameter stands.

    class SwiGLU(eqx.Module):
        gate: Weight = weight("embed", "ffn")

From it come shape, initialization, optimizer group, norm axes, counts, sharding and export names.
A matrix is the last two axes of a leaf; leading axes (`layer`, `expert`, `shared`) are batches.
Modules hold parameters only. `describe` gives a module whose leaves are WeightSpecs.
"""

import dataclasses
import hashlib
import typing
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

type Init = Literal["normal", "ones", "zeros", "first_tap"]
type Group = Literal["muonh", "adamh", "adam", "balance"]
GROUPS: tuple[Group, ...] = ("muonh", "adamh", "adam")

# A parameter field holds an array in a model, a WeightSpec in a description, a label in a mask.
Weight = Any

_WEIGHT, _PART = "shoal_weight", "shoal_part"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """Everything known of one parameter leaf before it exists.

    Attributes:
        name: dotted path, such as `local.moe.experts.gate`.
        axes: logical axis names, one per dimension.
        group: the optimizer group; `balance` is written by the balancer alone.
        norm_axes: the axes, from the end, of one sphere for the constrained groups.
        decay: whether the decoupled decay applies.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    init: Init
    group: Group
    norm_axes: tuple[int, ...]
    decay: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


def weight(*axes: str, init: Init = "normal", group: Group = "muonh", decay: bool = False) -> Any:
    """Declare a parameter by its logical axes."""
    declared = {"axes": axes, "init": init, "group": group, "decay": decay}
    return dataclasses.field(metadata={_WEIGHT: declared})


def part(*, layer: str | None = None, **sizes: str) -> Any:
    """Declare a nested module.

    Args:
        layer: stack the module: the size name of a leading `layer` axis.
        **sizes: logical axis -> size name, where the part's size has another name than its axis.
    """
    return dataclasses.field(metadata={_PART: {"layer": layer, "sizes": sizes}})


def describe[M: eqx.Module](
    module: type[M], sizes: Mapping[str, int | None], *, shared_sphere: bool = False
) -> M:
    """Return the module with a WeightSpec at every leaf; a weight on an axis of no size has None.

    Args:
        sizes: size name -> number; an axis without a renamed size uses its own name.
        shared_sphere: one norm over all experts of a layer, as the public run had it.
    """
    return _describe(module, sizes, {}, (), "", shared_sphere)


def _describe(
    module: type[Any],
    sizes: Mapping[str, int | None],
    renamed: Mapping[str, str],
    leading: tuple[str, ...],
    prefix: str,
    shared_sphere: bool,
) -> Any:
    hints = typing.get_type_hints(module)
    built: dict[str, Any] = {}
    for field in dataclasses.fields(module):
        name = prefix + field.name.rstrip("_")
        if _PART in field.metadata:
            declared = field.metadata[_PART]
            names = {**renamed, **declared["sizes"]}
            stacked = leading
            if declared["layer"] is not None:
                names["layer"] = declared["layer"]
                stacked = ("layer", *leading)
            built[field.name] = _describe(
                hints[field.name], sizes, names, stacked, name + ".", shared_sphere
            )
            continue
        assert _WEIGHT in field.metadata, f"{module.__name__}.{field.name} is not declared"
        declared = field.metadata[_WEIGHT]
        axes = (*leading, *declared["axes"])
        shape = tuple(sizes[renamed.get(axis, axis)] for axis in axes)
        if None in shape:
            built[field.name] = None
            continue
        rank = 3 if shared_sphere and "expert" in axes[:-2] else min(2, len(declared["axes"]))
        built[field.name] = WeightSpec(
            name=name,
            axes=axes,
            shape=tuple(size for size in shape if size is not None),
            init=declared["init"],
            group=declared["group"],
            norm_axes=tuple(range(-rank, 0)),
            decay=declared["decay"],
        )
    return module(**built)


def specs_of(described: Any) -> list[WeightSpec]:
    """Return the specs in leaf order."""
    return jax.tree.leaves(described)


def initialize(described: Any, *, std: float, seed: int) -> Any:
    """Draw every parameter as a float32 numpy array."""
    return jax.tree.map(lambda spec: draw(spec, std=std, seed=seed), described)


def draw(
    spec: WeightSpec, *, std: float, seed: int, index: tuple[slice, ...] | None = None
) -> np.ndarray:
    """Draw a parameter, or the part of it that an index names, as a float32 numpy array.

    Each matrix has a random stream of its own, keyed by (seed, name, index in the batch axes), so
    that a value depends neither on the mesh nor on how many layers or experts stand beside it.
    numpy, because compiling many differently shaped draws costs more than drawing.
    """
    cut = (slice(None),) * len(spec.shape) if index is None else index
    ranges = [range(*part.indices(size)) for part, size in zip(cut, spec.shape, strict=True)]
    shape = tuple(map(len, ranges))
    if spec.init == "ones":
        return np.ones(shape, np.float32)
    values = np.zeros(shape, np.float32)
    if spec.init == "first_tap":
        whole = np.zeros(spec.shape, np.float32)
        whole[..., 0, :] = 1.0
        values[...] = whole[cut]
    elif spec.init == "normal":
        for place in np.ndindex(shape[:-2]):
            numbers = (ranges[axis][at] for axis, at in enumerate(place))
            key = "/".join(map(str, (seed, spec.name, *numbers)))
            stream = np.frombuffer(hashlib.sha256(key.encode()).digest()[:16], np.uint64)
            generator = np.random.Generator(np.random.Philox(key=stream))
            values[place] = std * _truncated_normal(generator, spec.shape[-2:])[cut[-2:]]
    return values


def _truncated_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal on [-3, 3], not rescaled to unit variance."""
    drawn = generator.standard_normal(shape, np.float32)
    outside = np.abs(drawn) > 3.0
    while outside.any():
        drawn[outside] = generator.standard_normal(int(outside.sum()), np.float32)
        outside = np.abs(drawn) > 3.0
    return drawn
