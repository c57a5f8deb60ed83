"""The published rules that turn the size of a run into rates, beta2, epsilon and a schedule.

D training tokens, d width, b tokens per step:

    adam_lr = 0.087571 * D^-0.3461 * d^-0.3448 * sqrt(b)        muon_lr = 13/3 * adam_lr
    beta2   = 0.999^(b / 131072), kept in [0.95, 0.9999]        epsilon = 9.676e-18 * sqrt(D / b)

Both rates are capped at 0.05. Source: marin-community/marin issues #7856 (the sweep) and #8435
(the run). Fitted on widths 512 to 2,048 and 30 to 600 tokens per active parameter; the square
root of the batch was assumed there, not fitted. Plain Python, no jax.
"""

import math
from dataclasses import dataclass

from shoal.optim.config import OptimizerConfig

_COEFFICIENT = 0.087571
_TOKENS_EXPONENT = -0.3461
_WIDTH_EXPONENT = -0.3448
_MUON_PER_ADAM = 13 / 3
CAP = 0.05
_BETA2_BASE = 0.999
_BETA2_BASE_TOKENS = 131_072
_BETA2_RANGE = (0.95, 0.9999)
_EPSILON_PER_ROOT_STEP = 9.676e-18


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The optimizer's four size-dependent numbers; the rates are the schedule's peak."""

    muon_lr: float
    adam_lr: float
    beta2: float
    eps: float


def adam_lr(*, tokens: int, embed_dim: int, tokens_per_step: int) -> float:
    """Return the peak rate of the Adam group."""
    return min(_uncapped(tokens, embed_dim, tokens_per_step), CAP)


def muon_lr(*, tokens: int, embed_dim: int, tokens_per_step: int) -> float:
    """Return the peak rate of MuonH and AdamH: the relative step of a weight per update."""
    return min(_MUON_PER_ADAM * _uncapped(tokens, embed_dim, tokens_per_step), CAP)


def _uncapped(tokens: int, embed_dim: int, tokens_per_step: int) -> float:
    size = tokens**_TOKENS_EXPONENT * embed_dim**_WIDTH_EXPONENT
    return _COEFFICIENT * size * math.sqrt(tokens_per_step)


def beta2(tokens_per_step: int) -> float:
    """Return Adam's second-moment decay: a fixed memory in tokens, within bounds."""
    low, high = _BETA2_RANGE
    return min(max(_BETA2_BASE ** (tokens_per_step / _BETA2_BASE_TOKENS), low), high)


def epsilon(num_steps: int) -> float:
    """Return Adam's epsilon, added outside the square root."""
    return _EPSILON_PER_ROOT_STEP * math.sqrt(num_steps)


def rates(
    config: OptimizerConfig, *, num_steps: int, tokens_per_step: int, embed_dim: int
) -> Rates:
    """Fill what the config leaves open; a number that it states is taken as it is."""
    tokens = num_steps * tokens_per_step
    size = {"tokens": tokens, "embed_dim": embed_dim, "tokens_per_step": tokens_per_step}
    adam = adam_lr(**size) if config.adam_lr is None else config.adam_lr
    matrices = muon_lr(**size) if config.matrices == "muonh" else adam
    return Rates(
        muon_lr=matrices if config.muon_lr is None else config.muon_lr,
        adam_lr=adam,
        beta2=beta2(tokens_per_step) if config.adam_beta2 is None else config.adam_beta2,
        eps=epsilon(num_steps) if config.adam_eps is None else config.adam_eps,
    )


def num_warmup_steps(config: OptimizerConfig, num_steps: int) -> int:
    """Return the steps before the peak, rounded down as the public run did (3,902)."""
    return int(config.warmup_fraction * num_steps)


def schedule_fraction(step: int, config: OptimizerConfig, num_steps: int) -> float:
    """Return the share of the peak rate that update number `step` (from 0) uses.

    A straight line from 0 to 1 at the end of warmup, then another to `final_fraction` at
    `num_steps`, where it stays. The first update of a run with warmup has rate 0.
    """
    warmup = num_warmup_steps(config, num_steps)
    if step < warmup:
        return step / warmup
    progress = min((step - warmup) / (num_steps - warmup), 1.0)
    return 1.0 + (config.final_fraction - 1.0) * progress


def decay_coefficient(step: int, config: OptimizerConfig, num_steps: int) -> float:
    """Return the decoupled decay of head gate and router at an update (times adam_lr).

    The published form anneals with the share of steps left, not with the rate: 0.01703 at
    step 58,014 of 390,251 (marin-community/marin pull request #8833).
    """
    if step < config.decay_from_step:
        return 0.0
    return config.decay * max(1.0 - step / num_steps, 0.0)
