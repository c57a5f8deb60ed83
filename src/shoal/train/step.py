"""The training step: (state, batch) -> (state, metrics). Pure, jitted once, donated.

Whether an update is applied is decided inside it: with a non-finite loss or gradient every leaf
keeps its old value, the step still counts, and `applied` says 0.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from shoal.arrays.weights import GROUPS, WeightSpec, initialize
from shoal.model.config import ModelConfig
from shoal.model.lm import LM, describe_lm, forward
from shoal.model.loss import token_loss
from shoal.moe.layer import RoutingStats
from shoal.moe.route import balancing_bias
from shoal.optim.build import build, step_rates
from shoal.optim.law import Rates
from shoal.train.config import Config

type Metrics = dict[str, Array]
type Step = Callable[["State", "Batch"], tuple["State", Metrics]]


class State(NamedTuple):
    """Everything that a run carries from one step to the next; all of it is checkpointed.

    `step` is an int32 scalar, `params` an LM whose router bias is already the next step's,
    `optimizer` what the transform of `optim.build` keeps. In an abstract state every leaf is a
    ShapeDtypeStruct.
    """

    step: Any
    params: Any
    optimizer: Any


class Batch(NamedTuple):
    """One packed batch; positions of weight 0 are routed like all others and have no loss."""

    inputs: Int[Array, "B S"]
    targets: Int[Array, "B S"]
    segments: Int[Array, "B S"]
    weights: Float[Array, "B S"]


def describe_model(config: Config) -> LM:
    """Return the WeightSpecs of a run's model."""
    shared = config.optimizer.expert_sphere == "layer"
    return describe_lm(config.model, shared_sphere=shared)


def initial_state(config: Config, peak: Rates) -> State:
    """Draw the parameters and empty optimizer state of step 0."""
    described = describe_model(config)
    drawn = initialize(described, std=config.model.init_std, seed=config.train.seed)
    params = jax.tree.map(jnp.asarray, drawn)
    optimizer = build(described, config.optimizer, peak)
    return State(jnp.zeros((), jnp.int32), params, jax.jit(optimizer.init)(params))


def abstract_state(config: Config, peak: Rates) -> State:
    """Return the state as shapes and dtypes, allocating nothing."""
    described = describe_model(config)
    params = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.float32), described)
    optimizer = build(described, config.optimizer, peak)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    return State(step, params, jax.eval_shape(optimizer.init, params))


def make_step(config: Config, peak: Rates) -> Step:
    """Build the step of a run; `peak` are the optimizer's numbers (`derive.peak_rates`)."""
    described = describe_model(config)
    optimizer = build(described, config.optimizer, peak)
    context, num_steps = config.train.sequence_tokens, config.train.num_steps

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        gradients, sums, stats = accumulate(
            state.params, batch, config.model, context=context, parts=config.train.accumulation
        )
        rates = step_rates(state.step, config.optimizer, peak, num_steps)
        turned: Any = optimizer.update(
            cast("Any", gradients), state.optimizer, state.params, rates=rates
        )
        updates, optimizer_state = turned
        params: Any = optax.apply_updates(state.params, updates)
        bias = jax.vmap(
            lambda m: balancing_bias(
                m, top_k=config.model.top_k, num_bins=config.model.balance_bins
            )
        )(stats.margins)
        params = with_router_bias(params, bias, config.model)

        norms = _norms(described, gradients, updates, params)
        finite = jnp.isfinite(sums["total"]) & jnp.isfinite(norms["grad_norm"])
        kept = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, optimizer_state),
            (state.params, state.optimizer),
        )
        metrics = {
            "loss": sums["nats"],
            "z_loss": sums["z_loss"],
            "learning_rate/muon": rates["muonh"],
            "learning_rate/adam": rates["adam"],
            "applied": finite.astype(jnp.float32),
            **norms,
            **_routing_metrics(stats, bias, batch.inputs.size),
        }
        return State(state.step + 1, *kept), metrics

    return step


def accumulate(
    params: LM, batch: Batch, config: ModelConfig, *, context: int, parts: int
) -> tuple[LM, dict[str, Array], RoutingStats]:
    """Return gradients, summed losses and routing statistics of a batch.

    The sum over `parts` microbatches is that of the whole batch: every part is weighted by its
    real tokens, and the margins of all parts go to the balancer together.
    """
    total_weight = jnp.sum(batch.weights)

    def loss(p: LM, part: Batch) -> tuple[Array, tuple[dict[str, Array], RoutingStats]]:
        hidden, stats = forward(p, part.inputs, part.segments, config, context=context)
        per_token = token_loss(
            hidden.reshape(-1, hidden.shape[-1]),
            p.head,
            part.targets.reshape(-1),
            block_vocab=config.loss_block_vocab,
            block_above_bytes=config.loss_block_above_bytes,
        )
        share = part.weights.reshape(-1) / total_weight
        nats = jnp.sum(share * per_token.nats)
        z_loss = config.z_loss * jnp.sum(share * jnp.square(per_token.log_z))
        sums = {"nats": nats, "z_loss": z_loss, "total": nats + z_loss}
        return sums["total"], (sums, stats)

    graded = jax.value_and_grad(loss, has_aux=True)
    if parts == 1:
        (_, (sums, stats)), gradients = graded(params, batch)
        return gradients, sums, stats

    split = jax.tree.map(lambda a: a.reshape(parts, a.shape[0] // parts, *a.shape[1:]), batch)

    def add(carried: tuple[LM, dict[str, Array]], part: Batch) -> tuple[Any, RoutingStats]:
        (_, (sums, stats)), gradients = graded(params, part)
        return jax.tree.map(jnp.add, carried, (gradients, sums)), stats

    none = jnp.zeros((), jnp.float32)
    first = (
        jax.tree.map(jnp.zeros_like, params),
        {"nats": none, "z_loss": none, "total": none},
    )
    (gradients, sums), stats = jax.lax.scan(add, first, split)
    return gradients, sums, _join_parts(stats)


def _join_parts(stats: RoutingStats) -> RoutingStats:
    """Merge statistics [part, layer, ...] into those of the whole batch [layer, ...]."""
    margins = jnp.moveaxis(stats.margins, 0, 1)
    return RoutingStats(
        margins=margins.reshape(margins.shape[0], -1, margins.shape[-1]),
        counts=jnp.sum(stats.counts, axis=0),
        entropy=jnp.sum(stats.entropy, axis=0),
        dropped=jnp.sum(stats.dropped, axis=0),
    )


def with_router_bias(params: LM, bias: Float[Array, "layers E"], config: ModelConfig) -> LM:
    """Write biases, given in model order, into the two stacks."""
    kinds = config.layer_kinds
    for kind, name in (("local", "local"), ("global", "global_")):
        rows = [i for i, k in enumerate(kinds) if k == kind]
        if rows:
            params = eqx.tree_at(
                lambda p, n=name: getattr(p, n).moe.router_bias, params, bias[jnp.array(rows)]
            )
    return params


def _norms(described: LM, gradients: LM, updates: LM, params: LM) -> Metrics:
    """Global gradient norm, and per group the norms of gradient, update and weight."""
    specs: list[WeightSpec] = jax.tree.leaves(described)
    squares: dict[str, list[Array]] = {}
    for kind, tree in (("grad", gradients), ("update", updates), ("weight", params)):
        for spec, leaf in zip(specs, jax.tree.leaves(tree), strict=True):
            if spec.group in GROUPS:
                squares.setdefault(f"{kind}_norm/{spec.group}", []).append(
                    jnp.sum(jnp.square(leaf.astype(jnp.float32)))
                )
    norms = {name: jnp.sqrt(sum(parts)) for name, parts in squares.items()}
    grouped = [jnp.square(norms[f"grad_norm/{group}"]) for group in GROUPS]
    return {"grad_norm": jnp.sqrt(sum(grouped)), **norms}


def _routing_metrics(stats: RoutingStats, bias: Float[Array, "layers E"], tokens: int) -> Metrics:
    load = stats.counts.astype(jnp.float32)
    load = load / jnp.mean(load, axis=1, keepdims=True)
    return {
        "router/entropy": stats.entropy / tokens,
        "router/load": load,
        "router/load_cv": jnp.std(load, axis=1),
        "router/load_max": jnp.max(load, axis=1),
        "router/bias_abs_max": jnp.max(jnp.abs(bias), axis=1),
        "dropped": stats.dropped,
    }


def as_batch(arrays: Any) -> Batch:
    """Wrap a loader's numpy batch (fields inputs, targets, segments, weights)."""
    fields: Mapping[str, Any] = arrays._asdict()
    return Batch(**{name: jnp.asarray(fields[name]) for name in Batch._fields})
