"""A recipe of odd sizes that compiles in seconds, over generated text: `tiny.py:tiny`.

The text's folder is named by the environment variable TINY_TEXT.
"""

import os
import random
from dataclasses import replace
from pathlib import Path

from shoal.data.config import TokenizerConfig
from shoal.data.local import local_corpus
from shoal.data.settings import CellsConfig, TopicsConfig
from shoal.model.config import ModelConfig
from shoal.optim.config import OptimizerConfig
from shoal.scaling.ladder import LadderConfig
from shoal.train.config import Config, DataConfig, EvalConfig, TrainConfig

TEXT = "TINY_TEXT"
STARTS = ("ri", "sto", "li", "mor", "ha", "ga", "pel", "nu")
ENDS = ("ver", "ne", "ght", "ning", "rbor", "rden", "le", "w")


def write_text(
    folder: Path, *, num_files: int = 12, file_bytes: int = 2_200, seed: int = 0
) -> Path:
    """Write files of made-up prose that share no long n-gram; returns the folder."""
    folder.mkdir(parents=True)
    drawn = random.Random(seed)
    words = [start + end for start in STARTS for end in ENDS]
    for number in range(num_files):
        text = ""
        while len(text) < file_bytes:
            sentence = " ".join(drawn.choices(words, k=drawn.randint(5, 14))).capitalize()
            text += sentence + drawn.choice((". ", ". ", ".\n\n"))
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


MODEL = ModelConfig(
    vocab_size=389,
    num_layers=3,
    embed_dim=32,
    num_heads=2,
    head_dim=16,
    kv_heads_local=2,
    kv_heads_global=1,
    num_experts=5,
    top_k=2,
    expert_dim=24,
    latent_dim=16,
    shared_dim=16,
    gate_rank=3,
    window=12,
    rotary_dim=8,
    base_context=32,
    block_rows=16,
    attention_chunk=32,
    balance_bins=512,
)


def tiny() -> Config:
    """Return a run of 12 steps."""
    corpus = local_corpus(Path(os.environ[TEXT]))
    return Config(
        name="tiny",
        model=MODEL,
        optimizer=OptimizerConfig(muon_lr=0.03, adam_lr=0.007, warmup_fraction=0.2),
        data=DataConfig(
            corpus=replace(corpus, tokenizer=TokenizerConfig(vocab_size=389), unit_tokens=64),
            table_lanes=7,
        ),
        train=TrainConfig(
            num_steps=12,
            batch_sequences=5,
            sequence_tokens=32,
            checkpoint_every_steps=4,
            detail_every_steps=5,
        ),
        eval=EvalConfig(
            sequence_tokens=32,
            batch_sequences=8,
            sample_tokens=3,
            sample_prompts=("Liver ", ""),
        ),
        notes={},
    )


def topical() -> Config:
    """Return the same over cells of topic and quality, so that every stage has work."""
    config = tiny()
    topics = TopicsConfig(dimensions=8, centroids=12, num_topics=3, min_share=0.1)
    corpus = replace(
        config.data.corpus, cells=CellsConfig(by="topic_quality", topics=topics), unit_tokens=64
    )
    return replace(config, data=replace(config.data, corpus=corpus))


def tiny_rung(width: int) -> Config:
    """Return a run of a width that ends in 20 steps."""
    config = tiny()
    model = replace(
        config.model,
        num_layers=2,
        embed_dim=width,
        num_heads=width // 8,
        head_dim=8,
        kv_heads_local=1,
        rotary_dim=4,
        expert_dim=width // 2,
        latent_dim=width // 2,
        shared_dim=width // 2,
    )
    return replace(
        config,
        name=f"tiny-{width}",
        model=model,
        train=replace(config.train, num_steps=20 * (width // 8), checkpoint_every_steps=0),
        eval=replace(config.eval, sample_prompts=(), every_steps=width // 8, limit_bytes=1_000),
    )


def tiny_ladder() -> LadderConfig:
    """Return three rungs and a target that train in seconds."""
    return LadderConfig(
        name="tiny-ladder",
        rung=tiny_rung,
        widths=(8, 16, 24),
        target=tiny_target(),
        seeds={8: 2},
    )


def tiny_target() -> Config:
    """Return the run that `tiny_ladder` foretells."""
    return replace(tiny_rung(32), name="tiny-target")
