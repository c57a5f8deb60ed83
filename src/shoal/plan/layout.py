"""What is planned: a workload (what a run computes) on a layout (how chips share it).

A layout is a mesh, the microbatches, where the state rests and whether layers are recomputed.
Chips count along `context` first, then `expert`, `data` and `replica`, as in `arrays.mesh`: a
group of consecutive chips that fits a fast domain is taken to stand inside one.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from shoal.arrays.axes import placed
from shoal.arrays.config import AXES, CONTEXT, DATA, EXPERT, REPLICA, batch_shards
from shoal.model.config import ModelConfig
from shoal.moe.config import MoEConfig
from shoal.optim.config import OptimizerConfig
from shoal.plan.chips import Chip

type Where = Literal["device", "optimizer_on_host", "state_on_host"]
MEMORY_MODES: tuple[Where, ...] = ("device", "optimizer_on_host", "state_on_host")
GROUPS = ("experts", "attention", "shared_latent_router", "embedding", "head", "small")
_MASTER_BYTES = 4
_MOMENTS = {"muonh": 1, "adamh": 2, "adamw": 2, "adam": 2, "balance": 0}


class Leaf(NamedTuple):
    """What the planner reads of one weight declaration."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    group: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether it is gathered in the compute dtype (vectors and convolutions are not)."""
        axes = [axis for axis in self.axes if axis != "layer"]
        return len(axes) > 1 and "channel" not in axes and "tap" not in axes

    @property
    def is_bank(self) -> bool:
        return "expert" in self.axes[:-2]

    @property
    def kind(self) -> str:
        """The group of the planner's tables that it belongs to, one of `GROUPS`."""
        if self.name in ("embed", "head"):
            return "embedding" if self.name == "embed" else "head"
        if self.is_bank:
            return "experts"
        last = self.name.rpartition(".")[2]
        if last in ("w_q", "w_k", "w_v", "w_o"):
            return "attention"
        if last in ("router", "latent_down", "latent_up") or ".shared." in self.name:
            return "shared_latent_router"
        return "small"

    @property
    def moment_bytes(self) -> int:
        """Bytes of optimizer state per number: float32 momentum, or Adam's two moments."""
        return _MASTER_BYTES * _MOMENTS[self.group]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """The parts of a run's config that decide its cost; `leaves` are its weight declarations.

    Compared by identity, so that what follows from one is cheap to remember.
    """

    model: ModelConfig
    optimizer: OptimizerConfig
    moe: MoEConfig
    batch_sequences: int
    sequence_tokens: int
    num_steps: int
    leaves: tuple[Leaf, ...]

    @property
    def tokens_per_step(self) -> int:
        return self.batch_sequences * self.sequence_tokens

    @property
    def tokens(self) -> int:
        return self.tokens_per_step * self.num_steps

    @property
    def compute_bytes(self) -> int:
        """Bytes of one number in the compute dtype."""
        return 2 if self.model.compute_dtype == "bfloat16" else 4


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How chips share a workload."""

    replica: int = 1
    data: int = 1
    expert: int = 1
    context: int = 1
    accumulation: int = 1
    memory: Where = "device"
    remat: bool = False

    @cached_property
    def degrees(self) -> Mapping[str, int]:
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def num_chips(self) -> int:
        return math.prod(self.degrees.values())

    @property
    def batch_shards(self) -> int:
        return batch_shards(self.degrees)

    @property
    def shards(self) -> int:
        """Over how many chips a weight outside the experts is cut, and orthogonalization spread."""
        return self.data * self.expert

    def cut(self, leaf: Leaf) -> tuple[str, ...]:
        """Return the mesh axes that cut a weight."""
        found = placed(leaf.axes, leaf.shape, self.degrees)
        return tuple(axis for axes in found for axis in axes)

    def over(self, axes: tuple[str, ...]) -> int:
        """Return the number of chips along some axes."""
        return math.prod(self.degrees[axis] for axis in axes)

    def inside(self, axes: tuple[str, ...], chip: Chip) -> int:
        """Return how many members of a group along some axes share a fast domain.

        A domain holds consecutive chips; a group that does not fit is cut into equal parts.
        """
        stride, members = 1, 1
        for axis in (CONTEXT, EXPERT, DATA, REPLICA):
            degree = self.degrees[axis]
            if axis in axes:
                room = max(chip.domain_chips // stride, 1)
                near = max(d for d in divisors(degree) if d <= room)
                members *= near
                if near < degree:
                    break
            stride *= degree
        return members

    def tokens_per_chip(self, work: Workload) -> int:
        """Return the tokens of one microbatch that a chip holds."""
        tokens = work.tokens_per_step // self.batch_shards // self.accumulation
        return tokens // self.context

    def assignments(self, work: Workload) -> int:
        """Return a chip's choices of experts in one microbatch: tokens times top-k."""
        return self.tokens_per_chip(work) * work.model.top_k


def divisors(number: int) -> list[int]:
    """Return the divisors in ascending order."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


class Misfit(NamedTuple):
    """Why a layout cannot run a workload: a short reason to count by, and the whole message."""

    reason: str
    message: str


def misfits(work: Workload, layout: Layout) -> Iterator[Misfit]:
    """Yield what does not divide; memory is judged in `memory.py`."""
    experts, degree = work.model.num_experts, layout.expert
    if experts % degree:
        fitting = ", ".join(str(d) for d in divisors(experts)[:10])
        yield Misfit(
            "experts do not divide over the expert axis",
            f"model.num_experts={experts} is not divisible by mesh axis 'expert'={degree};"
            f" use one of {fitting}",
        )
    batch = work.batch_sequences
    if batch % layout.batch_shards:
        yield Misfit(
            "batch does not divide over replica, data and expert",
            f"train.batch_sequences={batch} is not divisible by the {layout.batch_shards} shards"
            f" of the batch (replica={layout.replica} x data={layout.data} x"
            f" expert={layout.expert}); use a multiple of {layout.batch_shards}, other degrees,"
            " or more context",
        )
    elif batch // layout.batch_shards % layout.accumulation:
        each = batch // layout.batch_shards
        yield Misfit(
            "microbatches do not divide",
            f"train.accumulation={layout.accumulation} does not divide the {each} sequences of a"
            f" chip; use one of {', '.join(map(str, divisors(each)))}",
        )
    length = work.sequence_tokens
    if length % layout.context:
        fitting = ", ".join(str(d) for d in divisors(length)[:10])
        yield Misfit(
            "sequence does not divide over context",
            f"train.sequence_tokens={length} is not divisible by mesh axis"
            f" 'context'={layout.context}; use one of {fitting}",
        )


def leaves_of(model: ModelConfig, optimizer: OptimizerConfig) -> tuple[Leaf, ...]:
    """Return every weight declaration of a model as its optimizer takes it (this loads jax)."""
    from shoal.arrays.weights import specs_of
    from shoal.model.lm import describe_lm

    taken = {"muonh": "adamw", "adamh": "adamw"} if optimizer.matrices == "adamw" else {}
    return tuple(
        Leaf(spec.name, spec.axes, spec.shape, taken.get(spec.group, spec.group))
        for spec in specs_of(describe_lm(model))
    )
