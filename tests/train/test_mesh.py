"""The step on meshes: what one device computes, whatever cuts the work."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import jax
import numpy as np
import pytest

from meshes import EVEN, ODD, Setup, batch, forget, relative, step_of, walk
from shoal.arrays.weights import specs_of
from shoal.moe.config import MoEConfig
from shoal.train.step import describe_model

SCANNED = replace(EVEN, layer_loop="scan", remat=True, global_every=2)
REMAT = replace(EVEN, remat=True)
AMPLE = MoEConfig(capacity_sender=8.0, capacity_receiver=8.0, waves=2)
POOLED, RAGGED = (replace(AMPLE, transport=name) for name in ("pooled", "ragged"))

COVERING = {
    "local, all three": Setup(degree=(2, 2, 2, 1)),
    "pooled, expert 8": Setup(degree=(1, 1, 8, 1), moe=POOLED),
    "pooled, all three, scanned": Setup(degree=(2, 2, 2, 1), moe=POOLED, model=SCANNED),
    "pooled, odd": Setup(degree=(1, 3, 2, 1), moe=POOLED, model=ODD),
    "ragged, all three, context": Setup(degree=(1, 2, 2, 2), moe=RAGGED),
    "ragged, replicas, on host": Setup(degree=(4, 1, 2, 1), moe=RAGGED, memory="state_on_host"),
}
MORE = {
    "local, data 8": Setup(degree=(1, 8, 1, 1)),
    "local, context": Setup(degree=(1, 2, 1, 2)),
    "pooled, replicas, recomputed": Setup(degree=(2, 1, 4, 1), moe=POOLED, model=REMAT),
    "ragged, expert 8": Setup(degree=(1, 1, 8, 1), moe=RAGGED),
    "ragged, data and expert, recomputed": Setup(degree=(1, 2, 4, 1), moe=RAGGED, model=REMAT),
    "ragged, odd": Setup(degree=(1, 1, 6, 1), moe=RAGGED, model=ODD),
}
# Every logical choice of the product below, at two layers: one of each kind.
SHALLOW = replace(EVEN, num_layers=2, global_every=2)


@pytest.fixture(autouse=True, scope="module")
def _compile_anew() -> Iterator[None]:
    """A program from the cache is not partitioned again, and so warns of nothing."""
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", True)


@pytest.fixture(autouse=True)
def _free_programs() -> Iterator[None]:
    """See `conftest`: tens of meshes in one process would be too many."""
    yield
    forget()


def alone(setup: Setup) -> Setup:
    """The same model and batch on one device."""
    return Setup(model=replace(setup.model, remat=False, layer_loop="unroll"))


def assert_same(setup: Setup, num_steps: int) -> None:
    found, expected = walk(setup, num_steps), walk(alone(setup), num_steps)
    first, want = found.metrics[0], expected.metrics[0]
    np.testing.assert_allclose(first["loss"], want["loss"], rtol=1e-6)
    for name in want:
        if name.startswith("grad_norm"):
            np.testing.assert_allclose(first[name], want[name], rtol=1e-5, err_msg=name)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, value in expected.gradients.items():
        axes = tuple(range(value.ndim))[-2:] if value.ndim > 1 else None
        assert relative(found.gradients[name], value, axes) < 1e-5, name
    np.testing.assert_allclose(
        first["router/bias_abs_max"], want["router/bias_abs_max"], rtol=1e-4, atol=1e-6
    )
    for metrics in found.metrics:
        assert metrics["dropped/fraction"] == 0.0
        assert metrics["applied"] == 1.0
    np.testing.assert_array_equal(first["delivered"], want["delivered"])
    losses = [[float(m["loss"]) for m in one.metrics] for one in (found, expected)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    assert_norms_kept(setup, found.weights)


def assert_norms_kept(setup: Setup, weights: dict[str, np.ndarray]) -> None:
    """Norms of the constrained groups are those of the beginning, each over its whole tensor."""
    specs = specs_of(describe_model(setup.config()))
    initial = setup.initial()
    for spec, begun in zip(specs, jax.tree.leaves(initial.params), strict=True):
        if spec.group in ("muonh", "adamh"):
            now, before = (
                np.sqrt(np.sum(np.square(np.asarray(w, np.float64)), axis=spec.norm_axes))
                for w in (weights[spec.name], begun)
            )
            np.testing.assert_allclose(now, before, rtol=1e-5, err_msg=spec.name)
            assert relative(weights[spec.name], begun) > 0.01, spec.name


@pytest.mark.parametrize(
    "name", [*COVERING, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_a_mesh_computes_what_one_device_computes(name, capfd):
    assert_same({**COVERING, **MORE}[name], num_steps=20)
    said = capfd.readouterr().err
    assert "rematerialization" not in said, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degree", "transport"),
    [
        (degree, transport)
        for degree, transport in product(
            [(r, d, e, 1) for r, d, e in product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8))],
            ("local", "pooled", "ragged"),
        )
        if np.prod(degree) in (2, 8)
    ],
)
def test_every_mesh_and_transport_computes_what_one_device_computes(degree, transport, capfd):
    moe = replace(AMPLE, transport=transport)
    assert_same(Setup(degree=degree, moe=moe, model=SHALLOW), num_steps=2)
    assert "rematerialization" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["local", "pooled", "ragged"])
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_batch_on_a_mesh_add_up_to_the_whole(transport, parts):
    """Gradients to rounding, the bias within two bins of the grid that all parts count on."""
    moe = replace(AMPLE, transport=transport)
    setup = Setup(degree=(1, 1, 2, 1), moe=moe, model=SHALLOW, accumulation=parts)
    found, expected = walk(setup, 2), walk(alone(setup), 2)
    for name, value in expected.gradients.items():
        axes = tuple(range(value.ndim))[-2:] if value.ndim > 1 else None
        assert relative(found.gradients[name], value, axes) < 1e-5, name
    np.testing.assert_allclose(found.metrics[0]["loss"], expected.metrics[0]["loss"], rtol=1e-6)
    np.testing.assert_allclose(found.metrics[1]["loss"], expected.metrics[1]["loss"], rtol=1e-3)
    one = walk(setup, 1), walk(alone(setup), 1)
    low, high = np.moveaxis(np.asarray(one[0].state.grid), 1, 0)
    for stack, layer in (("local", 0), ("global", 1)):
        name = f"{stack}.moe.router_bias"
        gap = np.abs(one[0].weights[name] - one[1].weights[name]).max()
        # The grid that the state keeps is the widened one, twice as wide as the span.
        assert gap <= 2 * (high - low)[layer] / SHALLOW.balance_bins, name


def test_counting_happens_once_also_where_blocks_are_computed_again():
    """A count is a scatter of integers: as many with recomputation as without."""
    counts = []
    for model in (SHALLOW, replace(SHALLOW, remat=True)):
        setup = Setup(degree=(1, 1, 2, 1), model=model)
        lowered = step_of(setup).lower(setup.like(), batch(setup, 0))
        text = lowered.compile().as_text()
        shape = f"s32[{EVEN.num_experts * EVEN.balance_bins}]"
        counts.append(sum(shape in line and " scatter(" in line for line in text.splitlines()))
    assert counts == [SHALLOW.num_layers] * 2
