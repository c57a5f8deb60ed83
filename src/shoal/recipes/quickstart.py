"""The quickstart: the complete architecture at a size that two CPU cores train in minutes."""

from dataclasses import replace

from shoal.data.settings import CellsConfig, MixConfig, TopicsConfig
from shoal.model.config import ModelConfig
from shoal.optim import law
from shoal.optim.config import OptimizerConfig
from shoal.recipes.corpus import quickstart_corpus
from shoal.scaling.ladder import LadderConfig
from shoal.train.config import Config, DataConfig, EvalConfig, TrainConfig

_SIZE = "ours: what two CPU cores train in about four minutes"
_RUNG = "ours: the quickstart's, in proportion to the width"
_RATE = 0.03
_PROXY = "ours: half the quickstart's width and steps, under a minute on two cores"
_CADENCE = "ours: a cadence, no effect on the numbers"

_NOTES = {
    "name": "ours",
    "model.*": "published: issue #8435, the same at every size",
    "model.vocab_size": "ours: the tokenizer's",
    "model.num_layers": _SIZE,
    "model.embed_dim": _SIZE,
    "model.num_heads": _SIZE,
    "model.head_dim": _SIZE,
    "model.kv_heads_local": _SIZE,
    "model.kv_heads_global": _SIZE,
    "model.kv_heads_stored_global": "ours: only the heads that are used",
    "model.num_experts": _SIZE,
    "model.top_k": _SIZE,
    "model.expert_dim": "published rule: half the width",
    "model.latent_dim": "published rule: half the width",
    "model.shared_dim": "published rule: half the width",
    "model.gate_rank": _SIZE,
    "model.window": "ours: a quarter of the sequence",
    "model.rotary_dim": "published rule: half the head",
    "model.base_context": "ours: the training sequence, where the query scale is 1.3",
    "model.router_round_bf16": "ours: float32 logits",
    "model.compute_dtype": "ours: bfloat16 is slower on a CPU",
    "model.layer_loop": "ours: by platform",
    "model.remat": "ours: memory is no concern at this size",
    "model.experts": "ours: by platform",
    "model.block_rows": "ours: measured fastest on two cores",
    "model.attention": "ours: by platform",
    "model.attention_chunk": "ours: measured fastest on two cores",
    "model.loss_block_vocab": "ours: not reached at this size",
    "model.loss_block_above_bytes": "ours: 512 MB of logits",
    "optimizer.*": "published: issue #8435",
    "optimizer.muon_lr": "ours: the best of 0.02, 0.03, 0.045 at this size; the law says 0.019",
    "optimizer.adam_lr": "published rule: 3/13 of the matrices' rate",
    "optimizer.adam_beta2": "published rule",
    "optimizer.adam_eps": "published rule",
    "optimizer.expert_sphere": "ours: one norm per expert",
    "optimizer.newton_schulz_dtype": "ours: bfloat16 is slower on a CPU",
    "data.corpus.*": "ours: see shoal.recipes.corpus",
    "data.corpus.unit_tokens": "ours: one sequence, as no longer context is planned; measured"
    " better than 4 or 16 sequences at this batch (experiments/2026-11-30-unit-length)",
    "data.mix.*": "ours: near the sources' breadth, not their sizes",
    "data.table_lanes": "ours: shares to about 0.4 %",
    "data.seed": "ours",
    "data.simulated_tokens": "ours: it stands for no larger run",
    "train.*": _SIZE,
    "train.checkpoint_every_steps": _CADENCE,
    "train.checkpoint_every_s": _CADENCE,
    "train.keep_checkpoints": _CADENCE,
    "train.log_every_steps": _CADENCE,
    "train.detail_every_steps": _CADENCE,
    "train.stop_after_skipped": _CADENCE,
    "train.memory": "ours: a small state rests where it is used",
    "train.watchdog_first_s": _CADENCE,
    "train.watchdog_s": _CADENCE,
    "moe.*": "ours: all experts on every device",
    "mesh.*": "ours: all devices are fully sharded data parallel",
    "eval.*": _CADENCE,
    "eval.sequence_tokens": "ours: the training sequence",
}

CELLS = CellsConfig(by="topic_quality", topics=TopicsConfig(weight="documents"))


def quickstart() -> Config:
    """Return a run of about a million tokens that ends within minutes on a laptop."""
    return Config(
        name="quickstart",
        model=ModelConfig(
            vocab_size=4096,
            num_layers=4,
            embed_dim=128,
            num_heads=4,
            head_dim=32,
            kv_heads_local=2,
            kv_heads_global=1,
            num_experts=16,
            top_k=4,
            expert_dim=64,
            latent_dim=64,
            shared_dim=64,
            gate_rank=16,
            window=64,
            rotary_dim=16,
            base_context=256,
        ),
        optimizer=OptimizerConfig(muon_lr=_RATE, adam_lr=_RATE * 3 / 13),
        data=DataConfig(
            corpus=replace(quickstart_corpus(), cells=CELLS, unit_tokens=256),
            mix=MixConfig(
                rule="heuristic", size_exponent=0.3, quality_ratio=1.1, cooldown_ratio=1.5
            ),
            table_lanes=752,
        ),
        train=TrainConfig(
            num_steps=940,
            batch_sequences=4,
            sequence_tokens=256,
            checkpoint_every_steps=200,
        ),
        eval=EvalConfig(
            sequence_tokens=256,
            sample_prompts=("The history of", "Enter the King.", "def ", "A model is"),
        ),
        notes=_NOTES,
    )


def quickstart_ladder() -> LadderConfig:
    """Return three small runs that foretell the quickstart's end."""
    return LadderConfig(
        name="quickstart",
        rung=_rung,
        widths=(32, 48, 64),
        target=quickstart(),
        seeds={32: 2},
        evaluations=1,
    )


def _rung(width: int) -> Config:
    """The quickstart at a smaller width: depth and steps in proportion, the rates by the law."""
    config = quickstart()
    model = replace(
        config.model,
        num_layers=max(2, config.model.num_layers * width // config.model.embed_dim),
        embed_dim=width,
        num_heads=width // 16,
        head_dim=16,
        rotary_dim=8,
        kv_heads_local=1,
        expert_dim=width // 2,
        latent_dim=width // 2,
        shared_dim=width // 2,
    )
    num_steps = config.train.num_steps * width // config.model.embed_dim
    train = replace(config.train, num_steps=num_steps, checkpoint_every_steps=0)
    rate = min(_RATE * _law(width, train) / _law(config.model.embed_dim, config.train), law.CAP)
    return replace(
        config,
        name=f"quickstart-d{width}",
        model=model,
        optimizer=OptimizerConfig(muon_lr=rate, adam_lr=rate * 3 / 13),
        train=train,
        eval=replace(config.eval, sample_prompts=()),
        notes={
            **config.notes,
            "model.*": _RUNG,
            "train.*": _RUNG,
            "optimizer.muon_lr": "ours: the quickstart's, by the law for width and tokens",
        },
    )


def _law(width: int, train: TrainConfig) -> float:
    return law.muon_lr(tokens=train.tokens, embed_dim=width, tokens_per_step=train.tokens_per_step)


def quickstart_proxy() -> Config:
    """Return a run of the quickstart's corpus that is small enough to try many mixtures with."""
    config = quickstart()
    model = replace(
        config.model,
        embed_dim=64,
        num_heads=2,
        kv_heads_local=1,
        expert_dim=32,
        latent_dim=32,
        shared_dim=32,
    )
    train = replace(config.train, num_steps=470, checkpoint_every_steps=0, checkpoint_every_s=1e9)
    return replace(
        config,
        name="quickstart-proxy",
        model=model,
        train=train,
        eval=replace(config.eval, sample_prompts=()),
        notes={**config.notes, "model.*": _PROXY, "train.*": _PROXY},
    )
