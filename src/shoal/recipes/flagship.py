"""The public 535B-A23B run as it was planned at 4,096 tokens, in one config."""

import dataclasses

from shoal.optim.config import OptimizerConfig
from shoal.recipes.ladder import published_model, rung, whole
from shoal.scaling.ladder import LadderConfig
from shoal.train.config import Config

_LONGEST_CONTEXT_TOKENS = 262_144


def flagship(*, clean: bool = False) -> Config:
    """Return the run of 18T tokens, 535B parameters of which 22.8B active.

    Args:
        clean: Store only the six KV heads that a global layer uses. The public weights hold
            twelve, half of them dead (113M numbers), and every published count includes them.
    """
    config = _planned(clean=clean)
    # 182 of the 159 usable GiB of a GB200 otherwise (`shoal plan`).
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, memory="optimizer_on_host")
    )


def flagship_ladder() -> LadderConfig:
    """Return the four published rungs that the run was forecast from."""
    return LadderConfig(
        name="flagship-ladder",
        rung=rung,
        widths=(768, 1024, 1536, 2048),
        target=flagship(),
        published=True,
    )


def _planned(*, clean: bool) -> Config:
    stored = "ours: only the heads that are used (the public run stored 12)"
    return whole(
        name="flagship-clean" if clean else "flagship",
        model=published_model(
            embed_dim=6144,
            num_layers=48,
            kv_heads_local=12,
            kv_heads_global=6,
            kv_heads_stored_global=6 if clean else 12,
        ),
        optimizer=OptimizerConfig(
            decay=0.02, decay_from_step=58_014, newton_schulz_dtype="bfloat16"
        ),
        unit_tokens=_LONGEST_CONTEXT_TOKENS,
        num_steps=390_251,
        batch_sequences=11_264,
        checkpoint_every_steps=6000,
        eval_every_steps=3000,
        eval_batch_sequences=704,
        notes={
            **({"model.kv_heads_stored_global": stored} if clean else {}),
            "name": "ours",
            "train.memory": "published: the run's recipe, optimizer state in pinned host memory",
            "optimizer.decay": "published: pull request #8833, head gate and router only",
            "optimizer.decay_from_step": "published: pull request #8833, when it was switched on",
            "data.corpus.unit_tokens": "published: issue #9615, the longest planned context",
            "train.num_steps": "published: the ladder launcher; 791 tokens per active parameter of"
            " the weights as stored",
            "train.batch_sequences": "published: issue #8435, 1,024 a rack on 11 racks",
            "train.checkpoint_every_steps": "published: the ladder launcher, the permanent ones",
            "eval.every_steps": "published: the ladder launcher",
            "eval.batch_sequences": "published: the ladder launcher, 64 a rack on 11 racks",
        },
    )
