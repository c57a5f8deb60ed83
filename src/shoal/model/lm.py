"""The language model: embedding, layers in two stacks, head.

Parameters of local and of global layers stand in one stack each; that is the checkpoint layout on
every backend. Scanned, full periods run under `lax.scan` and the rest after it; unrolled, each
stack is split once (indexing a stack in a loop makes the backward quadratic in layers).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.config import batch_shards
from shoal.arrays.mesh import Placing, along_tokens, at_use, degrees_of
from shoal.arrays.ops import at_least_float32
from shoal.arrays.weights import Weight, describe, part, weight
from shoal.model.attention import Attention, attention
from shoal.model.config import ModelConfig
from shoal.model.layers import GatedNorm, gated_norm, same_segment, short_conv
from shoal.model.loss import TokenLoss, token_loss
from shoal.moe.carry import capacity_of
from shoal.moe.config import MoEConfig
from shoal.moe.experts import expert_compute
from shoal.moe.layer import MoE, Routing, RoutingStats, moe_layer
from shoal.moe.transport import transport


@dataclass(frozen=True, kw_only=True)
class On:
    """The devices that a model runs on together, and how rows travel between them."""

    mesh: Placing = None
    moe: MoEConfig = MoEConfig()


ALONE = On()


class Block(eqx.Module):
    """Attention and MoE branches, each normed before and convolved after."""

    attn_norm: GatedNorm = part()
    attn: Attention = part()
    attn_conv: Weight = weight("tap", "channel", init="first_tap", group="adam")
    moe_norm: GatedNorm = part()
    moe: MoE = part()
    moe_conv: Weight = weight("tap", "channel", init="first_tap", group="adam")


class LM(eqx.Module):
    """All parameters of a model."""

    embed: Weight = weight("vocab", "embed", group="adam")
    embed_norm: GatedNorm = part()
    local: Block = part(layer="layer_local", kv="kv_local")
    global_: Block = part(layer="layer_global", kv="kv_global")
    final_norm: GatedNorm = part()
    head: Weight = weight("embed", "vocab", group="adamh")


def describe_lm(config: ModelConfig, *, shared_sphere: bool = False) -> LM:
    """Return the model's WeightSpecs; allocates nothing."""
    return describe(LM, config.axis_sizes, shared_sphere=shared_sphere)


def forward(
    p: LM,
    inputs: Int[Array, "B S"],
    segments: Int[Array, "B S"],
    config: ModelConfig,
    *,
    context: int,
    on: On = ALONE,
    grid: Float[Array, "layers 2"] | None = None,
) -> tuple[Float[Array, "B S D"], RoutingStats]:
    """Run the model up to the head.

    Args:
        segments: documents of a row; negative where there is padding.
        context: the training context, which sets the query scale.
        grid: of each layer, to count margins on (`route.count_margins`); None: their own span.

    Returns:
        Final hidden states in the compute dtype, and routing statistics with a leading axis of
        layers in model order.
    """
    dtype = compute_dtype(p, config)
    described = describe_lm(config)
    same = same_segment(segments, config.conv_taps)
    table = at_use(p.embed, described.embed, on.mesh, dtype)
    x = along_tokens(jnp.take(table, inputs, axis=0).astype(dtype), on.mesh)
    norm = at_use(p.embed_norm, described.embed_norm, on.mesh, dtype)
    x = gated_norm(norm, x, config.norm_eps)
    how = _routing(config, on, own_grid=grid is None)

    def block(kind: str, specs: Block) -> Callable[..., tuple[Array, RoutingStats]]:
        run = partial(_block, segments=segments, same=same, config=config, kind=kind, how=how)
        run = partial(run, context=context, specs=specs)
        return jax.checkpoint(run) if config.remat else run

    kinds = {"local": described.local, "global": described.global_}
    blocks = {kind: block(kind, specs) for kind, specs in kinds.items()}
    if grid is None:
        grid = jnp.zeros((config.num_layers, 2), jnp.float32)
    x, stats = _run_layers(p, x, grid, config, blocks)
    norm = at_use(p.final_norm, described.final_norm, on.mesh, dtype)
    return gated_norm(norm, x, config.norm_eps), stats


def _routing(config: ModelConfig, on: On, *, own_grid: bool) -> Routing:
    return Routing(
        top_k=config.top_k,
        routed_scale=config.routed_scale,
        num_bins=config.balance_bins,
        norm_eps=config.norm_eps,
        round_router_bf16=config.router_round_bf16,
        carry=transport(on.moe.transport),
        capacity=capacity_of(on.moe),
        compute=expert_compute(config.experts, block_rows=config.block_rows),
        own_grid=own_grid,
        mesh=on.mesh,
    )


def compute_dtype(p: LM, config: ModelConfig) -> Any:
    """Return the dtype of activations: bfloat16 where configured, else as wide as the weights."""
    wide = at_least_float32(p.embed.dtype)
    return jnp.dtype(jnp.bfloat16) if config.compute_dtype == "bfloat16" else wide


def losses(
    p: LM,
    inputs: Int[Array, "B S"],
    targets: Int[Array, "B S"],
    segments: Int[Array, "B S"],
    config: ModelConfig,
    *,
    context: int,
    on: On = ALONE,
    grid: Float[Array, "layers 2"] | None = None,
) -> tuple[TokenLoss, RoutingStats]:
    """Run the model and its loss; arguments as in `forward`, results per token [B, S]."""
    hidden, stats = forward(p, inputs, segments, config, context=context, on=on, grid=grid)
    head = at_use(p.head, describe_lm(config).head, on.mesh, hidden.dtype)
    found = token_loss(
        hidden,
        head,
        targets,
        block_vocab=config.loss_block_vocab,
        block_above_bytes=config.loss_block_above_bytes * batch_shards(degrees_of(on.mesh)),
    )
    return found, stats


def _block(
    p: Block,
    x: Float[Array, "B S D"],
    grid: Float[Array, "2"],
    *,
    segments: Int[Array, "B S"],
    same: Float[Array, "taps B S"],
    config: ModelConfig,
    kind: str,
    context: int,
    specs: Block,
    how: Routing,
) -> tuple[Float[Array, "B S D"], RoutingStats]:
    p, mesh = at_use(p, specs, how.mesh, x.dtype), how.mesh
    a = gated_norm(p.attn_norm, along_tokens(x, mesh), config.norm_eps)
    a = attention(p.attn, a, segments, same, config, kind=kind, context=context, mesh=mesh)
    x = x + short_conv(p.attn_conv, a, same)
    m = gated_norm(p.moe_norm, x, config.norm_eps)
    y, stats = moe_layer(p.moe, m, segments >= 0, grid, how)
    return along_tokens(x + short_conv(p.moe_conv, y, same), mesh), stats


type _Blocks = dict[str, Callable[[Block, Array, Array], tuple[Array, RoutingStats]]]


def _run_layers(
    p: LM,
    x: Float[Array, "B S D"],
    grid: Float[Array, "layers 2"],
    config: ModelConfig,
    blocks: _Blocks,
) -> tuple[Float[Array, "B S D"], RoutingStats]:
    kinds, every = config.layer_kinds, config.global_every
    scan = config.layer_loop == "scan"
    if config.layer_loop == "auto":
        scan = jax.default_backend() != "cpu"
    periods = config.num_layers // every if scan else 0
    done = {"local": periods * (every - 1), "global": periods}
    collected: list[RoutingStats] = []

    if periods:

        def period(x: Array, layers: tuple[Block, Block, Array]) -> tuple[Array, RoutingStats]:
            locals_, global_, rows = layers
            return _in_order(
                x,
                rows,
                ["local"] * (every - 1) + ["global"],
                _split(locals_, every - 1),
                [global_],
                blocks,
            )

        scanned = (
            jax.tree.map(lambda a: a[: done["local"]].reshape(periods, -1, *a.shape[1:]), p.local),
            jax.tree.map(lambda a: a[:periods], p.global_),
            grid[: periods * every].reshape(periods, every, 2),
        )
        x, stats = jax.lax.scan(period, x, scanned)
        collected.append(jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), stats))

    rest = kinds[periods * every :]
    if rest:
        tail = [
            _split(jax.tree.map(lambda a, n=done[kind]: a[n:] if n else a, stack), rest.count(kind))
            for kind, stack in (("local", p.local), ("global", p.global_))
        ]
        x, stats = _in_order(x, grid[periods * every :], list(rest), tail[0], tail[1], blocks)
        collected.append(stats)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *collected)
    return x, joined


def _in_order(
    x: Array,
    grid: Array,
    kinds: list[str],
    locals_: list[Block],
    globals_: list[Block],
    blocks: _Blocks,
) -> tuple[Array, RoutingStats]:
    layers = {"local": iter(locals_), "global": iter(globals_)}
    collected = []
    for index, kind in enumerate(kinds):
        x, stats = blocks[kind](next(layers[kind]), x, grid[index])
        collected.append(stats)
    return x, jax.tree.map(lambda *parts: jnp.stack(parts), *collected)


def _split(stack: Block, count: int) -> list[Block]:
    """Take a stack of `count` layers apart with one `lax.split` per leaf."""
    if count == 0:
        return []
    leaves, structure = jax.tree.flatten(stack)
    columns = [jax.lax.split(leaf, (1,) * count, axis=0) for leaf in leaves]
    return [
        jax.tree.unflatten(
            structure, [column[i].reshape(column[i].shape[1:]) for column in columns]
        )
        for i in range(count)
    ]


def logits(p: LM, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
    """Head product with float32 (or wider) output."""
    wide = at_least_float32(hidden.dtype)
    return jnp.matmul(hidden, p.head.astype(hidden.dtype), preferred_element_type=wide)
