"""What a plan assumes, in sentences, and what in it deserves a warning."""

from collections.abc import Iterator

from shoal.plan.chips import Chip
from shoal.plan.goodput import Reliability
from shoal.plan.layout import Layout, Workload
from shoal.plan.memory import RESERVE
from shoal.plan.room import recomputed_pieces


def assumptions(
    work: Workload, layout: Layout, chip: Chip, reliability: Reliability
) -> Iterator[str]:
    """Yield everything that the figures rest on besides the config."""
    dtype = work.model.compute_dtype
    yield (
        f"peak of {chip.peak_flops / 1e12:,.1f} TFLOP/s a chip, dense bfloat16"
        f" ({chip.sources['peak_flops']})"
    )
    yield (
        "bound: inside a phase (forward, backward, update) operations, memory traffic and every"
        " link overlap perfectly; phases follow one another"
    )
    yield (
        "MFU: three times the forward operations with whole attention spans, nothing recomputed,"
        " head included; causal: only the keys that a query sees"
    )
    yield (
        "operations executed: what is computed again in the backward pass (layers:"
        f" {'yes' if layout.remat else 'no'}; the transport's own pieces:"
        f" {'yes' if recomputed_pieces(work) else 'no'}), score products, blocks of the logits, and"
        " Newton-Schulz; routing is taken as even"
    )
    yield (
        f"weights are gathered and gradients summed in {dtype} once for each microbatch; the"
        " embedding in float32; gradients are held in float32"
    )
    yield (
        "attention keeps no scores; activations are the tensors that docs/planning.md lists;"
        f" {RESERVE:.0%} of the memory is left to the runtime"
    )
    if layout.memory != "device":
        yield (
            "what rests on the host is brought whole to the device when it is used: parameters for"
            " the step, optimizer state for the update"
        )
    yield (
        f"a fast domain holds {chip.domain_chips:,} chips; consecutive chips that fit one stand in"
        " one; collectives that span domains are hierarchical"
    )
    if chip.key.startswith("tpu"):
        yield (
            "rows between experts are charged at the whole link bandwidth of a chip; the bisection"
            " of a torus allows less"
        )
    yield (
        f"{reliability.failures_per_chip_year:g} failures per chip and year, each costing"
        f" {reliability.restart_minutes:g} minutes and what was trained since the last checkpoint;"
        f" a save stalls {reliability.checkpoint_stall_s:g} s"
    )
    for field in ("power_w", "price_per_hour"):
        yield f"{field} {getattr(chip, field):,g}: {chip.sources[field]}"


def warnings(memory: dict[str, object], step_s: float | None, step_s_bound: float) -> Iterator[str]:
    """Yield what cannot be as stated: memory that overflows, a speed below the bound."""
    if not memory["fits"]:
        yield (
            f"needs {_gib(memory['bytes_per_chip'])} GiB a chip and may use"
            f" {_gib(memory['usable_bytes'])}; try --search, model.remat=true, a larger"
            " train.accumulation or train.memory=optimizer_on_host"
        )
    if step_s is not None and step_s < step_s_bound:
        yield (
            f"step_s={step_s:.4g} is below the bound of {step_s_bound:.4g} s for this layout: no"
            " step of this code can be that fast on these chips"
        )


def _gib(size: object) -> str:
    assert isinstance(size, int)
    return f"{size / 2**30:,.1f}"
