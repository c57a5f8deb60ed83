"""Operations by part against the counts, and what is executed against brute force."""

import numpy as np
import pytest

from plan.workloads import layout, workload
from shoal.model.count import flops_per_token
from shoal.optim.muonh import TRIPLES
from shoal.plan.flops import (
    executed_flops,
    forward_per_token,
    mean_span,
    mfu,
    model_flops,
)
from shoal.plan.layout import Layout
from shoal.plan.weights import weights_of

RECIPES = ["flagship", "d512", "d768", "d2048", "quickstart"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("length", [512, 4096, 16384])
def test_the_parts_sum_to_the_counted_operations_exactly(recipe, length):
    model = workload(recipe).model
    assert 3 * sum(forward_per_token(model, length).values()) == flops_per_token(model, length)


def test_a_step_is_tokens_times_the_counted_operations():
    work = workload("flagship")
    counted = work.tokens_per_step * flops_per_token(work.model, 4096)
    assert sum(model_flops(work).values()) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(("length", "window"), [(16, None), (16, 5), (16, 16), (7, 20)])
def test_the_causal_span_is_the_mean_number_of_visible_keys(length, window):
    seen = [min(t + 1, window or length) for t in range(length)]
    assert mean_span(length, window, causal=True) == pytest.approx(np.mean(seen))
    assert mean_span(length, window, causal=False) == min(length, window or length)


def test_worked_example_of_the_public_run_has_its_logged_mfu():
    flops = model_flops(workload("flagship"))
    reached = mfu(flops, 16.07, num_chips=704, peak_flops=2.5e15)
    assert reached == pytest.approx(0.2443, abs=5e-5)  # logged
    assert reached == pytest.approx(0.245, abs=1e-3)  # as the public page rounds it
    causal = mfu(
        model_flops(workload("flagship"), causal=True), 16.07, num_chips=704, peak_flops=2.5e15
    )
    assert 0.97 < causal / reached < 1


def test_newton_schulz_counts_each_matrix_once_on_the_chip_that_has_it():
    work = workload("quickstart")
    alone = weights_of(work, Layout()).newton_schulz_flops
    expected = 0
    for leaf in work.leaves:
        if leaf.group == "muonh":
            small, large = sorted(leaf.shape[-2:])
            each = 2 * (2 * small * small * large + small**3)
            expected += leaf.size // (small * large) * len(TRIPLES) * each
    assert alone == expected
    assert weights_of(work, Layout(replica=4)).newton_schulz_flops == alone
    spread = weights_of(work, Layout(expert=4)).newton_schulz_flops
    assert alone / 4 <= spread < alone / 2


def test_executed_operations_grow_with_remat_and_with_padding():
    ragged = workload("flagship")
    pooled = workload("flagship", "moe.transport=pooled")
    given = layout("flagship", 704)
    saved = layout("flagship", 704, "model.remat=false")
    total = {
        name: sum(executed_flops(*each).values())
        for name, each in {
            "remat": (ragged, given),
            "saved": (ragged, saved),
            "pooled": (pooled, given),
        }.items()
    }
    assert total["saved"] < total["remat"] < total["pooled"]
    forward = executed_flops(ragged, given)["forward"]
    assert executed_flops(ragged, given)["backward"] > 3 * forward
    routed = 6 * 48 * 8 * 3072 * 3072 * 65_536
    padded = executed_flops(pooled, given)["forward"] - forward
    assert padded == pytest.approx(0.15 * routed, rel=1e-3)
