"""The whole optimizer from the weight declarations: three groups, one schedule.

muonh  matrices: orthogonalized Nesterov momentum, hyperball step
adamh  the output head: Adam's direction, hyperball step, at the matrices' rate
adam   embedding, router, head gate, norm gains, convolutions: Adam, with decay where declared

With `optimizer.matrices=adamw` the first two groups are AdamW: the plain alternative.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from shoal.optim.config import OptimizerConfig
from shoal.optim.hyperball import hyperball_step
from shoal.optim.law import Rates, num_warmup_steps
from shoal.optim.muonh import Spread, muon_direction

type StepRates = dict[str, Array]


@runtime_checkable
class Declared(Protocol):
    """What the optimizer reads of a weight's declaration (`arrays.weights.WeightSpec`)."""

    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def group(self) -> str: ...
    @property
    def norm_axes(self) -> tuple[int, ...]: ...
    @property
    def decay(self) -> bool: ...


def build(
    described: Any,
    config: OptimizerConfig,
    peak: Rates,
    *,
    spread: Spread = jnp.concatenate,
    keep_banks_apart: bool = False,
    settle: Callable[[Any], Any] = lambda tree: tree,
) -> optax.GradientTransformationExtraArgs:
    """Return the transform; `update` takes the extra argument `rates` (see `step_rates`).

    Args:
        described: the model's tree of declarations; groups and norm axes come from it.
        spread: see `muonh.orthogonalize`.
        keep_banks_apart: orthogonalize the experts of each leaf by themselves; on one device they
            join the other matrices, which compiles and runs faster there.
        settle: puts a tree like the model back to where its weights rest.
    """
    specs: list[Declared] = jax.tree.leaves(described)
    adam = _loosely_typed(optax.scale_by_adam(b1=config.adam_beta1, b2=peak.beta2, eps=peak.eps))
    is_bank = [
        keep_banks_apart and "expert" in spec.axes[:-2] for spec in specs if spec.group == "muonh"
    ]
    muonh = muon_direction(
        config.momentum, jnp.dtype(config.newton_schulz_dtype), is_bank=is_bank, spread=spread
    )
    directions = optax.partition(
        {
            "muonh": muonh if config.matrices == "muonh" else adam,
            "adamh": adam,
            "adam": adam,
            "balance": optax.set_to_zero(),
        },
        jax.tree.map(lambda spec: spec.group, described),
    )
    return optax.chain(directions, _apply_rates(described, config, settle))


def _loosely_typed(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Let a library transform mix Python floats with its integer count under strict promotion."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):
            return transform.update(updates, state, params)

    return optax.GradientTransformation(transform.init, update)


def step_rates(
    step: Int[Array, ""], config: OptimizerConfig, peak: Rates, num_steps: int
) -> StepRates:
    """Return each group's rate, and `decay`, of the update after `step` earlier ones.

    The same straight lines as `law.schedule_fraction` and `law.decay_coefficient`.
    """
    at = step.astype(jnp.float32)
    warmup = num_warmup_steps(config, num_steps)
    rising = at / max(warmup, 1)
    progress = jnp.clip((at - warmup) / (num_steps - warmup), 0.0, 1.0)
    falling = 1.0 + (config.final_fraction - 1.0) * progress
    fraction = jnp.where(step < warmup, rising, falling)
    decay = config.decay * jnp.maximum(1.0 - at / num_steps, 0.0)
    decay = jnp.where(step < config.decay_from_step, jnp.zeros_like(decay), decay)
    muon, adam = fraction * peak.muon_lr, fraction * peak.adam_lr
    return {"muonh": muon, "adamh": muon, "adam": adam, "decay": decay}


def _apply_rates(
    described: Any, config: OptimizerConfig, settle: Callable[[Any], Any]
) -> optax.GradientTransformationExtraArgs:
    def init(params: Any) -> optax.OptState:
        del params
        return optax.EmptyState()

    def update(
        updates: Any,
        state: optax.OptState,
        params: Any = None,
        **extra: Any,
    ) -> tuple[Any, optax.OptState]:
        rates: StepRates = extra["rates"]

        def one(spec: Declared, u: Float[Array, "..."], w: Float[Array, "..."]) -> Array:
            if spec.group == "balance":
                return u
            if spec.group in ("muonh", "adamh"):
                if config.matrices == "adamw":
                    return -rates[spec.group] * (u + config.weight_decay * w)
                return hyperball_step(w, u, rates[spec.group], spec.norm_axes) - w
            pull = u + rates["decay"] * w if spec.decay else u
            return -rates["adam"] * pull

        return jax.tree.map(one, described, settle(updates), params), state

    return optax.GradientTransformationExtraArgs(init, update)
