"""The training step: (state, batch) -> (state, metrics). Pure, jitted once, donated.

Whether an update is applied is decided inside it: with a non-finite loss or gradient every leaf
keeps its old value, the step still counts, and `applied` says 0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from shoal.arrays.mesh import Placing, on_device, settled, spread_matrices
from shoal.arrays.weights import GROUPS, WeightSpec
from shoal.model.config import ModelConfig
from shoal.model.lm import ALONE, LM, On, describe_lm, losses
from shoal.moe.layer import RoutingStats, add_stats
from shoal.moe.route import balancing_bias, widened
from shoal.optim.build import build, step_rates
from shoal.optim.law import Rates
from shoal.train.config import Config

type Metrics = dict[str, Array]
type Step = Callable[["State", "Batch"], tuple["State", Metrics]]


class State(NamedTuple):
    """Everything that a run carries from one step to the next; all of it is checkpointed.

    `step` is an int32 scalar, `params` an LM whose router bias is already the next step's,
    `optimizer` what the transform of `optim.build` keeps, `grid` [layers, 2] where the balancer of
    the next step counts if it accumulates. In an abstract state every leaf is a ShapeDtypeStruct.
    """

    step: Any
    params: Any
    optimizer: Any
    grid: Any


class Batch(NamedTuple):
    """One packed batch.

    Positions of weight 0 have no loss but are routed like all others; those of a negative segment
    are padding: they take no room at any expert and count nowhere.
    """

    inputs: Int[Array, "B S"]
    targets: Int[Array, "B S"]
    segments: Int[Array, "B S"]
    weights: Float[Array, "B S"]


def describe_model(config: Config) -> LM:
    """Return the WeightSpecs of a run's model."""
    shared = config.optimizer.expert_sphere == "layer"
    return describe_lm(config.model, shared_sphere=shared)


def optimizer_of(
    config: Config, peak: Rates, mesh: Placing
) -> optax.GradientTransformationExtraArgs:
    """Return the run's optimizer; on a mesh its work is spread like the weights."""
    described = describe_model(config)
    return build(
        described,
        config.optimizer,
        peak,
        spread=lambda parts: spread_matrices(parts, mesh),
        keep_banks_apart=mesh is not None,
        settle=lambda tree: settled(tree, described, mesh),
    )


def make_step(config: Config, peak: Rates, mesh: Placing = None) -> Step:
    """Build the step of a run.

    Args:
        peak: the optimizer's numbers (`derive.peak_rates`).
        mesh: the devices that share the step; None is one device.
    """
    described = describe_model(config)
    optimizer = optimizer_of(config, peak, mesh)
    on = On(mesh=mesh, moe=config.moe)
    num_steps = config.train.num_steps

    def step(resting: State, batch: Batch) -> tuple[State, Metrics]:
        state = resting._replace(params=on_device(resting.params, mesh))
        gradients, sums, stats = accumulate(
            state.params,
            batch,
            config.model,
            context=config.train.sequence_tokens,
            parts=config.train.accumulation,
            on=on,
            grid=state.grid,
        )
        gradients = settled(gradients, described, mesh)
        state = state._replace(optimizer=on_device(resting.optimizer, mesh))
        rates = step_rates(state.step, config.optimizer, peak, num_steps)
        turned: Any = optimizer.update(
            cast("Any", gradients), state.optimizer, state.params, rates=rates
        )
        updates, optimizer_state = turned
        params: Any = optax.apply_updates(state.params, updates)
        bias = jax.vmap(lambda found: balancing_bias(found, top_k=config.model.top_k))(
            stats.margins
        )
        params = with_router_bias(params, bias, config.model)
        grid = jax.vmap(widened)(stats.margins.span)

        norms = _norms(described, gradients, updates, params)
        kept = jnp.isfinite(sums["total"]) & jnp.isfinite(norms["grad_norm"])
        if config.moe.dropless:
            kept = kept & jnp.all(stats.sender + stats.receiver == 0)
        new = jax.tree.map(
            lambda new, old: jnp.where(kept, new, old),
            (params, optimizer_state, grid),
            (state.params, state.optimizer, state.grid),
        )
        metrics = {
            "loss": sums["nats"],
            "z_loss": sums["z_loss"],
            "learning_rate/muon": rates["muonh"],
            "learning_rate/adam": rates["adam"],
            "applied": kept.astype(jnp.float32),
            **norms,
            **_routing_metrics(stats, bias),
        }
        return State(state.step + 1, *new), metrics

    return step


def accumulate(
    params: LM,
    batch: Batch,
    config: ModelConfig,
    *,
    context: int,
    parts: int,
    on: On = ALONE,
    grid: Float[Array, "layers 2"] | None = None,
) -> tuple[LM, dict[str, Array], RoutingStats]:
    """Return gradients, summed losses and routing statistics of a batch.

    The sum over `parts` microbatches is that of the whole batch: every part is weighted by its
    real tokens. A single part counts its margins on their own span; several count on one grid.

    Args:
        grid: of the step before, for several parts; one whose edges are equal is none, and the
            first part's span, widened, takes its place.
    """
    total_weight = jnp.sum(batch.weights)

    def loss(
        p: LM, part: Batch, grid: Array | None
    ) -> tuple[Array, tuple[dict[str, Array], RoutingStats]]:
        found, stats = losses(
            p,
            part.inputs,
            part.targets,
            part.segments,
            config,
            context=context,
            on=on,
            grid=grid,
        )
        share = part.weights / total_weight
        nats = jnp.sum(share * found.nats)
        z_loss = config.z_loss * jnp.sum(share * jnp.square(found.log_z))
        sums = {"nats": nats, "z_loss": z_loss, "total": nats + z_loss}
        return sums["total"], (sums, stats)

    graded = jax.value_and_grad(loss, has_aux=True)
    if parts == 1:
        (_, (sums, stats)), gradients = graded(params, batch, None)
        return gradients, sums, stats

    start = jnp.zeros((config.num_layers, 2), jnp.float32) if grid is None else grid
    return _in_parts(graded, params, batch, start, parts)


def _in_parts(
    graded: Callable[..., Any],
    params: LM,
    batch: Batch,
    start: Float[Array, "layers 2"],
    parts: int,
) -> tuple[LM, dict[str, Array], RoutingStats]:
    """Sum over microbatches; each one's margins are counted on the grid of the one before."""

    def add(carried: Any, part: Batch) -> tuple[Any, None]:
        gradients, sums, stats = carried
        (_, (more_sums, more_stats)), more = graded(params, part, stats.margins.grid)
        added = jax.tree.map(jnp.add, (gradients, sums), (more, more_sums))
        return (*added, add_stats(stats, more_stats)), None

    # Every parts-th row: a cut along the batch stays where it is.
    split = jax.tree.map(
        lambda a: jnp.moveaxis(a.reshape(a.shape[0] // parts, parts, *a.shape[1:]), 1, 0), batch
    )
    one = jax.tree.map(lambda a: a[0], split)
    (_, (sums, stats)), gradients = jax.eval_shape(graded, params, one, start)
    gradients, sums, stats = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), (gradients, sums, stats)
    )
    none = jnp.full(len(start), jnp.inf)
    margins = stats.margins._replace(grid=start, span=jnp.stack([none, -none], axis=1))
    begun = (gradients, sums, stats._replace(margins=margins))
    (gradients, sums, stats), _ = jax.lax.scan(add, begun, split)
    return gradients, sums, stats


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


def _routing_metrics(stats: RoutingStats, bias: Float[Array, "layers E"]) -> Metrics:
    """Per layer, and the share of all assignments of real tokens that were dropped.

    `router/entropy` is per token; `dropped/*` and `delivered` count assignments. Of T assignments
    S are dropped by senders and R by receivers: `drop_share/*` are S / T, R / T, R / (T - S).
    """

    def share(counted: Array, total: Array) -> Array:
        return counted.astype(jnp.float32) / jnp.maximum(total, 1.0)

    load = stats.load.astype(jnp.float32)
    load = load / jnp.mean(load, axis=1, keepdims=True)
    # As floats: the sum over layers can pass the largest int32.
    dropped = (stats.sender + stats.receiver).astype(jnp.float32)
    delivered = stats.delivered.astype(jnp.float32)
    return {
        "router/entropy": stats.entropy / stats.margins.tokens.astype(jnp.float32),
        "router/load": load,
        "router/load_cv": jnp.std(load, axis=1),
        "router/load_max": jnp.max(load, axis=1),
        "router/bias_abs_max": jnp.max(jnp.abs(bias), axis=1),
        "dropped/sender": stats.sender,
        "dropped/receiver": stats.receiver,
        "delivered": stats.delivered,
        "drop_share/sender": share(stats.sender, dropped + delivered),
        "drop_share/receiver": share(stats.receiver, dropped + delivered),
        "drop_share/receiver_of_sent": share(
            stats.receiver, stats.receiver.astype(jnp.float32) + delivered
        ),
        "dropped/fraction": jnp.sum(dropped) / jnp.sum(dropped + delivered),
    }
