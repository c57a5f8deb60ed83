"""From compute to accuracy in two steps: compute -> task loss by the law, task loss -> accuracy.

A task's accuracy stays at chance and then rises, so it follows no law in compute, but the loss of
its right answers does. The second step is a sigmoid between chance and a ceiling,
`accuracy = chance + height / (1 + e^((loss - middle) * slope))`, fitted to models of any kind for
which both are known. It is linear in the height, which leaves a search over two numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from shoal.scaling.forecast import SeriesForecast, rounded

MIN_MODELS = 4
_SIDE = 48


@dataclass(frozen=True, kw_only=True)
class AccuracyLaw:
    """A task's accuracy as a function of its loss.

    Attributes:
        chance: accuracy of guessing.
        height: of the ceiling above chance.
        middle: the loss of half the height.
        slope: how fast it rises as the loss falls.
        noise: standard deviation of a model around it.
        models: how many it was fitted to.
    """

    chance: float
    height: float
    middle: float
    slope: float
    noise: float
    models: int

    def at(self, loss: float) -> float:
        """The accuracy at a loss."""
        return self.chance + self.height / (
            1 + math.exp(min((loss - self.middle) * self.slope, 700))
        )


def fit_accuracy(
    losses: Sequence[float], accuracies: Sequence[float], *, chance: float
) -> AccuracyLaw:
    """Fit the second step.

    Args:
        losses: of the task's right answers, one for each model.
        accuracies: of the same models.
        chance: accuracy of guessing, such as 0.25 of four answers.

    Raises:
        ValueError: too few models, values that are none, or losses that are all alike.
    """
    loss, seen = np.array(losses, np.float64), np.array(accuracies, np.float64)
    if len(loss) != len(seen) or len(loss) < MIN_MODELS:
        raise ValueError(
            f"{len(loss)} losses and {len(seen)} accuracies; give one of each for at least"
            f" {MIN_MODELS} models"
        )
    if not (np.isfinite(loss).all() and ((seen >= 0) & (seen <= 1)).all() and 0 <= chance < 1):
        raise ValueError("losses must be finite, accuracies from 0 to 1, chance from 0 to below 1")
    spread = float(np.ptp(loss))
    if spread == 0:
        raise ValueError(f"all losses are {losses[0]}; give models of different losses")
    middle, slope = _coarse(loss, seen - chance, spread, 1 - chance)
    middle, slope = _polished(loss, seen - chance, middle, slope, 1 - chance)
    shape = _shape(loss, np.array([[middle]]), np.array([[slope]]))[0, 0]
    height = float(np.clip(shape @ (seen - chance) / (shape @ shape), 0.0, 1 - chance))
    wrong = seen - chance - height * shape
    noise = math.sqrt(float(wrong @ wrong) / max(len(loss) - 3, 1))
    return AccuracyLaw(
        chance=chance, height=height, middle=middle, slope=slope, noise=noise, models=len(loss)
    )


def two_step(
    series: SeriesForecast, law: AccuracyLaw, *, items: int | None = None
) -> dict[str, Any]:
    """A task's accuracy at the end of the target's training.

    Args:
        series: the forecast of the task's loss.
        law: the second step.
        items: of the task; the accuracy of one run has their sampling noise too.

    Returns:
        `central interval_50 interval_90`: the loss's interval through the sigmoid, and the scatter
        of models around it in quadrature.

    Raises:
        ValueError: the loss is not forecast at the end.
    """
    from scipy.special import stdtrit

    loss, inner, outer = series.central[-1], series.interval_50[-1], series.interval_90[-1]
    if loss is None or inner is None or outer is None:
        raise ValueError("the task's loss is not forecast at the end of training")
    central = law.at(loss)
    own = central * (1 - central) / items if items else 0.0
    freedom = max(law.models - 3, 1)
    found: dict[str, Any] = {"central": rounded(central)}
    for level, pair in ((50, inner), (90, outer)):
        half = float(stdtrit(freedom, 0.5 + level / 200)) * math.sqrt(law.noise**2 + own)
        low = central - math.hypot(central - law.at(pair[1]), half)
        high = central + math.hypot(law.at(pair[0]) - central, half)
        found[f"interval_{level}"] = [rounded(max(low, 0.0)), rounded(min(high, 1.0))]
    return found


def _shape(
    loss: Float[np.ndarray, " N"], middle: Float[np.ndarray, "A 1"], slope: Float[np.ndarray, "1 B"]
) -> Float[np.ndarray, "A B N"]:
    return 1 / (1 + np.exp(np.minimum((loss - middle[..., None]) * slope[..., None], 700.0)))


def _coarse(
    loss: Float[np.ndarray, " N"], above: Float[np.ndarray, " N"], spread: float, most: float
) -> tuple[float, float]:
    """The best of a grid, the height in closed form at each place."""
    middles = np.linspace(loss.min() - spread, loss.max() + spread, _SIDE)
    slopes = np.geomspace(0.2 / spread, 200 / spread, _SIDE)
    shape = _shape(loss, middles[:, None], slopes[None])
    height = np.clip(shape @ above / np.maximum((shape**2).sum(-1), 1e-300), 0.0, most)
    wrong = ((above - height[..., None] * shape) ** 2).sum(-1)
    row, column = np.unravel_index(int(wrong.argmin()), wrong.shape)
    return float(middles[row]), float(slopes[column])


def _polished(
    loss: Float[np.ndarray, " N"],
    above: Float[np.ndarray, " N"],
    middle: float,
    slope: float,
    most: float,
) -> tuple[float, float]:
    from scipy.optimize import least_squares

    def wrong(place: Float[np.ndarray, " 2"]) -> Float[np.ndarray, " N"]:
        shape = _shape(loss, np.array([[place[0]]]), np.array([[math.exp(place[1])]]))[0, 0]
        height = np.clip(shape @ above / max(float(shape @ shape), 1e-300), 0.0, most)
        return above - height * shape

    found = least_squares(wrong, [middle, math.log(slope)], xtol=1e-14, ftol=1e-14, gtol=1e-14)
    return float(found.x[0]), math.exp(float(found.x[1]))
