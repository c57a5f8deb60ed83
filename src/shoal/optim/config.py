"""What the optimizer is; the law that fills the rates is in `law.py`."""

from dataclasses import dataclass
from typing import Literal

from shoal.core.config import identity, numerics


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """MuonH for matrices, AdamH for the head, Adam for the rest; or Adam for all.

    A rate, beta2 or epsilon of None is derived from the run's size by the published rules.
    """

    muon_lr: float | None = identity(None)
    adam_lr: float | None = identity(None)
    adam_beta1: float = identity(0.9)
    adam_beta2: float | None = identity(None)
    adam_eps: float | None = identity(None)
    momentum: float = identity(0.95)
    warmup_fraction: float = identity(0.01)
    final_fraction: float = identity(0.05)
    # Decoupled decay of head gate and router weight: coefficient * (1 - step / num_steps).
    decay: float = identity(0.02)
    decay_from_step: int = identity(0)
    # `adamw`: matrices and head take Adam's step, with decoupled weight decay and no sphere; their
    # rate, muon_lr, is adam_lr where it is None.
    matrices: Literal["muonh", "adamw"] = identity("muonh")
    weight_decay: float = identity(0.0)
    # The public run took one norm over all experts of a layer.
    expert_sphere: Literal["expert", "layer"] = identity("expert")
    # bfloat16 as published; on a CPU it is slower than float32.
    newton_schulz_dtype: Literal["float32", "bfloat16"] = numerics("float32")

    def __post_init__(self) -> None:
        if not 0.0 <= self.warmup_fraction < 1.0:
            raise ValueError(f"optimizer.warmup_fraction={self.warmup_fraction} must be in [0, 1)")
        if self.weight_decay < 0.0 or (self.weight_decay and self.matrices != "adamw"):
            raise ValueError(
                f"optimizer.weight_decay={self.weight_decay} must be at least 0, and is of"
                " optimizer.matrices=adamw: on a sphere a decay of the weight does nothing"
            )
        if not 0.0 <= self.final_fraction <= 1.0:
            raise ValueError(f"optimizer.final_fraction={self.final_fraction} must be in [0, 1]")
