"""What only accelerators can show, in one command: step time, MFU, transports, kernels and oracles.

    .venv/bin/python benchmarks/gpu.py --chip h200            on a machine with accelerators
    .venv/bin/python benchmarks/gpu.py --dry-run              tiny, on 8 fake CPU devices

Four parts, each printed as lines and, with `--json FILE`, written as one object:

experts     `lax.ragged_dot` forward and its gradients, expert by expert, against float64 loops on
            the host, at sizes above a kernel's tile and with group sizes that are zero, one, a tile
            and one more, and unaligned; seconds, and the share of the chip's peak
attention   the fused kernel against the chunked form in float32, window and whole, with packed
            documents: outputs and gradients; seconds of both
exchange    `lax.ragged_all_to_all` against its emulation, bit for bit, values and gradients
step        a rung's step, local, pooled and ragged on the same weights and batches: seconds, tokens
            per second, MFU of all and of delivered assignments, drops, memory, and the loss of
            each step beside that of `local`

MFU is the published convention (whole attention spans, no recomputation); the chip's peak is that
of `shoal plan`. Nothing is trained to an end and nothing is written but the JSON.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DRY_DEVICES = 8


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="What only accelerators can show.")
    parser.add_argument("--chip", default="h200", help="whose peak MFU is of; as in `shoal plan`")
    parser.add_argument("--rung", default="d768", help="the recipe whose step is timed")
    parser.add_argument("--rows", type=int, default=0, help="sequences a step (0: 8 per device)")
    parser.add_argument("--steps", type=int, default=10, help="timed repeats")
    parser.add_argument("--parts", default="experts,attention,exchange,step")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on 8 fake CPU devices")
    return parser.parse_args(words)


def timed(run: Callable[[], Any], repeats: int) -> float:
    """Median seconds of calls that end when their result is there; the first is not counted."""
    import jax

    jax.block_until_ready(run())
    took = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def away(found: Any, expected: Any) -> float:
    """Distance relative to the norm of what is expected."""
    import numpy as np

    found, expected = (np.asarray(a, np.float64) for a in (found, expected))
    size = np.linalg.norm(expected)
    return float(np.linalg.norm(found - expected) / size) if size else float(np.abs(found).max())


# --- experts --------------------------------------------------------------------------------------


def experts(args: argparse.Namespace, peak: float) -> list[dict[str, Any]]:
    """Compare and time the grouped products at a rung's widths."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from shoal.moe.experts import ExpertWeights, ragged

    width, num_experts = (64, 6) if args.dry_run else (1024, 12)
    rows = 300 if args.dry_run else 24_576
    rng = np.random.default_rng(0)
    bank = {
        name: (rng.normal(size=(num_experts, width, width)) / width**0.5).astype(np.float32)
        for name in ("gate", "up", "down")
    }
    x = rng.normal(size=(rows, width)).astype(np.float32)
    mix = rng.normal(size=(rows, width)).astype(np.float32)
    even = np.full(num_experts, rows // num_experts)
    odd = np.array([0, 1, 128, 129] + [0] * (num_experts - 4))
    odd[4:] = np.diff(np.linspace(0, rows - odd.sum(), num_experts - 3).astype(int))
    lines = []
    for name, sizes in (("even", even), ("zero, one, a tile, one more, the rest", odd)):
        for dtype in (jnp.float32, jnp.bfloat16):

            def loss(params: Any, x: Any, sizes: Any = sizes, dtype: Any = dtype) -> Any:
                y = ragged(params, x.astype(dtype), jnp.asarray(sizes, jnp.int32))
                return jnp.sum(y.astype(jnp.float32) * mix), y

            run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
            params = ExpertWeights(**{key: jnp.asarray(value) for key, value in bank.items()})
            (_, y), (slopes, dx) = run(params, jnp.asarray(x))
            expected = _expert_loops(bank, x, mix, sizes)
            worst = {
                key: max(
                    away(getattr(slopes, key)[e], expected[key][e])
                    for e in range(num_experts)
                    if sizes[e]
                )
                for key in bank
            }
            idle = max(
                float(jnp.abs(getattr(slopes, key)[e]).max())
                for key in bank
                for e in range(num_experts)
                if not sizes[e]
            ) if (sizes == 0).any() else 0.0  # fmt: skip
            seconds = timed(lambda run=run, params=params: run(params, jnp.asarray(x)), args.steps)
            flops = 3 * 2 * 3 * int(sizes.sum()) * width * width
            lines.append({
                "part": "experts", "groups": name, "dtype": jnp.dtype(dtype).name,
                "output": away(y, expected["y"]), "dx": away(dx, expected["dx"]),
                **{f"worst_expert_d{key}": value for key, value in worst.items()},
                "idle_expert_gradient": idle,
                "seconds": seconds, "share_of_peak": flops / seconds / peak,
            })  # fmt: skip
    return lines


def _expert_loops(bank: Any, x: Any, mix: Any, sizes: Any) -> dict[str, Any]:
    """Outputs and gradients of sum(mix * y) in float64, one expert after the other."""
    import numpy as np

    gate, up, down = (bank[name].astype(np.float64) for name in ("gate", "up", "down"))
    x, mix = x.astype(np.float64), mix.astype(np.float64)
    found = {name: np.zeros_like(w) for name, w in (("gate", gate), ("up", up), ("down", down))}
    y, dx, start = np.zeros_like(x), np.zeros_like(x), 0
    for e, size in enumerate(sizes):
        rows = slice(start, start + size)
        start += size
        a, b = x[rows] @ gate[e], x[rows] @ up[e]
        sigmoid = 1.0 / (1.0 + np.exp(-a))
        inner = a * sigmoid * b
        y[rows] = inner @ down[e]
        back = mix[rows] @ down[e].T
        found["down"][e] = inner.T @ mix[rows]
        da = back * b * (sigmoid + a * sigmoid * (1.0 - sigmoid))
        db = back * a * sigmoid
        found["gate"][e], found["up"][e] = x[rows].T @ da, x[rows].T @ db
        dx[rows] = da @ gate[e].T + db @ up[e].T
    return {**found, "y": y, "dx": dx}


# --- attention ------------------------------------------------------------------------------------


def attention(args: argparse.Namespace, _: float) -> list[dict[str, Any]]:
    """Compare the fused kernel with the chunked form; on a CPU its call runs without the kernel."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from shoal.model.attention import attend, kernel_attend

    batch, length, heads, kv_heads, dim = (
        (2, 64, 4, 2, 16) if args.dry_run else (4, 4096, 8, 2, 128)
    )
    rng = np.random.default_rng(1)
    q, k, v = (
        jnp.asarray(rng.normal(size=(batch, length, n, dim)) / dim**0.25, jnp.float32)
        for n in (heads, kv_heads, kv_heads)
    )
    mix = jnp.asarray(rng.normal(size=q.shape), jnp.float32)
    segments = jnp.asarray(np.cumsum(rng.random((batch, length)) < 4 / length, axis=1), jnp.int32)
    real = jax.default_backend() == "gpu"
    lines = []
    for window in (None, length // 2):

        def chunked(q: Any, k: Any, v: Any, window: Any = window) -> Any:
            return attend(q, k, v, segments, window=window, chunk=256)

        def fused(q: Any, k: Any, v: Any, window: Any = window) -> Any:
            # The stand-in cannot be lowered from bfloat16 under strict promotion.
            given = (a.astype(jnp.bfloat16 if real else jnp.float32) for a in (q, k, v))
            kind = "cudnn" if real else "xla"
            return kernel_attend(*given, segments, window=window, implementation=kind)

        graded = [
            jax.jit(
                jax.value_and_grad(
                    lambda *a, f=f: (jnp.sum(f(*a).astype(jnp.float32) * mix), f(*a)),
                    argnums=(0, 1, 2),
                    has_aux=True,
                )
            )
            for f in (chunked, fused)
        ]
        ((_, want), slopes), ((_, found), other) = (run(q, k, v) for run in graded)
        seconds = [timed(lambda run=run: run(q, k, v), args.steps) for run in graded]
        lines.append({
            "part": "attention", "window": window, "kernel": "cudnn" if real else "none",
            "output": away(found.astype(jnp.float32), want),
            **{f"d{n}": away(b, a) for n, a, b in zip("qkv", slopes, other, strict=True)},
            "seconds_chunks": seconds[0], "seconds_kernel": seconds[1],
        })  # fmt: skip
    return lines


# --- exchange -------------------------------------------------------------------------------------


def exchange(args: argparse.Namespace, _: float) -> list[dict[str, Any]]:
    """Say which exchange there is, and compare the layer's outputs with those of `local`."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec as P

    from shoal.arrays.config import AXES
    from shoal.arrays.mesh import make_mesh, on_each_device
    from shoal.moe.exchange import exchange_kind
    from shoal.moe.experts import ExpertWeights, expert_compute
    from shoal.moe.transport import Capacity, transport

    count = len(jax.devices())
    mesh = make_mesh(dict(zip(AXES, (1, 1, count, 1), strict=True)))
    tokens, width, per_device = (24, 16, 2) if args.dry_run else (8192, 1024, 6)
    total, rng = count * per_device, np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(count * tokens, width)), jnp.float32)
    logits = rng.normal(size=(count * tokens, total)) + 0.5 * rng.normal(size=total)
    ids = jnp.asarray(np.argsort(-logits, axis=1)[:, :4], jnp.int32)
    weights = jnp.asarray(rng.uniform(0.1, 1.0, size=ids.shape), jnp.float32)
    bank = [jnp.asarray(rng.normal(size=(total, width, width)) / width**0.5) for _ in range(3)]
    bank = [w.astype(jnp.float32) for w in bank]
    compute = expert_compute("auto", block_rows=64)
    found = {}
    for name in ("local", "ragged"):

        def own(x: Any, ids: Any, weights: Any, *bank: Any, name: str = name) -> Any:
            room = Capacity(float(total), float(total), 1, 2)
            y, _ = transport(name)(
                x, ids, weights, ExpertWeights(*bank), compute, axis="expert", capacity=room
            )
            return y

        spread = on_each_device(own, mesh, (P("expert"),) * 6, P("expert"))
        run = jax.jit(
            jax.value_and_grad(
                lambda x, w, f=spread: (
                    jnp.sum(jnp.square(f(x, ids, w, *bank))),
                    f(x, ids, w, *bank),
                ),
                argnums=(0, 1),
                has_aux=True,
            )
        )
        found[name] = run(x, weights)
    (_, want), slopes = found["local"]
    (_, y), other = found["ragged"]
    return [{
        "part": "exchange", "kind": exchange_kind(), "devices": count, "output": away(y, want),
        "dx": away(other[0], slopes[0]), "dweights": away(other[1], slopes[1]),
    }]  # fmt: skip


# --- the whole step -------------------------------------------------------------------------------


def step(args: argparse.Namespace, peak: float) -> list[dict[str, Any]]:
    """Time a rung's step under each transport, all devices on the expert axis."""
    import jax
    import numpy as np

    from shoal.jobs.resolve import resolve
    from shoal.model.count import flops_per_token

    count = len(jax.devices())
    recipe = "quickstart" if args.dry_run else args.rung
    base = resolve(recipe)
    rows = args.rows or (count if args.dry_run else 8 * count)
    base = dataclasses.replace(
        base, train=dataclasses.replace(base.train, batch_sequences=rows, num_steps=1000)
    )
    reference, lines = None, []
    for name in ("local", "pooled", "ragged"):
        config = dataclasses.replace(base, moe=dataclasses.replace(base.moe, transport=name))
        if count == 1 and name == "ragged":
            config = dataclasses.replace(base, moe=dataclasses.replace(base.moe, transport="local"))
        metrics, seconds, used = _steps(config, args.steps)
        losses = [float(found["loss"]) for found in metrics]
        reference = reference or losses
        tokens_per_s = config.train.tokens_per_step / statistics.median(seconds[1:])
        mfu = tokens_per_s * flops_per_token(config.model, config.train.sequence_tokens)
        mfu /= peak * count
        dropped = float(np.mean([found["dropped/fraction"] for found in metrics]))
        lines.append({
            "part": "step", "recipe": recipe, "transport": name, "devices": count,
            "seconds": statistics.median(seconds[1:]), "tokens_per_s": tokens_per_s, "mfu": mfu,
            "mfu_delivered": mfu * (1.0 - dropped * _expert_share(config)), "dropped": dropped,
            "bytes_per_device": used, "first_loss": losses[0],
            "loss_minus_local": float(np.mean(np.subtract(losses, reference))),
        })  # fmt: skip
    return lines


def _expert_share(config: Any) -> float:
    """The routed experts' part of a token's operations."""
    from shoal.model.count import flops_per_token

    model, length = config.model, config.train.sequence_tokens
    none = dataclasses.replace(model, top_k=1)
    one = flops_per_token(model, length) - flops_per_token(none, length)
    return one * model.top_k / (model.top_k - 1) / flops_per_token(model, length)


def _steps(config: Any, count: int) -> tuple[list[Any], list[float], int]:
    """Metrics and seconds of some steps from the beginning, and bytes per device."""
    import jax
    import numpy as np

    from shoal.arrays.config import AXES
    from shoal.arrays.mesh import make_mesh
    from shoal.train.derive import peak_rates
    from shoal.train.state import global_batch, initial_state, shardings
    from shoal.train.step import Batch, make_step

    mesh = make_mesh(dict(zip(AXES, (1, 1, len(jax.devices()), 1), strict=True)))
    peak, settings = peak_rates(config), config.train
    rows, length = settings.batch_sequences, settings.sequence_tokens
    state = initial_state(config, peak, mesh)
    places = shardings(config, peak, mesh)
    jitted = jax.jit(make_step(config, peak, mesh), donate_argnums=0, out_shardings=(places, None))

    def batch(number: int) -> Batch:
        rng = np.random.default_rng([number, 3])
        tokens = rng.zipf(1.3, size=(rows, length + 1)) % config.model.vocab_size
        tokens = tokens.astype(np.int32)
        segments = np.cumsum(rng.random((rows, length)) < 2 / length, axis=1).astype(np.int32)
        whole = Batch(tokens[:, :-1], tokens[:, 1:], segments, np.ones(segments.shape, np.float32))
        return global_batch(mesh, rows, length, lambda cut: Batch(*(a[cut] for a in whole)))

    compiled = jitted.lower(state, batch(0)).compile()
    memory = compiled.memory_analysis()
    metrics, seconds = [], []
    for number in range(count + 1):
        given, begun = batch(number), time.perf_counter()
        state, found = compiled(state, given)
        metrics.append(jax.device_get(found))
        seconds.append(time.perf_counter() - begun)
    used = 0 if memory is None else memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return metrics, seconds, used


PARTS = {"experts": experts, "attention": attention, "exchange": exchange, "step": step}


def main() -> int:
    """Run the parts that were asked for."""
    args = parse()
    wanted = args.parts.split(",")
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"unknown part {unknown[0]!r}; use {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if args.dry_run:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DRY_DEVICES}"
        args.steps = min(args.steps, 2)
    from shoal.core.files import home
    from shoal.jobs.runtime import environment, start_jax
    from shoal.plan.chips import chip_named

    start_jax(home())
    facts = environment()
    if facts["backend"] == "cpu" and not args.dry_run:
        print("there is no accelerator here; --dry-run shows that the parts run", file=sys.stderr)
        return 2
    known = chip_named(args.chip)
    print(f"{len(facts['devices'])} devices, {facts['backend']}; MFU against one {known.name}")
    lines = []
    for name in wanted:
        for line in PARTS[name](args, known.peak_flops):
            lines.append(line)
            told = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in line.items())
            print("  ".join(told), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"environment": facts, "lines": lines}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
