"""The CPU ladder with one choice of the public design put back to its plain alternative each.

Same widths, tokens, batches and steps as `cpu-ladder`, so `shoal compare cpu-ladder cpu-global`
says what the choice is worth at this scale, at equal compute and at equal time. Windows without
positions on global layers, and latents, are known to mislead when small: a report, no verdict.
"""

import dataclasses
from collections.abc import Callable

from shoal.recipes.cpu_ladder import cpu_ladder
from shoal.scaling.ladder import LadderConfig
from shoal.train.config import Config

WEIGHT_DECAY = 0.1
# Times the ladder's rate of the Adam group, for all weights; 1 is where a tuning begins.
ADAMW_SCALE = 1.0


def cpu_global() -> LadderConfig:
    """Return the ladder with every layer global and rotated, instead of 3:1 windows."""
    return _varied("cpu-global", lambda config: _model(config, global_every=1, rotary_global=True))


def cpu_wide() -> LadderConfig:
    """Return the ladder with experts at full width, a third of it inside: as many active numbers.

    A latent costs two D x D/2 projections and four experts of D/2 x D/2: 4 D^2 active numbers a
    layer, as four experts of D x D/3 have.
    """
    return _varied(
        "cpu-wide",
        lambda config: _model(
            config, latent_dim=None, expert_dim=round(config.model.embed_dim / 3)
        ),
    )


def cpu_adamw() -> LadderConfig:
    """Return the ladder with AdamW for matrices and head; its rate is not tuned yet."""
    return _varied("cpu-adamw", _adamw)


def cpu_no_z() -> LadderConfig:
    """Return the ladder without the z-loss on logits."""
    return _varied("cpu-no-z", lambda config: _model(config, z_loss=0.0))


def _adamw(config: Config) -> Config:
    rate = config.optimizer.adam_lr
    assert rate is not None, "the CPU ladder states its rates"
    optimizer = dataclasses.replace(
        config.optimizer,
        matrices="adamw",
        weight_decay=WEIGHT_DECAY,
        muon_lr=None,
        adam_lr=ADAMW_SCALE * rate,
    )
    notes = {
        "optimizer.matrices": "ours: the alternative that is tried",
        "optimizer.weight_decay": "ours: the usual 0.1",
        "optimizer.muon_lr": "derived: adam_lr",
        "optimizer.adam_lr": "derived: the ladder's own, times ADAMW_SCALE",
    }
    return dataclasses.replace(config, optimizer=optimizer, notes={**config.notes, **notes})


def _model(config: Config, **changes: float | bool | None) -> Config:
    tried = {f"model.{name}": "ours: the alternative that is tried" for name in changes}
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **changes),
        notes={**config.notes, **tried},
    )


def _varied(name: str, change: Callable[[Config], Config]) -> LadderConfig:
    """The CPU ladder with every run changed alike."""
    base = cpu_ladder()
    return dataclasses.replace(
        base,
        name=name,
        rung=lambda width: change(base.rung(width)),
        target=dataclasses.replace(change(base.target), name=f"{name}-target"),
    )
