"""The one config of a run: everything that a recipe returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shoal.arrays.config import MeshConfig
from shoal.core.config import identity, numerics, placement
from shoal.data.config import CorpusConfig
from shoal.data.settings import Benchmark, MixConfig
from shoal.model.config import ModelConfig
from shoal.moe.config import MoEConfig
from shoal.optim.config import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpus, in which proportions (`data.mix`), in which order.

    `simulated_tokens` are those of a larger run: each cell is cut to this run's share of them, so
    that it is repeated as often as the larger run would repeat it; 0 leaves the cells whole.
    """

    corpus: CorpusConfig = identity()
    mix: MixConfig = identity(MixConfig(cooldown_share=0.0, max_epochs=0.0))
    table_lanes: int = identity(1024)
    seed: int = identity(0)
    simulated_tokens: int = identity(0)

    def __post_init__(self) -> None:
        if self.simulated_tokens < 0:
            raise ValueError(f"data.simulated_tokens={self.simulated_tokens}: use 0 or more")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, how wide, how often; a cadence of 0 or less is never."""

    num_steps: int = identity()
    batch_sequences: int = identity()
    sequence_tokens: int = identity()
    seed: int = identity(0)
    accumulation: int = numerics(1)
    # Where float32 masters and optimizer state rest between steps; the same numbers everywhere.
    memory: Literal["device", "optimizer_on_host", "state_on_host"] = numerics("device")
    checkpoint_every_steps: int = placement(100)
    checkpoint_every_s: float = placement(600.0)
    keep_checkpoints: int = placement(2)
    log_every_steps: int = placement(1)
    detail_every_steps: int = placement(20)
    stop_after_skipped: int = placement(16)
    # A step, or the wait for other processes, that takes longer ends the process with its stacks.
    watchdog_s: float = placement(1800.0)
    # The same for the first step of a process, which compiles.
    watchdog_first_s: float = placement(4800.0)

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_sequences", "sequence_tokens", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name}={getattr(self, name)} must be at least 1")
        if self.batch_sequences % self.accumulation:
            raise ValueError(
                f"train.accumulation={self.accumulation} does not divide"
                f" batch_sequences={self.batch_sequences}"
            )

    @property
    def tokens_per_step(self) -> int:
        return self.batch_sequences * self.sequence_tokens

    @property
    def tokens(self) -> int:
        return self.tokens_per_step * self.num_steps


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Held-out evaluation and samples; every token is scored in windows of `sequence_tokens`.

    `benchmarks` are further items that the model will be judged by: training refuses a corpus that
    was not held against them (`data.benchmarks`). `limit_bytes` keeps the first documents of every
    domain, up to so many bytes; 0 keeps all.
    """

    sequence_tokens: int = identity()
    limit_bytes: int = identity(0)
    batch_sequences: int = placement(16)
    every_steps: int = placement(0)
    sample_tokens: int = placement(96)
    sample_prompts: tuple[str, ...] = placement(())
    sample_temperature: float = placement(0.8)
    benchmarks: tuple[Benchmark, ...] = placement(())

    def __post_init__(self) -> None:
        if self.batch_sequences < 1:
            raise ValueError(f"eval.batch_sequences={self.batch_sequences} must be at least 1")
        if self.limit_bytes < 0:
            raise ValueError(f"eval.limit_bytes={self.limit_bytes}: use 0 or more")
        if self.sample_tokens < 0 or self.sample_temperature < 0:
            raise ValueError(
                f"eval.sample_tokens={self.sample_tokens},"
                f" sample_temperature={self.sample_temperature}: use 0 or more"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. `notes` maps a path to where its number comes from; it is not fingerprinted."""

    name: str = placement()
    model: ModelConfig
    optimizer: OptimizerConfig
    data: DataConfig
    train: TrainConfig
    eval: EvalConfig
    moe: MoEConfig = MoEConfig()
    mesh: MeshConfig = MeshConfig()
    notes: Mapping[str, str] = placement()
