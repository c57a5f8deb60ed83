"""MuonH, AdamH, Adam, the learning-rate law, schedule and decay (recipe.md 8).

`count` is the number of updates already made, so the first update has count 0.
"""

import math
from dataclasses import dataclass

import numpy as np

from oracles.shape import Array

TRIPLES = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
FLOOR = 1e-10


def newton_schulz(matrix: Array) -> Array:
    x = matrix / (np.sqrt(np.sum(matrix**2)) + 1e-8)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for a, b, c in TRIPLES:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def hyperball(weight: Array, direction: Array, rate: float) -> Array:
    """One relative step on the sphere of the whole array given."""
    norm = max(float(np.sqrt(np.sum(weight**2))), FLOOR)
    length = max(float(np.sqrt(np.sum(direction**2))), FLOOR)
    moved = weight - rate * norm * direction / length
    return moved * norm / max(float(np.sqrt(np.sum(moved**2))), FLOOR)


def muonh(
    weight: Array, gradient: Array, buffer: Array, rate: float, *, shared_sphere: bool = False
) -> tuple[Array, Array]:
    """(new weight, new buffer). Leading axes are a batch of matrices.

    `shared_sphere` is for [..., E, in, out]: one sphere for all experts of a layer.
    """
    buffer = 0.95 * buffer + gradient
    update = 0.95 * buffer + gradient
    direction = np.zeros_like(update)
    for index in np.ndindex(*weight.shape[:-2]):
        fan_in, fan_out = weight.shape[-2:]
        direction[index] = newton_schulz(update[index]) * math.sqrt(max(1.0, fan_out / fan_in))
    new = np.zeros_like(weight)
    sphere_axes = 3 if shared_sphere else 2
    for index in np.ndindex(*weight.shape[:-sphere_axes]):
        new[index] = hyperball(weight[index], direction[index], rate)
    return new, buffer


@dataclass(frozen=True, kw_only=True)
class Moments:
    first: Array
    second: Array
    count: int

    @classmethod
    def zeros_like(cls, weight: Array) -> "Moments":
        return cls(first=np.zeros_like(weight), second=np.zeros_like(weight), count=0)


def adam_direction(
    gradient: Array, moments: Moments, beta2: float, eps: float, beta1: float = 0.9
) -> tuple[Array, Moments]:
    """Epsilon stands outside the square root, after the bias correction."""
    count = moments.count + 1
    first = beta1 * moments.first + (1.0 - beta1) * gradient
    second = beta2 * moments.second + (1.0 - beta2) * gradient**2
    corrected = second / (1.0 - beta2**count)
    direction = first / (1.0 - beta1**count) / (np.sqrt(corrected) + eps)
    return direction, Moments(first=first, second=second, count=count)


def adam(
    weight: Array,
    gradient: Array,
    moments: Moments,
    rate: float,
    beta2: float,
    eps: float,
    decay: float = 0.0,
) -> tuple[Array, Moments]:
    """`decay` is the coefficient of this step; it is multiplied by the rate, as in AdamW."""
    direction, moments = adam_direction(gradient, moments, beta2, eps)
    return weight - rate * (direction + decay * weight), moments


def adamh(
    weight: Array, gradient: Array, moments: Moments, rate: float, beta2: float, eps: float
) -> tuple[Array, Moments]:
    direction, moments = adam_direction(gradient, moments, beta2, eps)
    return hyperball(weight, direction, rate), moments


def beta2_rule(tokens_per_step: float) -> float:
    return min(max(0.999 ** (tokens_per_step / 131_072), 0.95), 0.9999)


def eps_rule(num_steps: int) -> float:
    return 9.676e-18 * math.sqrt(num_steps)


def adam_rate_law(tokens: float, width: int, tokens_per_step: float) -> float:
    return 0.087571 * tokens**-0.3461 * width**-0.3448 * math.sqrt(tokens_per_step)


def muon_rate_law(tokens: float, width: int, tokens_per_step: float) -> float:
    return min(13.0 / 3.0 * adam_rate_law(tokens, width, tokens_per_step), 0.05)


def schedule(count: int, num_steps: int, warmup: float = 0.01, end: float = 0.05) -> float:
    """Share of the peak rate: a line up from 0, then a line down to `end` at num_steps."""
    num_warmup = int(warmup * num_steps)
    if count < num_warmup:
        return count / num_warmup
    return 1.0 - (1.0 - end) * (count - num_warmup) / (num_steps - num_warmup)


def decay_coefficient(
    count: int, num_steps: int, start: int = 0, coefficient: float = 0.02
) -> float:
    """Of the head gate and the router weight."""
    return 0.0 if count < start else coefficient * (1.0 - count / num_steps)
