"""Step time and drops of the three transports on 8 fake CPU devices, as ratios to `local`.

    .venv/bin/python benchmarks/transports.py [--whole] [--dropless] [--steps N] ...

A step is the forward and the backward pass of one layer's routed experts inside `shard_map`, all
eight devices on the expert axis, with a router of fixed logits: unit noise per token and expert,
plus `--skew` times a popularity of each expert that all tokens share, plus `--topics` times one
that the tokens of one sequence share. The defaults make `pooled` drop about as much at 1.15 as the
public run did with a trained router (2.7 to 3.4 %). Each transport runs in a process of its own,
one after the other; medians are printed. With `--dropless` there is a fourth line: `ragged` with
room for everything that can come, which static shapes pay for in full. With `--whole` a step is
the complete training step of a small model on eight rows of tokens, its router as initialized.

The times are of this machine's cores acting as eight devices: a collective is a copy in memory,
`ragged` exchanges by gathering everything (its line says so), and what `local` saves in transport
it pays in small groups, since each device has a few rows for every expert. A network of
accelerators has other ratios. The drops are exact and the same on any machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

DEVICES = 8
CASES = ("local", "pooled", "ragged", "dropless")
LEARNED = ("weights", "gate", "up", "down")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Step time and drops of the transports.")
    parser.add_argument("--steps", type=int, default=11, help="timed steps; the median is printed")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of each device")
    parser.add_argument("--context", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--latent", type=int, default=128)
    parser.add_argument("--ffn", type=int, default=64)
    parser.add_argument("--skew", type=float, default=0.1)
    parser.add_argument("--topics", type=float, default=0.4)
    parser.add_argument("--capacity", type=float, default=1.15, help="of senders and receivers")
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="the whole training step")
    parser.add_argument("--dropless", action="store_true", help="ragged with room for all, too")
    parser.add_argument("--only", choices=CASES, help="one case, in this process, as JSON")
    return parser.parse_args(words)


def inputs(args: argparse.Namespace) -> dict[str, Any]:
    """Rows, choices and banks as numpy, the same for every case."""
    import numpy as np

    rng = np.random.default_rng(0)
    tokens, experts = DEVICES * args.tokens, args.experts
    sequences = -(-tokens // args.context)
    logits = rng.normal(size=(tokens, experts)) + args.skew * rng.normal(size=experts)
    topics = rng.normal(size=(sequences, experts)).repeat(args.context, axis=0)[:tokens]
    logits += args.topics * topics
    matrices = {"gate": (args.latent, args.ffn), "up": (args.latent, args.ffn)}
    matrices["down"] = (args.ffn, args.latent)
    return {
        "x": rng.normal(size=(tokens, args.latent)).astype(np.float32),
        "ids": np.argsort(-logits, axis=1)[:, : args.top_k].astype(np.int32),
        "weights": np.full((tokens, args.top_k), 1.0 / args.top_k, np.float32),
        **{
            name: (rng.normal(size=(experts, *shape)) / shape[0] ** 0.5).astype(np.float32)
            for name, shape in matrices.items()
        },
    }


def room_of(case: str, args: argparse.Namespace) -> Any:
    """The config section of a case."""
    from shoal.moe.config import MoEConfig

    return MoEConfig(
        transport=cast("Any", "ragged" if case == "dropless" else case),
        capacity_sender=args.capacity,
        capacity_receiver=float(DEVICES) if case == "dropless" else args.capacity,
        waves=args.waves,
        chunks=args.chunks,
    )


def one_layer(case: str, args: argparse.Namespace) -> tuple[Any, Callable[[], Any]]:
    """The compiled step of a layer's experts, and a call of it that returns its tally."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from shoal.arrays.config import EXPERT
    from shoal.moe.experts import ExpertWeights, expert_compute
    from shoal.moe.transport import capacity_of, transport

    room = room_of(case, args)
    carry, capacity = transport(room.transport), capacity_of(room)
    compute = expert_compute("auto", block_rows=64)

    def own(x: Any, ids: Any, weights: Any, *bank: Any) -> Any:
        y, tally = carry(
            x, ids, weights, ExpertWeights(*bank), compute, axis=EXPERT, capacity=capacity
        )
        return y, jax.lax.psum(jnp.stack(tally), EXPERT)

    across = jax.shard_map(
        own, mesh=mesh(), in_specs=P(EXPERT), out_specs=(P(EXPERT), P()), check_vma=False
    )

    def loss(learned: dict[str, Any], ids: Any) -> Any:
        y, tally = across(learned["x"], ids, *(learned[n] for n in LEARNED))
        return jnp.sum(jnp.square(y)), tally

    arrays = {name: jnp.asarray(array) for name, array in inputs(args).items()}
    ids = arrays.pop("ids")
    step = jax.jit(jax.grad(loss, has_aux=True)).lower(arrays, ids).compile()
    return step, lambda: jax.block_until_ready(step(arrays, ids))[1]


def whole_step(case: str, args: argparse.Namespace) -> tuple[Any, Callable[[], Any]]:
    """The same of the training step of a model with these experts."""
    import jax
    import numpy as np

    from shoal.recipes.quickstart import quickstart
    from shoal.train.derive import peak_rates
    from shoal.train.state import global_batch, initial_state
    from shoal.train.step import make_step

    base = quickstart()
    model = replace(
        base.model,
        num_experts=args.experts,
        top_k=args.top_k,
        latent_dim=args.latent,
        expert_dim=args.ffn,
    )
    train = replace(base.train, batch_sequences=DEVICES, sequence_tokens=args.tokens)
    config = replace(base, model=model, train=train, moe=room_of(case, args))
    peak, rng = peak_rates(config), np.random.default_rng(0)
    tokens = rng.integers(0, model.vocab_size, (DEVICES, args.tokens + 1)).astype(np.int32)
    ones = np.ones((DEVICES, args.tokens))
    rows = {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segments": ones.astype(np.int32),
        "weights": ones.astype(np.float32),
    }
    batch = global_batch(
        mesh(),
        DEVICES,
        args.tokens,
        lambda own: SimpleNamespace(**{name: array[own] for name, array in rows.items()}),
    )
    state = initial_state(config, peak, mesh())
    step = jax.jit(make_step(config, peak, mesh())).lower(state, batch).compile()

    def call() -> Any:
        _, metrics = jax.block_until_ready(step(state, batch))
        names = ("dropped/sender", "dropped/receiver", "delivered")
        return [metrics[name].sum() for name in names]

    return step, call


def mesh() -> Any:
    """All devices on the expert axis."""
    from shoal.arrays.config import AXES, EXPERT
    from shoal.arrays.mesh import make_mesh

    return make_mesh({axis: DEVICES if axis == EXPERT else 1 for axis in AXES})


def measure(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Time one case in this process."""
    from shoal.moe.exchange import exchange_kind

    step, call = whole_step(case, args) if args.whole else one_layer(case, args)
    sender, receiver, delivered = (int(n) for n in call())
    walls, cpus = [], []
    for _ in range(args.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {
        "wall_s": statistics.median(walls),
        "cpu_s": statistics.median(cpus),
        "temporary_bytes": step.memory_analysis().temp_size_in_bytes,
        "sender": sender,
        "receiver": receiver,
        "assignments": sender + receiver + delivered,
        "exchange": exchange_kind() if case in {"ragged", "dropless"} else "",
    }


def run(case: str) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags = f"{flags} --xla_force_host_platform_device_count={DEVICES}".strip()
    said = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--only", case],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(said.stdout.splitlines()[-1])


def main() -> None:
    """Print one line per transport."""
    args = parse()
    if args.only:
        print(json.dumps(measure(args.only, args)))
        return
    print(
        f"{DEVICES} devices x {args.tokens} tokens x {args.top_k} of {args.experts} experts, "
        f"latent {args.latent}, ffn {args.ffn}; capacity {args.capacity}; "
        f"{'training step' if args.whole else 'one layer'}, "
        f"median of {args.steps} steps"
    )
    head = ("step ms", "wall", "cpu", "memory", "sender", "receiver", "of arrived")
    print(f"{'':9}" + "".join(f"{word:>12}" for word in head))
    base: dict[str, Any] = {}
    for case in CASES if args.dropless else CASES[:3]:
        found = run(case)
        base = base or found
        ratios = [found[n] / base[n] for n in ("wall_s", "cpu_s", "temporary_bytes")]
        total, arrived = found["assignments"], found["assignments"] - found["sender"]
        shares = [found["sender"] / total, found["receiver"] / total, found["receiver"] / arrived]
        print(
            f"{case:9}{found['wall_s'] * 1e3:12.1f}"
            + "".join(f"{ratio:11.2f}x" for ratio in ratios)
            + "".join(f"{share:12.3%}" for share in shares)
            + (f"  exchange by {found['exchange']}" if found["exchange"] else "")
        )


if __name__ == "__main__":
    main()
