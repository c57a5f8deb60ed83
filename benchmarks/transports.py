"""Step time and drops of the three transports on 8 fake CPU devices, as ratios to `local`.

    .venv/bin/python benchmarks/transports.py [--steps N] [--tokens T] [--skew X] [--topics Y] ...

A step is the forward and the backward pass of one layer's routed experts inside `shard_map`, all
eight devices on the expert axis, with a router of fixed logits: unit noise per token and expert,
plus `--skew` times a popularity of each expert that all tokens share, plus `--topics` times one
that the tokens of one sequence share. The defaults make `pooled` drop about as much at 1.15 as the
public run did with a trained router (2.7 to 3.4 %). Each transport runs in a process of its own,
one after the other; medians are printed. With `--dropless` there is a fourth line: `ragged` with
room for everything that can come, which static shapes pay for in full.

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
from typing import Any

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


def step_of(case: str, args: argparse.Namespace) -> Any:
    """The jitted step of a case: arrays -> (gradients, tally summed over devices)."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from shoal.arrays.config import AXES, EXPERT
    from shoal.arrays.mesh import make_mesh
    from shoal.moe.experts import ExpertWeights, expert_compute
    from shoal.moe.transport import Capacity, transport

    receiver = float(DEVICES) if case == "dropless" else args.capacity
    capacity = Capacity(args.capacity, receiver, args.waves, args.chunks)
    carry = transport("ragged" if case == "dropless" else case)
    compute = expert_compute("auto", block_rows=64)

    def own(x: Any, ids: Any, weights: Any, *bank: Any) -> Any:
        y, tally = carry(
            x, ids, weights, ExpertWeights(*bank), compute, axis=EXPERT, capacity=capacity
        )
        return y, jax.lax.psum(jnp.stack(tally), EXPERT)

    across = jax.shard_map(
        own,
        mesh=make_mesh({axis: DEVICES if axis == EXPERT else 1 for axis in AXES}),
        in_specs=P(EXPERT),
        out_specs=(P(EXPERT), P()),
        check_vma=False,
    )

    def loss(learned: dict[str, Any], ids: Any) -> Any:
        y, tally = across(learned["x"], ids, *(learned[n] for n in LEARNED))
        return jnp.sum(jnp.square(y)), tally

    return jax.jit(jax.grad(loss, has_aux=True))


def measure(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Time one case in this process."""
    import jax
    import jax.numpy as jnp

    from shoal.moe.exchange import exchange_kind

    arrays = {name: jnp.asarray(array) for name, array in inputs(args).items()}
    ids = arrays.pop("ids")
    step = step_of(case, args).lower(arrays, ids).compile()
    _, tally = jax.block_until_ready(step(arrays, ids))
    walls, cpus = [], []
    for _ in range(args.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(step(arrays, ids))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    sender, receiver, delivered = (int(n) for n in tally)
    assert sender + receiver + delivered == ids.size
    return {
        "wall_s": statistics.median(walls),
        "cpu_s": statistics.median(cpus),
        "temporary_bytes": step.memory_analysis().temp_size_in_bytes,
        "sender": sender,
        "receiver": receiver,
        "assignments": ids.size,
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
