"""The experts' SwiGLU over rows sorted by expert: one signature, a form per platform.

    compute(params, rows[R, L], group_sizes[E]) -> rows[R, L]

Rows past the last group are nobody's: they come back as zeros and pass no gradient, whatever they
hold, and whatever cotangent they are given.

`blocks`  each expert's rows padded to blocks of 64 to 128, one batched product (CPU)
`ragged`  `jax.lax.ragged_dot` (accelerators; on XLA:CPU it is a dense masked product, 20x slower)
`dense`   every expert on every row, masked: the oracle
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.weights import Weight, weight
from shoal.moe.dispatch import gather_rows

type Compute = Callable[[Any, Array, Array], Array]


class ExpertWeights(eqx.Module):
    """A bank of SwiGLU experts; gate and up are separate matrices."""

    gate: Weight = weight("expert", "latent", "expert_ffn")
    up: Weight = weight("expert", "latent", "expert_ffn")
    down: Weight = weight("expert", "expert_ffn", "latent")


def expert_kind(kind: str) -> str:
    """Return the form that a name means on this platform; `auto` picks."""
    if kind != "auto":
        return kind
    return "blocks" if jax.default_backend() == "cpu" else "ragged"


def expert_compute(kind: str, *, block_rows: int) -> Compute:
    """Return the compute function of a name; `auto` picks by platform.

    Raises:
        ValueError: no such form.
    """
    kind = expert_kind(kind)
    forms: dict[str, Compute] = {
        "blocks": partial(blocks, block_rows=block_rows),
        "ragged": ragged,
        "dense": dense,
    }
    if kind not in forms:
        raise ValueError(f"model.experts={kind!r} is unknown; use auto, {', '.join(forms)}")
    return forms[kind]


def dense(
    params: ExpertWeights, rows: Float[Array, "R L"], group_sizes: Int[Array, " E"]
) -> Float[Array, "R L"]:
    """Every expert on every row, then the row's own: R * E work, no indices to get wrong."""
    gate, up, down = (w.astype(rows.dtype) for w in (params.gate, params.up, params.down))
    rows = _owned(rows, group_sizes)
    inner = jax.nn.silu(jnp.einsum("rl,elf->erf", rows, gate))
    inner = inner * jnp.einsum("rl,elf->erf", rows, up)
    sizes = group_sizes.astype(jnp.int32)
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    index = jnp.arange(rows.shape[0], dtype=jnp.int32)[None, :]
    mine = (index < ends[:, None]) & (index >= (ends - sizes)[:, None])
    inner = jnp.where(mine[:, :, None], inner, jnp.zeros_like(inner))
    return _owned(jnp.einsum("erf,efl->rl", inner, down), group_sizes)


def ragged(
    params: ExpertWeights, rows: Float[Array, "R L"], group_sizes: Int[Array, " E"]
) -> Float[Array, "R L"]:
    """Grouped matrix products of the platform; what it leaves past the last group is not used."""
    sizes = group_sizes.astype(jnp.int32)
    gate, up, down = (w.astype(rows.dtype) for w in (params.gate, params.up, params.down))

    def product(rows: Array, bank: Array) -> Array:
        return _owned(jax.lax.ragged_dot(rows, bank, sizes), sizes)

    rows = _owned(rows, sizes)
    return product(jax.nn.silu(product(rows, gate)) * product(rows, up), down)


def _owned(rows: Float[Array, "R L"], group_sizes: Int[Array, " E"]) -> Float[Array, "R L"]:
    """Rows past the last group as zeros, forward and backward."""
    inside = jnp.arange(rows.shape[0]) < jnp.sum(group_sizes)
    return jnp.where(inside[:, None], rows, jnp.zeros_like(rows))


def blocks(
    params: ExpertWeights,
    rows: Float[Array, "R L"],
    group_sizes: Int[Array, " E"],
    *,
    block_rows: int,
) -> Float[Array, "R L"]:
    """Dropless: ceil(R / block_rows) + E blocks always hold every row, whatever the load."""
    num_rows = rows.shape[0]
    to_row, to_slot, block_expert = block_layout(group_sizes, num_rows, block_rows)
    num_blocks = block_expert.shape[0]
    padded = gather_rows(rows, to_row, to_slot[:, None])
    padded = padded.reshape(num_blocks, block_rows, -1)
    gate, up, down = (
        w.astype(rows.dtype)[block_expert] for w in (params.gate, params.up, params.down)
    )
    inner = jax.nn.silu(jnp.einsum("nbl,nlf->nbf", padded, gate))
    inner = inner * jnp.einsum("nbl,nlf->nbf", padded, up)
    out = jnp.einsum("nbf,nfl->nbl", inner, down)
    return gather_rows(out.reshape(num_blocks * block_rows, -1), to_slot, to_row[:, None])


def block_layout(
    group_sizes: Int[Array, " E"], num_rows: int, block_rows: int
) -> tuple[Int[Array, " Q"], Int[Array, " R"], Int[Array, " n"]]:
    """Lay sorted rows out in blocks of one expert each.

    Returns:
        The row of each slot (num_rows where the slot is padding), the slot of each row (one past
        the last where the row is nobody's), and the expert of each block (the last expert for
        blocks that nobody uses).
    """
    num_experts = group_sizes.shape[0]
    num_blocks = -(-num_rows // block_rows) + num_experts
    sizes = group_sizes.astype(jnp.int32)
    row_ends = jnp.cumsum(sizes, dtype=jnp.int32)
    row_starts = row_ends - sizes
    blocks_of = -(-sizes // block_rows)
    block_ends = jnp.cumsum(blocks_of, dtype=jnp.int32)
    block_starts = block_ends - blocks_of

    block = jnp.arange(num_blocks, dtype=jnp.int32)
    expert = jnp.searchsorted(block_ends, block, side="right")
    block_expert = jnp.minimum(expert, num_experts - 1)
    first = row_starts[block_expert] + (block - block_starts[block_expert]) * block_rows
    row = first[:, None] + jnp.arange(block_rows, dtype=jnp.int32)[None, :]
    inside = (row < row_ends[block_expert][:, None]) & (expert < num_experts)[:, None]
    to_row = jnp.where(inside, row, num_rows).reshape(-1)

    index = jnp.arange(num_rows, dtype=jnp.int32)
    owner = jnp.searchsorted(row_ends, index, side="right")
    owner = jnp.minimum(owner, num_experts - 1)
    to_slot = block_starts[owner] * block_rows + index - row_starts[owner]
    to_slot = jnp.where(index < row_ends[-1], to_slot, num_blocks * block_rows)
    return to_row, to_slot, block_expert
