"""How results read in a terminal."""

import json
from collections.abc import Mapping
from typing import Any

type Result = Mapping[str, Any]


def flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return (dotted path, leaf) pairs in order, spelled as `--set` takes them."""
    if isinstance(value, Mapping) and value:
        items = list(value.items())
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping | list) for v in value):
        items = list(enumerate(value))
    else:
        return [(prefix, value)]
    return [
        pair
        for key, item in items
        for pair in flat(item, f"{prefix}.{key}" if prefix else f"{key}")
    ]


def as_lines(result: Result) -> str:
    """Return one aligned line for each leaf; whole numbers get thousands separators."""
    pairs = flat(result)
    width = max((len(path) for path, _ in pairs), default=0)
    return "\n".join(f"{path:<{width}}  {_spell(value)}" for path, value in pairs)


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_config(result: Result) -> str:
    """Return a config as `show` prints it."""
    from shoal.jobs.show import render

    return render(dict(result))


def as_counts(result: Result) -> str:
    """Return what `count` found."""
    from shoal.jobs.count import render

    return render(dict(result))


def as_plan(result: Result) -> str:
    """Return what `plan` worked out."""
    from shoal.jobs.plan import render

    return render(dict(result))


def as_corpus(result: Result) -> str:
    """Return what `prepare` made."""
    from shoal.jobs.prepare import render

    return render(dict(result))


def as_audit(result: Result) -> str:
    """Return what `audit` found."""
    from shoal.jobs import audit, planted

    return (audit if "flow" in result else planted).render(dict(result))


def as_explanation(result: Result) -> str:
    """Return what `explain` found."""
    from shoal.jobs.explain import render

    return render(dict(result))


def as_contamination(result: Result) -> str:
    """Return what `contamination` found."""
    from shoal.jobs.contamination import render

    return render(dict(result))


def as_mixture(result: Result) -> str:
    """Return what `mix` found."""
    from shoal.jobs.mix import render

    return render(result)


def as_ladder(result: Result) -> str:
    """Return what `ladder` planned or ran."""
    from shoal.jobs.ladder import render

    return render(dict(result))


def as_launch(result: Result) -> str:
    """Return the file that `launch` made, or where it is."""
    from shoal.jobs.launch import render

    return render(result)


def as_verdict(result: Result) -> str:
    """Return what `cutover` found."""
    from shoal.jobs.cutover import render

    return render(dict(result))


def as_gradients(result: Result) -> str:
    """Return what `probe` found."""
    from shoal.jobs.probe import render

    return render(dict(result))


def as_forecast(result: Result) -> str:
    """Return what `forecast` found."""
    if "forecasts" in result:
        from shoal.jobs import outcomes

        return outcomes.render(result)
    from shoal.jobs.forecast import render

    return render(dict(result))


def as_seal(result: Result) -> str:
    """Return what `seal` made or checked."""
    from shoal.jobs.seal import render

    return render(dict(result))


def as_settlement(result: Result) -> str:
    """Return what `settle` found."""
    from shoal.jobs.settle import render

    return render(result)


def as_comparison(result: Result) -> str:
    """Return what `compare` found."""
    from shoal.jobs.compare import render

    return render(dict(result))


def as_findings(result: Result) -> str:
    """Return what `verify` found."""
    from shoal.jobs.verify import render

    return render(dict(result))


def as_checkup(result: Result) -> str:
    """Return what `doctor` found."""
    from shoal.jobs.doctor import render

    return render(result)


def as_scores(result: Result) -> str:
    """Return one table for each held-out set, compressors beside it."""
    lines = [f"step {result['step']:,}, {result['tokens']:,} tokens; bits per byte"]
    for name, scored in result["sets"].items():
        lines += ["", f"{name:<20} {'model':>7} {'xz':>7} {'zstd':>7}"]
        for domain, row in [*scored["domains"].items(), ("macro mean", scored["macro"])]:
            figures = [f"{row[key]:>7.3f}" for key in ("bpb", "xz_bpb", "zstd_bpb")]
            lines.append(f"{domain:<20} {' '.join(figures)}")
    return "\n".join(lines)


def as_text(result: Result) -> str:
    """Return generated text after its prompt."""
    return f"{result['prompt']}{result['text']}"


def as_nothing(_: Result) -> str:
    """Return nothing: the job has said it all along the way."""
    return ""
