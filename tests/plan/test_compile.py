"""The real step, compiled for fake devices, against what the plan says of it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shoal.jobs.plan import plan, render
from shoal.plan.compile import compiled_apart
from shoal.plan.walk import matmul_flops

# Two layers of the quickstart's shape: a period of one local and one global layer.
SMALL = (
    "model.num_layers=2",
    "model.global_every=2",
    "model.compute_dtype=bfloat16",
    "train.batch_sequences=16",
    "train.sequence_tokens=128",
    "data.corpus.unit_tokens=128",
    "eval.sequence_tokens=128",
)


def _flops(function, *shapes):
    return matmul_flops(jax.make_jaxpr(function)(*(jnp.zeros(shape) for shape in shapes)))


def test_products_in_loops_and_branches_count_as_often_as_they_run():
    def looped(x, w):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=7)[0]

    def branched(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x)

    each = 2 * 3 * 5 * 5
    assert _flops(looped, (3, 5), (5, 5)) == 7 * each
    assert _flops(jax.jit(branched), (3, 5), (5, 5)) == each
    assert _flops(jax.grad(lambda x, w: looped(x, w).sum(), (0, 1)), (3, 5), (5, 5)) == 21 * each
    assert _flops(jax.vmap(jnp.matmul), (4, 3, 5), (4, 5, 5)) == 4 * each


def test_products_on_every_device_count_for_every_device():
    mesh = Mesh(jax.devices(), ("x",))
    mapped = jax.shard_map(
        jnp.matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False
    )
    assert _flops(mapped, (16, 5), (5, 4)) == 2 * 16 * 5 * 4


def test_a_grouped_product_and_its_gradients_count_every_row_once():
    def grouped(rows, bank):
        return jax.lax.ragged_dot(rows, bank, jnp.array([2, 4], jnp.int32))

    each = 2 * 6 * 5 * 3
    assert _flops(grouped, (6, 5), (2, 5, 3)) == each
    gradients = jax.grad(lambda rows, bank: grouped(rows, bank).sum(), (0, 1))
    assert _flops(gradients, (6, 5), (2, 5, 3)) == 3 * each


def test_a_product_in_a_loop_of_unknown_length_is_refused():
    def endless(x):
        return jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ x, x)

    with pytest.raises(ValueError, match="loop of unknown length"):
        _flops(endless, (3, 3))


PLAIN = ["model.rotary_global=true", "optimizer.matrices=adamw", "optimizer.weight_decay=0.1"]


@pytest.mark.parametrize(
    "settings",
    [
        ["moe.transport=ragged", "mesh.expert=4", "model.remat=true"],
        ["moe.transport=pooled", "mesh.replica=2", "mesh.expert=2", "train.accumulation=2"],
        ["moe.transport=pooled", "mesh.expert=4", "model.latent_dim=none", *PLAIN],
    ],
    ids=["ragged", "pooled", "plain"],
)
def test_the_compiled_step_takes_and_computes_what_the_plan_says(settings):
    found = plan("quickstart", [*SMALL, *settings], chips=8, chip="h100", compile=True)
    ratio = found["compiled"]["ratio"]
    assert ratio["arguments_bytes"] == pytest.approx(1, abs=0.01)
    assert ratio["matmul_flops"] == pytest.approx(1, abs=1e-9)
    assert found["compiled"]["temporary_bytes"] > 0
    assert "compiled for CPUs" in render(found)


def test_a_compilation_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"on 2 fake devices ended with 1.*no_such_module"):
        compiled_apart("shoal.jobs.no_such_module", {}, 2)


@pytest.mark.slow
def test_the_flagship_compiles_for_twelve_racks():
    settings = ["train.batch_sequences=12288"]
    found = plan("flagship", settings, chips=768, compile=True)["compiled"]
    assert found["ratio"]["arguments_bytes"] == pytest.approx(1, abs=0.01)
    assert found["ratio"]["matmul_flops"] == pytest.approx(1, abs=0.03)
    assert found["peak_process_bytes"] < 2.5 * 2**30
    assert found["processor_s"] < 100
