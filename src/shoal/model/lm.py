"""The language model: embedding, layers in two stacks, head.

Parameters of local and of global layers stand in one stack each; that is the checkpoint layout on
every backend. Scanned, full periods run under `lax.scan` and the rest after it; unrolled, each
stack is split once (indexing a stack in a loop makes the backward quadratic in layers).
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.ops import at_least_float32
from shoal.arrays.weights import Weight, describe, part, weight
from shoal.model.attention import Attention, attention
from shoal.model.config import ModelConfig
from shoal.model.layers import GatedNorm, gated_norm, same_segment, short_conv
from shoal.moe.experts import expert_compute
from shoal.moe.layer import MoE, RoutingStats, moe_layer
from shoal.moe.transport import local


class Block(eqx.Module):
    """Attention and MoE branches, each normed before and convolved after."""

    attn_norm: GatedNorm = part()
    attn: Attention = part()
    attn_conv: Weight = weight("tap", "embed", init="first_tap", group="adam")
    moe_norm: GatedNorm = part()
    moe: MoE = part()
    moe_conv: Weight = weight("tap", "embed", init="first_tap", group="adam")


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
) -> tuple[Float[Array, "B S D"], RoutingStats]:
    """Run the model up to the head.

    Args:
        context: the training context, which sets the query scale.

    Returns:
        Final hidden states in the compute dtype, and routing statistics with a leading axis of
        layers in model order.
    """
    dtype = at_least_float32(p.embed.dtype)
    if config.compute_dtype == "bfloat16":
        dtype = jnp.bfloat16
    same = same_segment(segments, config.conv_taps)
    x = jnp.take(p.embed, inputs, axis=0).astype(dtype)
    x = gated_norm(p.embed_norm, x, config.norm_eps)

    def block(kind: str) -> Callable[[Block, Array], tuple[Array, RoutingStats]]:
        run = partial(
            _block, segments=segments, same=same, config=config, kind=kind, context=context
        )
        return jax.checkpoint(run) if config.remat else run

    blocks = {"local": block("local"), "global": block("global")}
    x, stats = _run_layers(p, x, config, blocks)
    return gated_norm(p.final_norm, x, config.norm_eps), stats


def _block(
    p: Block,
    x: Float[Array, "B S D"],
    *,
    segments: Int[Array, "B S"],
    same: Float[Array, "taps B S"],
    config: ModelConfig,
    kind: str,
    context: int,
) -> tuple[Float[Array, "B S D"], RoutingStats]:
    a = gated_norm(p.attn_norm, x, config.norm_eps)
    a = attention(p.attn, a, segments, same, config, kind=kind, context=context)
    x = x + short_conv(p.attn_conv, a, same)
    m = gated_norm(p.moe_norm, x, config.norm_eps)
    y, stats = moe_layer(
        p.moe,
        m.reshape(-1, m.shape[-1]),
        carry=local,
        compute=expert_compute(config.experts, block_rows=config.block_rows),
        top_k=config.top_k,
        routed_scale=config.routed_scale,
        norm_eps=config.norm_eps,
        round_router_bf16=config.router_round_bf16,
    )
    return x + short_conv(p.moe_conv, y.reshape(x.shape), same), stats


type _Blocks = dict[str, Callable[[Block, Array], tuple[Array, RoutingStats]]]


def _run_layers(
    p: LM, x: Float[Array, "B S D"], config: ModelConfig, blocks: _Blocks
) -> tuple[Float[Array, "B S D"], RoutingStats]:
    kinds, every = config.layer_kinds, config.global_every
    scan = config.layer_loop == "scan"
    if config.layer_loop == "auto":
        scan = jax.default_backend() != "cpu"
    periods = config.num_layers // every if scan else 0
    done = {"local": periods * (every - 1), "global": periods}
    collected: list[RoutingStats] = []

    if periods:

        def period(x: Array, layers: tuple[Block, Block]) -> tuple[Array, RoutingStats]:
            locals_, global_ = layers
            return _in_order(
                x,
                ["local"] * (every - 1) + ["global"],
                _split(locals_, every - 1),
                [global_],
                blocks,
            )

        scanned = (
            jax.tree.map(lambda a: a[: done["local"]].reshape(periods, -1, *a.shape[1:]), p.local),
            jax.tree.map(lambda a: a[:periods], p.global_),
        )
        x, stats = jax.lax.scan(period, x, scanned)
        collected.append(jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), stats))

    rest = kinds[periods * every :]
    if rest:
        tail = [
            _split(jax.tree.map(lambda a, n=done[kind]: a[n:] if n else a, stack), rest.count(kind))
            for kind, stack in (("local", p.local), ("global", p.global_))
        ]
        x, stats = _in_order(x, list(rest), tail[0], tail[1], blocks)
        collected.append(stats)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *collected)
    return x, joined


def _in_order(
    x: Array, kinds: list[str], locals_: list[Block], globals_: list[Block], blocks: _Blocks
) -> tuple[Array, RoutingStats]:
    layers = {"local": iter(locals_), "global": iter(globals_)}
    collected = []
    for kind in kinds:
        x, stats = blocks[kind](next(layers[kind]), x)
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
