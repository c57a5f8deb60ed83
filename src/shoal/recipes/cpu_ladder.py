"""A ladder that two CPU cores climb in an hour, and a target that they train in another one.

One width decides the rest: depth round(width / 21), heads of 16, half the width for expert, shared
and latent, 20 training tokens per active parameter, and a batch that grows with the run so that all
take about as many steps, as the public ladder's do.
"""

import dataclasses

from shoal.model.config import ModelConfig
from shoal.model.count import num_active
from shoal.optim import law
from shoal.optim.config import OptimizerConfig
from shoal.recipes.quickstart import quickstart
from shoal.scaling.ladder import LadderConfig
from shoal.scaling.records import FRACTIONS
from shoal.train.config import Config, EvalConfig, TrainConfig

TOKENS_PER_ACTIVE = 20
SEQUENCE_TOKENS = 256
WIDTHS = (32, 48, 64, 80)
TARGET_WIDTH = 128
BATCH_SEQUENCES = {32: 4, 48: 4, 64: 8, 80: 16, 96: 16, 112: 16, 128: 32}
# The published law, fitted at a thousand times the compute, is too low here: its rates are best
# times 2.5, 1.8 and 1.8 at widths 32, 48 and 64 (experiments/2026-12-01-rates).
RATE_SCALE = 1.8

_RULE = "ours: from the width alone"


def cpu_ladder() -> LadderConfig:
    """Return four rungs from 1.1e11 to 9.5e12 FLOPs, three seeds on the two smallest."""
    return LadderConfig(
        name="cpu-ladder",
        rung=_run,
        widths=WIDTHS,
        target=cpu_target(),
        seeds={32: 3, 48: 3},
    )


def cpu_target() -> Config:
    """Return the run that the ladder foretells: 1.3e14 FLOPs, 18.8M tokens."""
    config = _run(TARGET_WIDTH)
    every = config.train.num_steps // len(FRACTIONS)
    return dataclasses.replace(
        config, name="cpu-target", eval=dataclasses.replace(config.eval, every_steps=every)
    )


def _model(width: int) -> ModelConfig:
    """The whole architecture at a width."""
    heads = width // 16
    return ModelConfig(
        vocab_size=4096,
        num_layers=max(2, round(width / 21)),
        embed_dim=width,
        num_heads=heads,
        head_dim=16,
        kv_heads_local=2 if heads % 2 == 0 and heads >= 8 else 1,
        kv_heads_global=1,
        num_experts=16,
        top_k=4,
        expert_dim=width // 2,
        latent_dim=width // 2,
        shared_dim=width // 2,
        gate_rank=16,
        window=64,
        rotary_dim=8,
        base_context=SEQUENCE_TOKENS,
    )


def _run(width: int) -> Config:
    if width not in BATCH_SEQUENCES:
        raise ValueError(
            f"no rung of width {width}; use one of {', '.join(map(str, BATCH_SEQUENCES))}"
        )
    model, rows, base = _model(width), BATCH_SEQUENCES[width], quickstart()
    per_step = rows * SEQUENCE_TOKENS
    # A whole number of steps in each 5 %, where the run is scored.
    num_steps = len(FRACTIONS) * round(
        TOKENS_PER_ACTIVE * num_active(model) / per_step / len(FRACTIONS)
    )
    size = {"tokens": num_steps * per_step, "embed_dim": width, "tokens_per_step": per_step}
    return Config(
        name=f"cpu-w{width}",
        model=model,
        optimizer=OptimizerConfig(
            muon_lr=RATE_SCALE * law.muon_lr(**size), adam_lr=RATE_SCALE * law.adam_lr(**size)
        ),
        data=base.data,
        train=TrainConfig(
            num_steps=num_steps,
            batch_sequences=rows,
            sequence_tokens=SEQUENCE_TOKENS,
            checkpoint_every_steps=0,
            checkpoint_every_s=120.0,
        ),
        eval=EvalConfig(sequence_tokens=SEQUENCE_TOKENS, limit_bytes=20_000),
        notes={
            **base.notes,
            "model.*": _RULE,
            "optimizer.muon_lr": "derived: the published law, times RATE_SCALE",
            "optimizer.adam_lr": "derived: the published law, times RATE_SCALE",
            "train.*": _RULE,
            "eval.*": "ours: the first 20 kB of each domain, scored every 5 % of a run",
        },
    )
