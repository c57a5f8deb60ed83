"""How rows travel to their experts; no arrays, no jax."""

from dataclasses import dataclass
from typing import Literal

from shoal.core.config import numerics

TRANSPORTS = ("local", "pooled", "ragged")


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """The transport and its room; `local` drops nothing and reads none of the rest.

    Capacities are factors on an even share: 1.15 holds 15 % more than every place would get if
    routing were perfectly even. `waves` is of `pooled`, `chunks` of `ragged`. With `dropless` a
    step that drops an assignment is not applied and the run stops.
    """

    transport: Literal["local", "pooled", "ragged"] = numerics("local")
    capacity_sender: float = numerics(1.15)
    capacity_receiver: float = numerics(1.15)
    waves: int = numerics(3)
    chunks: int = numerics(2)
    dropless: bool = numerics(False)

    def __post_init__(self) -> None:
        for name in ("capacity_sender", "capacity_receiver"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"moe.{name}={getattr(self, name)} must be a number above 0")
        for name in ("waves", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"moe.{name}={getattr(self, name)} must be at least 1")
