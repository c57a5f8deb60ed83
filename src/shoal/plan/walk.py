"""Operations of a traced program, counted from its jaxpr: matrix products alone, 2 m n k each.

XLA's own cost analysis counts the body of a loop once; this multiplies it by the loop's length,
and what runs inside `shard_map` by the devices that it runs on. Outside of it shapes are global,
so a computation that every replica repeats counts once.
"""

import math
from collections.abc import Iterator
from typing import Any


def matmul_flops(jaxpr: Any) -> float:
    """Return the operations of a (closed) jaxpr, loops and all devices included.

    Raises:
        ValueError: a product inside a loop whose length is not known.
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_equation_flops(equation) for equation in inner.eqns)


def _equation_flops(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        return _dot(equation, params["dimension_numbers"])
    if name.startswith("ragged_dot"):
        return _ragged_dot(equation, params["ragged_dot_dimension_numbers"])
    inside = [matmul_flops(each) for each in _jaxprs(params)]
    if name == "scan":
        return params["length"] * sum(inside)
    if name == "shard_map":
        return math.prod(dict(params["mesh"].shape).values()) * sum(inside)
    if name == "cond":
        return max(inside, default=0.0)
    if name == "while" and sum(inside):
        raise ValueError(
            "a matrix product stands in a loop of unknown length; give the loop a fixed length"
        )
    return sum(inside)


def _dot(equation: Any, dimensions: Any) -> float:
    (_, contracted), (_, batch) = dimensions
    left, right = (operand.aval.shape for operand in equation.invars)
    return 2.0 * math.prod(left) * _product_without(right, contracted, batch)


def _ragged_dot(equation: Any, dimensions: Any) -> float:
    """Every row once: the group axis of the right side, or of the result, costs nothing."""
    (_, contracted), (_, batch) = dimensions.dot_dimension_numbers
    left, right = (operand.aval.shape for operand in equation.invars[:2])
    groups = dimensions.rhs_group_dimensions
    return 2.0 * math.prod(left) * _product_without(right, contracted, batch, groups)


def _product_without(shape: tuple[int, ...], *left_out: Any) -> int:
    skipped = {axis for axes in left_out for axis in axes}
    return math.prod(size for axis, size in enumerate(shape) if axis not in skipped)


def _jaxprs(params: Any) -> Iterator[Any]:
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(each, "eqns") or hasattr(each, "jaxpr"):
                yield each
