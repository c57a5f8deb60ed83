"""Transports on a mesh of fake devices, with gradients, as the oracles give them."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from oracles.bridge import quick_jit
from oracles.transport import Room
from shoal.moe.experts import Compute, ExpertWeights, dense
from shoal.moe.transport import Capacity, transport

EXPERTS, LATENT, FFN = 8, 6, 5
TREE = ("x", "weights", "gate", "up", "down")


def random_inputs(
    seed: int, ids: Any, num_experts: int = EXPERTS, latent: int = LATENT
) -> dict[str, Any]:
    """Rows, weights, banks and a cotangent for assignments [D, T, K]."""
    rng = np.random.default_rng(seed)
    devices, tokens, _ = np.shape(ids)
    return {
        "ids": np.asarray(ids),
        "weights": rng.uniform(0.1, 2.0, size=np.shape(ids)),
        "x": rng.normal(size=(devices, tokens, latent)),
        "mix": rng.normal(size=(devices, tokens, latent)),
        "gate": rng.normal(size=(num_experts, latent, FFN)),
        "up": rng.normal(size=(num_experts, latent, FFN)),
        "down": rng.normal(size=(num_experts, FFN, latent)),
    }


def capacity_of(room: Room) -> Capacity:
    return Capacity(room.sender_percent / 100, room.receiver_percent / 100, room.waves, room.chunks)


def mesh_of(expert: int, data: int = 1) -> Mesh:
    devices = np.array(jax.devices()[: data * expert]).reshape(data, expert)
    return Mesh(devices, ("data", "expert"), axis_types=(AxisType.Auto,) * 2)


@cache
def carrier(
    name: str, expert: int | None, capacity: Capacity, data: int = 1, compute: Compute = dense
) -> Any:
    """(tree, ids, mix) -> (y, [devices, 3] tally, gradients of sum(mix * y)), compiled once.

    Arrays are of all devices, [D, T, ...]. With `expert` None there is one device and no mesh.
    """
    axis = None if expert is None else "expert"

    def own(x: Any, weights: Any, gate: Any, up: Any, down: Any, ids: Any) -> Any:
        bank = ExpertWeights(gate, up, down)
        y, tally = transport(name)(
            x[0], ids[0], weights[0], bank, compute, axis=axis, capacity=capacity
        )
        return y[None], jnp.stack(tally)[None]

    across = own
    if expert is not None:
        tokens, bank = P(("data", "expert")), P("expert")
        across = jax.shard_map(
            own,
            mesh=mesh_of(expert, data),
            in_specs=(tokens, tokens, bank, bank, bank, tokens),
            out_specs=(tokens, tokens),
            check_vma=False,
        )

    def run(tree: Any, ids: Any, mix: Any) -> Any:
        y, back, tally = jax.vjp(
            lambda tree: across(*(tree[n] for n in TREE), ids), tree, has_aux=True
        )
        return y, tally, back(mix)[0]

    return quick_jit(run)


def on_devices(
    name: str,
    inputs: dict[str, Any],
    expert: int | None,
    room: Room,
    data: int = 1,
    dtype: Any = jnp.float32,
    compute: Compute = dense,
) -> tuple[Any, Any, dict[str, Any]]:
    """Run on numpy inputs: outputs, tallies and gradients, as numpy."""
    tree = {n: jnp.asarray(inputs[n], dtype if n == "x" else jnp.float32) for n in TREE}
    ids, mix = jnp.asarray(inputs["ids"], jnp.int32), jnp.asarray(inputs["mix"], dtype)
    run = carrier(name, expert, capacity_of(room), data, compute)
    return jax.device_get(run(tree, ids, mix))
