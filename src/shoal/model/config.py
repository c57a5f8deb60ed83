"""The shape of a model and how its numbers are computed; no arrays, no jax."""

import math
from dataclasses import dataclass
from typing import Literal

from shoal.core.config import identity, numerics


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A latent mixture-of-experts transformer with window and global attention.

    Dimension letters: D embed, N query heads, M KV heads, H head, E experts, K top-k, L latent,
    F expert width, V vocabulary, R gate rank.
    """

    vocab_size: int = identity()
    num_layers: int = identity()
    embed_dim: int = identity()
    num_heads: int = identity()
    head_dim: int = identity(128)
    kv_heads_local: int = identity()
    kv_heads_global: int = identity()
    # The public run stored as many KV heads on global layers as on local ones and used the first
    # `kv_heads_global`; None stores only what is used.
    kv_heads_stored_global: int | None = identity(None)
    num_experts: int = identity()
    top_k: int = identity()
    expert_dim: int = identity()
    # What routed experts read and write; None: the full width, without projections.
    latent_dim: int | None = identity()
    num_shared: int = identity(2)
    shared_dim: int = identity()
    gate_rank: int = identity(128)
    conv_taps: int = identity(4)
    window: int = identity(2048)
    global_every: int = identity(4)
    rotary_dim: int = identity(64)
    # Global layers have no positions as published; True rotates them as local ones.
    rotary_global: bool = identity(False)
    rope_theta: float = identity(10_000.0)
    qk_scale: float = identity(1.3)
    qk_scale_log: float = identity(0.1)
    base_context: int = identity(4096)
    norm_eps: float = identity(1e-5)
    qk_norm_eps: float = identity(1e-6)
    routed_scale: float = identity(2.5)
    z_loss: float = identity(1e-4)
    init_scale: float = identity(0.5)
    balance_bins: int = identity(10_000)
    # The public run rounded router logits to bf16: another chosen set for 2.6 % of tokens.
    router_round_bf16: bool = identity(False)

    compute_dtype: Literal["float32", "bfloat16"] = numerics("float32")
    layer_loop: Literal["auto", "scan", "unroll"] = numerics("auto")
    remat: bool = numerics(False)
    experts: Literal["auto", "blocks", "dense", "ragged"] = numerics("auto")
    block_rows: int = numerics(64)
    # `kernel` is cuDNN's; it computes in bfloat16 alone.
    attention: Literal["auto", "chunks", "kernel"] = numerics("auto")
    attention_chunk: int = numerics(64)
    loss_block_vocab: int = numerics(8192)
    loss_block_above_bytes: int = numerics(512_000_000)

    def __post_init__(self) -> None:
        positive = (
            "vocab_size num_layers embed_dim num_heads head_dim kv_heads_local kv_heads_global "
            "num_experts top_k expert_dim gate_rank conv_taps window global_every "
            "base_context balance_bins block_rows attention_chunk loss_block_vocab"
        )
        for name in positive.split():
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} must be at least 1")
        if self.latent_dim is not None and self.latent_dim < 1:
            raise ValueError(
                f"model.latent_dim={self.latent_dim} must be at least 1, or none for experts that"
                " read the full width"
            )
        for name in ("kv_heads_local", "kv_heads_global"):
            if self.num_heads % getattr(self, name):
                raise ValueError(
                    f"model.{name}={getattr(self, name)} does not divide"
                    f" num_heads={self.num_heads}; use one of {_divisors(self.num_heads)}"
                )
        if (
            self.kv_heads_stored_global is not None
            and self.kv_heads_stored_global < self.kv_heads_global
        ):
            raise ValueError(
                f"model.kv_heads_stored_global={self.kv_heads_stored_global} is below"
                f" kv_heads_global={self.kv_heads_global}; store at least as many heads as are used"
            )
        if self.top_k >= self.num_experts:
            raise ValueError(
                f"model.top_k={self.top_k} must be below num_experts={self.num_experts}: the cutoff"
                " is the next biased score after the chosen ones"
            )
        if self.attention == "kernel" and self.compute_dtype != "bfloat16":
            raise ValueError(
                f"model.attention=kernel computes in bfloat16, not {self.compute_dtype}; set"
                " model.compute_dtype=bfloat16 or model.attention=chunks"
            )
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"model.rotary_dim={self.rotary_dim} must be even and at most"
                f" head_dim={self.head_dim}"
            )

    @property
    def layer_kinds(self) -> tuple[Literal["local", "global"], ...]:
        """The kind of every layer in order: every `global_every`-th and the last are global."""
        last = self.num_layers - 1
        return tuple(
            "global" if i % self.global_every == self.global_every - 1 or i == last else "local"
            for i in range(self.num_layers)
        )

    @property
    def stored_global(self) -> int:
        """KV heads in the weights of a global layer."""
        return self.kv_heads_stored_global or self.kv_heads_global

    @property
    def routed_dim(self) -> int:
        """The width of the rows that travel to experts: L, or D without a latent."""
        return self.latent_dim or self.embed_dim

    @property
    def axis_sizes(self) -> dict[str, int | None]:
        """The size of every logical weight axis; weights on one of None do not exist."""
        kinds = self.layer_kinds
        return {
            "vocab": self.vocab_size,
            "embed": self.embed_dim,
            "channel": self.embed_dim,
            "choice": self.num_experts,
            "rank": self.gate_rank,
            "heads": self.num_heads,
            "query": self.num_heads * self.head_dim,
            "kv_local": self.kv_heads_local * self.head_dim,
            "kv_global": self.stored_global * self.head_dim,
            "tap": self.conv_taps,
            "expert": self.num_experts,
            "latent": self.latent_dim,
            "routed": self.routed_dim,
            "expert_ffn": self.expert_dim,
            "shared": self.num_shared,
            "shared_ffn": self.shared_dim,
            "layer_local": kinds.count("local"),
            "layer_global": kinds.count("global"),
        }

    @property
    def init_std(self) -> float:
        """Standard deviation of the normal before its truncation at three of them."""
        return self.init_scale / math.sqrt(self.embed_dim)

    def query_scale(self, context: int) -> float:
        """Factor on normalized queries at a context length; grows with its logarithm."""
        return self.qk_scale * (self.qk_scale_log * math.log(context / self.base_context) + 1.0)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
