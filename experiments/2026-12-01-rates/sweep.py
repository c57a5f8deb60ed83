"""Peak rates around the published law, at the widths of the CPU ladder.

    .venv/bin/python experiments/2026-12-01-rates/sweep.py [--widths 32 48 64] [--out FOLDER]

Trains every rung of the CPU ladder with its rates times 0.5, 0.71, 1, 1.41, 2 (both rates alike, no
cap), and on by the same factor while the best is the last; one seed. A stopped call goes on with
the next. Prints the final score of each, and per width the vertex of the parabola through the best
and its neighbors in the logarithm of the rate.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path

from shoal.core.files import home, write_atomic
from shoal.core.progress import progress_for
from shoal.jobs.prepare import prepared_for
from shoal.jobs.runtime import start_jax
from shoal.jobs.trained import trained
from shoal.optim import law
from shoal.recipes.cpu_ladder import cpu_ladder
from shoal.scaling.ladder import rung_config
from shoal.train.config import Config

MULTIPLIERS = tuple(2 ** (half / 2) for half in range(-2, 8))
_FIRST = 5


def scaled(config: Config, multiplier: float) -> Config:
    """The rung with both rates of the published law times a number."""
    train = config.train
    rate = multiplier * law.adam_lr(
        tokens=train.tokens,
        embed_dim=config.model.embed_dim,
        tokens_per_step=train.tokens_per_step,
    )
    optimizer = dataclasses.replace(config.optimizer, muon_lr=rate * 13 / 3, adam_lr=rate)
    return dataclasses.replace(config, optimizer=optimizer)


def vertex(points: list[tuple[float, float]]) -> float | None:
    """The multiplier at the least of a parabola in its logarithm; None where the best is an end."""
    place = min(range(len(points)), key=lambda one: points[one][1])
    if not 0 < place < len(points) - 1:
        return None
    (a, ya), (b, yb), (c, yc) = ((math.log(m), y) for m, y in points[place - 1 : place + 2])
    top = (b - a) ** 2 * (yb - yc) - (b - c) ** 2 * (yb - ya)
    return math.exp(b - 0.5 * top / ((b - a) * (yb - yc) - (b - c) * (yb - ya)))


def main() -> None:
    """Train what is missing, print what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 48, 64])
    parser.add_argument("--out", type=Path, default=home() / "rates")
    given = parser.parse_args()
    import jax

    start_jax(home())
    ladder, progress = cpu_ladder(), progress_for()
    prepared = prepared_for(ladder.target, progress)
    for width in given.widths:
        points: list[tuple[float, float]] = []
        for number, multiplier in enumerate(MULTIPLIERS):
            if number >= _FIRST and min(points, key=lambda one: one[1]) != points[-1]:
                break
            path = given.out / f"d{width}-{multiplier:.3f}.json"
            if not path.is_file():
                config = rung_config(ladder, width)
                every = dataclasses.replace(config.eval, every_steps=0)
                config = dataclasses.replace(scaled(config, multiplier), eval=every)
                _, sets = trained(config, given.out / path.stem, prepared, progress)
                rates = {"muon_lr": config.optimizer.muon_lr, "adam_lr": config.optimizer.adam_lr}
                macro = {name: one["macro"]["bpb"] for name, one in sets.items()}
                write_atomic(path, json.dumps({**rates, **macro}, indent=1) + "\n")
                jax.clear_caches()
            found = json.loads(path.read_text())
            points.append((multiplier, found["sources"]))
            print(f"d{width} x{multiplier:.3f} muon_lr {found['muon_lr']:.4f}:", end=" ")
            print(f"sources {found['sources']:.4f} domains {found['domains']:.4f}", flush=True)
        best = vertex(points)
        print(f"d{width}: least at " + ("an end" if best is None else f"x{best:.2f}"), flush=True)


if __name__ == "__main__":
    main()
