"""Price of a training step on this machine, whole and part by part.

    .venv/bin/python benchmarks/train_step.py [reference|quickstart ...] [--steps N]

Each size runs in a process of its own. Printed: compile seconds, wall and CPU-seconds of a step
(medians), tokens/s, memory, and the share of this machine's own float32 matrix-product peak that
the step, and the experts alone, reach. Then the parts, forward and backward, each timed alone at
the step's shapes and multiplied by how often the step runs it: what the complete architecture adds
to a plain one, one line each. Alone, a part misses fusions and cache effects, so lines need not
add up to the step.

`reference` is a 20M-parameter shape whose plain form (no gated norms, convolutions, XSA, gates or
orthogonalization; Adam) trained at 1,520 tokens/s with 5.05 CPU-seconds a step and 11 s of
compilation in a prototype on two quiet cores of an AMD Zen 3; compare CPU-seconds, not wall.
"""

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PEAK_SIZE = 2048


@dataclasses.dataclass(frozen=True)
class Timing:
    """Medians in seconds."""

    wall_s: float
    cpu_s: float


def timed(run: Callable[[], Any], repeats: int) -> Timing:
    """Time calls that block until their result is there; the first is not counted."""
    run()
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Timing(statistics.median(walls), statistics.median(cpus))


def reference() -> Any:
    """The prototype's shape with every part of the complete architecture."""
    from shoal.recipes.quickstart import quickstart

    config = quickstart()
    model = dataclasses.replace(
        config.model,
        vocab_size=8192,
        num_layers=8,
        embed_dim=256,
        num_heads=4,
        head_dim=64,
        kv_heads_local=1,
        kv_heads_global=1,
        num_experts=32,
        top_k=4,
        expert_dim=128,
        latent_dim=128,
        num_shared=1,
        shared_dim=256,
        gate_rank=32,
        window=128,
        rotary_dim=32,
        base_context=512,
    )
    train = dataclasses.replace(config.train, batch_sequences=8, sequence_tokens=512)
    return dataclasses.replace(config, model=model, train=train)


def batch_of(config: Any) -> Any:
    """Random tokens in documents of about a hundred."""
    import numpy as np

    from shoal.train.step import Batch

    rows, length = config.train.batch_sequences, config.train.sequence_tokens
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, config.model.vocab_size, (rows, length + 1)).astype(np.int32)
    segments = np.cumsum(generator.random((rows, length)) < 0.01, axis=1).astype(np.int32)
    return Batch(tokens[:, :-1], tokens[:, 1:], segments, np.ones((rows, length), np.float32))


def peak_flops_s() -> Timing:
    """FLOPs per wall second, and per CPU-second, of a square float32 product."""
    import jax
    import jax.numpy as jnp

    a = jnp.ones((PEAK_SIZE, PEAK_SIZE), jnp.float32)
    product = jax.jit(jnp.matmul)
    took = timed(lambda: jax.block_until_ready(product(a, a)), 7)
    flops = 2 * PEAK_SIZE**3
    return Timing(flops / took.wall_s, flops / took.cpu_s)


def parts_of(config: Any) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Part -> (how often a step runs it, one forward and backward of it)."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from shoal.arrays.weights import initialize
    from shoal.model import attention, layers, loss
    from shoal.moe import experts, route, transport
    from shoal.optim import muonh
    from shoal.train.step import describe_model

    model, batch = config.model, batch_of(config)
    rows, length = batch.inputs.shape
    tokens, width = rows * length, model.embed_dim
    described = describe_model(config)
    p = jax.tree.map(jnp.asarray, initialize(described, std=model.init_std, seed=0))
    block = jax.tree.map(lambda a: a[0], p.local)
    generator = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return jnp.asarray(generator.standard_normal(shape), jnp.float32)

    x, flat = normal(rows, length, width), normal(tokens, width)
    q = normal(rows, length, model.num_heads, model.head_dim)
    kinds = model.layer_kinds
    kv = {k: getattr(model, f"kv_heads_{k}") for k in ("local", "global")}
    keys = {k: normal(rows, length, n, model.head_dim) for k, n in kv.items()}
    segments = jnp.asarray(batch.segments)
    same = jax.jit(layers.same_segment, static_argnums=1)(segments, model.conv_taps)
    z = normal(tokens, model.latent_dim)
    logits = normal(tokens, model.num_experts)
    routes = route.route(logits, block.moe.router_bias, top_k=model.top_k, scale=model.routed_scale)
    targets = jnp.asarray(batch.targets).reshape(-1)
    compute = experts.expert_compute(model.experts, block_rows=model.block_rows)

    def graded(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        def total(*given: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(function(*given)))

        run = jax.jit(jax.grad(total, argnums=tuple(range(len(arguments)))))
        return lambda: jax.block_until_ready(run(*arguments))

    def once(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        run = jax.jit(function)
        return lambda: jax.block_until_ready(run(*arguments))

    def attend(kind: str) -> Callable[[], Any]:
        window = model.window if kind == "local" else None

        def run(q: Any, k: Any, v: Any) -> Any:
            return attention.attend(q, k, v, segments, window=window, chunk=model.attention_chunk)

        return graded(run, q, keys[kind], keys[kind])

    def routed(z: Any, weights: Any, bank: Any) -> Any:
        return transport.local(z, routes.expert_ids, weights, bank, compute)[0]

    matrices = [normal(*spec.shape) for spec in jax.tree.leaves(described) if spec.group == "muonh"]
    count = model.num_layers
    return {
        "attention core, local": (kinds.count("local"), attend("local")),
        "attention core, global": (kinds.count("global"), attend("global")),
        "experts with dispatch": (count, graded(routed, z, routes.weights, block.moe.experts)),
        "head and loss": (
            1,
            graded(lambda h, w: loss.one_shot(h, w, targets), flat, p.head),
        ),
        "+ gated norms": (
            2 * count + 2,
            graded(lambda p, x: layers.gated_norm(p, x, 1e-5), block.attn_norm, x),
        ),
        "+ short convolutions, full width": (
            2 * count,
            graded(lambda w, x: layers.short_conv(w, x, same), block.attn_conv, x),
        ),
        "+ XSA": (count, graded(attention.exclude_self, q, keys["local"])),
        "+ half rotary": (
            kinds.count("local"),
            graded(lambda q: attention.rotate(q, model.rotary_dim, model.rope_theta), q),
        ),
        "+ balancing quantiles": (
            count,
            once(
                lambda m: route.balancing_bias(
                    route.count_margins(
                        m,
                        jnp.ones(len(m), bool),
                        grid=None,
                        num_bins=model.balance_bins,
                        mesh=None,
                    ),
                    top_k=model.top_k,
                ),
                routes.margins,
            ),
        ),
        "+ Newton-Schulz, all matrices": (
            1,
            once(lambda *m: muonh.orthogonalize(list(m), jnp.float32), *matrices),
        ),
    }


def measure(name: str, steps: int) -> dict[str, Any]:
    """Measure one size in this process."""
    import jax

    from shoal.core.files import home
    from shoal.jobs.runtime import num_cores, start_jax
    from shoal.model.count import flops_per_token
    from shoal.recipes.quickstart import quickstart
    from shoal.train.derive import peak_rates
    from shoal.train.state import initial_state
    from shoal.train.step import make_step

    start_jax(home())
    jax.config.update("jax_enable_compilation_cache", False)
    config = reference() if name == "reference" else quickstart()
    peak = peak_rates(config)
    state, batch = initial_state(config, peak), batch_of(config)
    began = time.perf_counter()
    step = jax.jit(make_step(config, peak), donate_argnums=0).lower(state, batch).compile()
    compile_s = time.perf_counter() - began
    box = [state]

    def one() -> None:
        box[0], metrics = step(box[0], batch)
        jax.block_until_ready((box[0], metrics))

    whole, gemm = timed(one, steps), peak_flops_s()
    model, tokens = config.model, config.train.tokens_per_step
    flops = flops_per_token(model, config.train.sequence_tokens) * tokens
    rows = {}
    for part, (times, run) in parts_of(config).items():
        took = timed(run, max(steps, 5))
        rows[part] = {"times": times, "cpu_s": took.cpu_s * times, "wall_s": took.wall_s * times}
    expert_flops = (
        18 * tokens * model.top_k * model.latent_dim * model.expert_dim * model.num_layers
    )
    experts = rows["experts with dispatch"]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "size": name,
        "cores": num_cores(),
        "tokens_per_step": tokens,
        "compile_s": compile_s,
        "step": dataclasses.asdict(whole),
        "tokens_per_s": tokens / whole.wall_s,
        "temporary_bytes": step.memory_analysis().temp_size_in_bytes,
        "peak_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "gemm_flops_per_s": gemm.wall_s,
        "gemm_flops_per_cpu_s": gemm.cpu_s,
        "step_share_of_peak": flops / whole.wall_s / gemm.wall_s,
        "experts_share_of_peak": expert_flops / experts["wall_s"] / gemm.wall_s,
        "parts": rows,
    }


def show(found: dict[str, Any]) -> str:
    """Lay a measurement out for a terminal."""
    step = found["step"]
    lines = [
        f"{found['size']}: {found['tokens_per_step']} tokens a step, {found['cores']} cores",
        (
            f"  compile {found['compile_s']:.1f} s; step {step['wall_s']:.2f} s wall,"
            f" {step['cpu_s']:.2f} CPU-s; {found['tokens_per_s']:,.0f} tokens/s"
        ),
        (
            f"  temporary {found['temporary_bytes'] / 2**20:,.0f} MiB,"
            f" peak {found['peak_rss_bytes'] / 2**20:,.0f} MiB"
        ),
        (
            f"  matrix-product peak {found['gemm_flops_per_s'] / 1e9:.0f} GFLOP/s"
            f" ({found['gemm_flops_per_cpu_s'] / 1e9:.0f} per CPU-s);"
            f" step {found['step_share_of_peak']:.0%} of it,"
            f" experts alone {found['experts_share_of_peak']:.0%}"
        ),
        f"  {'part, forward and backward':36}{'times':>6}{'CPU-s':>8}{'of step':>9}",
    ]
    lines += [
        f"  {part:36}{row['times']:6}{row['cpu_s']:8.3f}{row['cpu_s'] / step['cpu_s']:9.1%}"
        for part, row in found["parts"].items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure the sizes asked for, each in a fresh process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sizes", nargs="*", default=["reference", "quickstart"])
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON object per size")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for size in given.sizes:
        if size not in ("reference", "quickstart"):
            parser.error(f"size {size!r} is unknown; use reference or quickstart")
        if given.inside:
            found = measure(size, given.steps)
            print(json.dumps(found) if given.json else show(found), flush=True)
            continue
        command = [
            sys.executable,
            str(Path(__file__)),
            size,
            "--inside",
            "--steps",
            str(given.steps),
        ]
        subprocess.run(command + ["--json"] * given.json, check=True)


if __name__ == "__main__":
    main()
