"""The scaling ladder of the public 535B run: four published rungs and two of ours between them.

One width decides the rest: depth from a table, heads = width / 128, half the width for expert,
shared and latent, 791 training tokens per active parameter, rates by `optim.law`. The shapes are
as published in what decides their counts: global layers store as many KV heads as local ones and
use the first of them. The router's output is float32 and every expert has its own norm sphere,
where the public code rounded and shared; both are switches. What the public record prints is in
`published.json`.
"""

import dataclasses
from collections.abc import Mapping

from shoal.arrays.config import MeshConfig
from shoal.model.config import ModelConfig
from shoal.model.count import num_active
from shoal.moe.config import MoEConfig
from shoal.optim.config import OptimizerConfig
from shoal.recipes.corpus import quickstart_corpus
from shoal.train.config import Config, DataConfig, EvalConfig, TrainConfig

TOKENS_PER_ACTIVE = 791
SEQUENCE_TOKENS = 4096
_UNIT_TOKENS = 16 * SEQUENCE_TOKENS

_SHAPE = "published: issue #8435, rung table"
_HALF = "published: issue #8435, half the width"
_BY_DESIGN = "published: issue #8435, the same at every size"
_MODEL_FILE = "published: the run's model file, the same at every size"
_SPEED = "ours: decides speed and memory only, not measured at this size"
_CADENCE = "ours: decides what is kept and printed only"
_STAND_IN = (
    "stand-in: the public corpus is not redistributable here; the quickstart's takes its place"
)

SHAPE_NOTES: Mapping[str, str] = {
    "model.vocab_size": "published: issue #8435, the Llama 3.1 vocabulary; sets the counts although"
    " the stand-in corpus has a smaller tokenizer",
    "model.num_layers": _SHAPE,
    "model.embed_dim": _SHAPE,
    "model.num_heads": _SHAPE,
    "model.head_dim": _BY_DESIGN,
    "model.kv_heads_local": _SHAPE,
    "model.kv_heads_global": _SHAPE,
    "model.kv_heads_stored_global": "published: as many as on local layers; the total of issue"
    " #9277 holds only so",
    "model.num_experts": _BY_DESIGN,
    "model.top_k": _BY_DESIGN,
    "model.expert_dim": _HALF,
    "model.latent_dim": _HALF,
    "model.num_shared": _BY_DESIGN,
    "model.shared_dim": _HALF,
    "model.gate_rank": "inferred: the total of issue #9277 holds only so",
    "model.conv_taps": "published: issue #8435; three sites, as the total of issue #9277 requires",
    "model.window": "published: pull request #8037",
    "model.global_every": "published: pull request #8037, and always the last layer",
    "model.rotary_dim": _BY_DESIGN,
    "model.rotary_global": "published: pull request #8037, global layers have no positions",
    "model.rope_theta": _MODEL_FILE,
    "model.qk_scale": "published: issue #8435, one constant at the base context",
    "model.qk_scale_log": "published: issue #8435, near 0.1; has no effect at the base context",
    "model.base_context": "published: issue #8435, the context of pretraining",
    "model.norm_eps": _MODEL_FILE,
    "model.qk_norm_eps": _MODEL_FILE,
    "model.routed_scale": "published: issue #5797",
    "model.z_loss": "published: issue #8435, against large-batch divergence",
    "model.init_scale": "published: issue #8435, where the norms logged at init agree",
    "model.balance_bins": "published: the run's router, bins of the quantile histogram",
    "model.router_round_bf16": "ours: off. The public run rounded; issue #8435 measures that it"
    " changes 2.6 % of the choices for no gain",
    "model.compute_dtype": "published: issue #9277, bf16 throughout",
    "model.layer_loop": _SPEED,
    "model.remat": "published: issue #8435, a whole block is computed again in the backward pass",
    "model.experts": _SPEED,
    "model.block_rows": _SPEED,
    "model.attention": _SPEED,
    "model.attention_chunk": _SPEED,
    "model.loss_block_vocab": "published: issue #8435, vocabulary blocks of 4,096",
    "model.loss_block_above_bytes": _SPEED,
}

OPTIMIZER_NOTES: Mapping[str, str] = {
    "optimizer.muon_lr": "derived: the law of issue #7856, 13/3 of adam_lr",
    "optimizer.adam_lr": "derived: the law of issue #7856, August refit",
    "optimizer.adam_beta1": "published: issue #8435",
    "optimizer.adam_beta2": "derived: the rule of issue #8435 from tokens per step",
    "optimizer.adam_eps": "derived: the rule of issue #8435 from the number of steps",
    "optimizer.momentum": "published: the run's optimizer file",
    "optimizer.warmup_fraction": "published: issue #5763 and the run's recipe",
    "optimizer.final_fraction": "published: issue #8435",
    "optimizer.matrices": "published: issue #8435, MuonH",
    "optimizer.weight_decay": "published: none, since the matrices stay on spheres",
    "optimizer.expert_sphere": "ours: one norm per expert. The public run took one per layer;"
    " pull request #8749 measures no difference",
    "optimizer.newton_schulz_dtype": "published: the run's optimizer file",
}

_COMMON_NOTES: Mapping[str, str] = {
    "data.corpus.*": _STAND_IN,
    "data.mix.*": _STAND_IN,
    "data.table_lanes": "ours: shares to about 0.1 %",
    "data.seed": "ours: 0, as train.seed",
    "data.simulated_tokens": "ours: the stand-in corpus is read as it is",
    "train.sequence_tokens": "published: issue #8435",
    "train.seed": "published: the run's recipe",
    "train.accumulation": _SPEED,
    "train.checkpoint_every_s": "published: the ladder launcher, hourly",
    "train.keep_checkpoints": _CADENCE,
    "train.log_every_steps": _CADENCE,
    "train.detail_every_steps": _CADENCE,
    "train.stop_after_skipped": _CADENCE,
    "train.memory": _SPEED,
    "train.watchdog_first_s": "published: the run's deployment guide, 80 minutes to start",
    "train.watchdog_s": "published: pull request #7929, 15 minutes without progress",
    "moe.transport": "published: issue #8506, the run's second transport",
    "moe.capacity_sender": "published: issue #8435; `pooled` reads it",
    "moe.capacity_receiver": "published: issue #8435",
    "moe.waves": "published: issue #8435; `pooled` reads it",
    "moe.chunks": "published: issue #8549; `ragged` reads it",
    "moe.dropless": "published: the run clipped what exceeded its capacity",
    "mesh.*": "published: issue #8435, experts over the 64 GPUs of a rack, racks as replicas",
    "eval.sequence_tokens": "published: issue #8435, the forecast's metric is at 4,096 tokens",
    "eval.limit_bytes": "ours: all that is held out",
    "eval.sample_tokens": _CADENCE,
    "eval.benchmarks": "ours: none beside the corpus' own sets",
    "eval.sample_prompts": _CADENCE,
    "eval.sample_temperature": _CADENCE,
}


def published_model(
    *,
    embed_dim: int,
    num_layers: int,
    kv_heads_local: int,
    kv_heads_global: int,
    kv_heads_stored_global: int | None,
) -> ModelConfig:
    """Return the model of the public run at a width."""
    return ModelConfig(
        vocab_size=128_256,
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_heads=embed_dim // 128,
        kv_heads_local=kv_heads_local,
        kv_heads_global=kv_heads_global,
        kv_heads_stored_global=kv_heads_stored_global,
        num_experts=384,
        top_k=8,
        expert_dim=embed_dim // 2,
        latent_dim=embed_dim // 2,
        shared_dim=embed_dim // 2,
        compute_dtype="bfloat16",
        remat=True,
        loss_block_vocab=4096,
    )


def stand_in_data(unit_tokens: int) -> DataConfig:
    """Return the demo corpus cut into units of a published recipe's length."""
    corpus = dataclasses.replace(quickstart_corpus(), unit_tokens=unit_tokens)
    return DataConfig(corpus=corpus)


def whole(
    *,
    name: str,
    model: ModelConfig,
    optimizer: OptimizerConfig,
    unit_tokens: int,
    num_steps: int,
    batch_sequences: int,
    checkpoint_every_steps: int,
    eval_every_steps: int,
    eval_batch_sequences: int,
    notes: Mapping[str, str],
) -> Config:
    """Return a config of the ladder's kind; `notes` adds to and overrides the common ones."""
    return Config(
        name=name,
        model=model,
        optimizer=optimizer,
        data=stand_in_data(unit_tokens),
        train=TrainConfig(
            num_steps=num_steps,
            batch_sequences=batch_sequences,
            sequence_tokens=SEQUENCE_TOKENS,
            checkpoint_every_steps=checkpoint_every_steps,
            checkpoint_every_s=3600.0,
            watchdog_s=900.0,
        ),
        eval=EvalConfig(
            sequence_tokens=SEQUENCE_TOKENS,
            batch_sequences=eval_batch_sequences,
            every_steps=eval_every_steps,
        ),
        moe=MoEConfig(transport="ragged"),
        mesh=MeshConfig(replica=-1, data=1, expert=64),
        notes={**SHAPE_NOTES, **OPTIMIZER_NOTES, **_COMMON_NOTES, **notes},
    )


def steps_for(model: ModelConfig, batch_sequences: int) -> int:
    """Return the steps of 791 tokens per active parameter, to the nearest whole step.

    Rounding to the nearest gives every published count (d768 is 11,420.06, d1536 15,127.88).
    """
    tokens = TOKENS_PER_ACTIVE * num_active(model)
    return round(tokens / (batch_sequences * SEQUENCE_TOKENS))


# Width -> layers, KV heads of local and of global layers, sequences in a batch.
_RUNGS = {
    512: (6, 1, 1, 1024),
    768: (8, 1, 1, 1024),
    1024: (12, 2, 1, 2048),
    1280: (14, 2, 1, 4096),
    1536: (16, 3, 1, 6144),
    2048: (22, 4, 2, 11_264),
}
_UNPUBLISHED = (512, 1280)


def rung(width: int) -> Config:
    """Return the rung of a width.

    Raises:
        ValueError: the public ladder's table has no such width.
    """
    if width not in _RUNGS:
        raise ValueError(f"no rung of width {width}; use one of {', '.join(map(str, _RUNGS))}")
    num_layers, kv_heads_local, kv_heads_global, batch_sequences = _RUNGS[width]
    model = published_model(
        embed_dim=width,
        num_layers=num_layers,
        kv_heads_local=kv_heads_local,
        kv_heads_global=kv_heads_global,
        kv_heads_stored_global=kv_heads_local,
    )
    num_steps = steps_for(model, batch_sequences)
    batch = (
        "ours: the rung is not published"
        if width in _UNPUBLISHED
        else "published: issue #8435, 1,024 a rack"
    )
    return whole(
        name=f"d{width}",
        model=model,
        optimizer=OptimizerConfig(decay=0.0, newton_schulz_dtype="bfloat16"),
        unit_tokens=_UNIT_TOKENS,
        num_steps=num_steps,
        batch_sequences=batch_sequences,
        checkpoint_every_steps=max(num_steps // 20, 1),
        eval_every_steps=max(num_steps // 20, 1),
        eval_batch_sequences=batch_sequences // 16,
        notes={
            "name": "ours: the rung's width",
            "optimizer.decay": "published: the ladder ran before pull request #8833 brought it",
            "optimizer.decay_from_step": "ours: no effect at a decay of 0",
            "data.corpus.unit_tokens": "ours: 16 sequences; a rung plans no longer context",
            "train.num_steps": "derived: 791 tokens per active parameter, nearest whole step",
            "train.batch_sequences": batch,
            "train.checkpoint_every_steps": "ours: with every evaluation",
            "eval.every_steps": "published: the ladder launcher, every 5 % of the run",
            "eval.batch_sequences": "published: the ladder launcher, 64 a rack",
        },
    )


def d512() -> Config:
    """Ours in its batch: the smallest width that follows the trend."""
    return rung(512)


def d768() -> Config:
    """48B tokens, 1.6B parameters of which 61M active."""
    return rung(768)


def d1024() -> Config:
    """128B tokens, 4.0B parameters of which 162M active."""
    return rung(1024)


def d1280() -> Config:
    """Ours in its batch: between two published rungs."""
    return rung(1280)


def d1536() -> Config:
    """381B tokens, 11.5B parameters of which 481M active."""
    return rung(1536)


def d2048() -> Config:
    """926B tokens, 27.7B parameters of which 1.2B active."""
    return rung(2048)
