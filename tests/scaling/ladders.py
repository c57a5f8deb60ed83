"""Ladders of a known law."""

import numpy as np

from shoal.scaling.records import FRACTIONS, HEADLINE, Ladder, RungRun, Target


def made(
    name: str = "made",
    *,
    asymptote: float = 0.6,
    gap: float = 2.0,
    alpha: float = 0.12,
    flops: tuple[float, ...] = (1e12, 3e12, 1e13, 3e13),
    seeds: tuple[int, ...] = (3, 3, 1, 1),
    noise: float = 0.0,
    target: float = 2.4e14,
    pace: float | None = 1e-11,
    seed: int = 0,
    ends: bool = False,
) -> Ladder:
    """Runs whose headline is asymptote + gap (C / 1e12)^-alpha at every fraction, with noise.

    With `ends` they have the headline alone, and at their end alone.
    """
    rng = np.random.default_rng(seed)
    runs = []
    for rung, (compute, number) in enumerate(zip(flops, seeds, strict=True)):
        for own in range(number):
            values = [
                float(asymptote + gap * (g * compute / 1e12) ** -alpha + rng.normal() * noise)
                for g in FRACTIONS
            ]
            series = {
                HEADLINE: tuple(values),
                "sources/owt/bpb": tuple(value / 2 for value in values),
            }
            if ends:
                series = {HEADLINE: (*(None,) * 19, values[-1])}
            runs.append(
                RungRun(
                    rung=f"w{rung}",
                    run=f"{name}-{rung}-{own}",
                    fingerprint="f",
                    seed=own,
                    width=16 * (rung + 3),
                    tokens=int(compute**0.5),
                    flops=compute,
                    seconds=None if pace is None else compute * pace,
                    series=series,
                    health={
                        "grad_norm": tuple(0.5 * (g * compute) ** -0.1 for g in FRACTIONS),
                        "dropped/fraction": (0.0,) * len(FRACTIONS),
                    },
                )
            )
    end = Target(name="end", fingerprint="e", width=256, tokens=int(target**0.5), flops=target)
    return Ladder(
        name=name,
        metric=HEADLINE,
        runs=tuple(runs),
        target=end,
        conditions={"sequence_tokens": 128},
    )
