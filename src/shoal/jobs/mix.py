"""Job `mix`: a recipe's mixture found with proxies: small runs that differ in what they read.

Files, under SHOAL_HOME/mixes/RECIPE by default:
  proxies/    one file per proxy (`scaling.proxy`); a stopped call goes on with the next
  compare/SEED/  the chosen and the natural mix, trained with seeds that no proxy had
  runs/       run folders of both, without their weights
  mix.csv     the chosen mixture, cell by cell: `--set data.mix=@mix.csv` trains with it
  mix.json    what this job returns
"""

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.config import diff, fingerprint
from shoal.core.files import canonical_json, home, write_atomic
from shoal.core.progress import progress_for
from shoal.data.load import TokenStore
from shoal.data.settings import MixConfig
from shoal.data.strata import Strata, sizes, strata, table
from shoal.jobs.evaluate import EVALS
from shoal.jobs.prepare import Prepared, prepared_for
from shoal.jobs.resolve import resolve
from shoal.jobs.runtime import start_jax
from shoal.jobs.train import finish_of
from shoal.jobs.trained import trained
from shoal.scaling import proxy
from shoal.train.config import Config

type Shares = dict[str, float]

DESIGN_SEED = 0
TABLE = "mix.csv"


def mix(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    proxy_recipe: str = "",
    proxies: int = 32,
    groups: int = 5,
    seeds: int = 3,
    max_divergence: float = 0.5,
    out: Path | None = None,
) -> dict[str, Any]:
    """Train proxies, fit what each stratum is worth, choose a mix and hold it against the natural.

    Args:
        proxy_recipe: the small run; RECIPE-proxy by default. It reads the same corpus.
        proxies: how many mixes are tried.
        groups: of topics; each gives a low and a high stratum (`data.strata`).
        seeds: of the comparison.
        max_divergence: of the chosen mix from the natural one, in nats.
        out: the folder of what is found.

    Returns:
        `strata`, `natural` and `chosen` shares, `errors` of the regression per evaluation set,
        `predicted`, `comparison` per set and of their mean, `table` (the file), `proxies`,
        `slowest_s` (training the slowest proxy).

    Raises:
        ValueError: the proxy reads another corpus; too few proxies or strata; see `scaling.proxy`.
    """
    config = resolve(recipe, overrides)
    small = _simulating(resolve(proxy_recipe or f"{recipe}-proxy"), config)
    start_jax(home())
    prepared = prepared_for(config, progress_for())
    store = TokenStore.open(prepared.store)
    grouped = strata(store.units, *_topics(prepared), groups)
    held = sizes(grouped, store.units)
    natural = {name: number / sum(held.values()) for name, number in held.items()}
    caps = _caps(config, held, store.unit_tokens)
    folder = out or home() / "mixes" / config.name
    key = _key(small, prepared, grouped)
    run = _runner(small, folder / "runs", prepared, grouped, store.units, key)
    designs = proxy.designs(natural, proxies, seed=DESIGN_SEED, max_shares=caps)
    tried = proxy.run_proxies(designs, run, folder / "proxies", seed=DESIGN_SEED, key=key)
    laws = proxy.fit(tried)
    choice = proxy.choose(laws, natural, max_divergence=max_divergence, max_shares=caps)
    _write_table(folder / TABLE, table(choice.mix, grouped, store.units))
    found = {
        "strata": {name: list(cells) for name, cells in grouped.items()},
        "natural": natural,
        "chosen": choice.mix,
        "divergence": choice.divergence,
        "errors": {name: dict(errors) for name, errors in laws.errors.items()},
        "predicted": {"chosen": choice.predicted, "natural": choice.predicted_natural},
        "comparison": _compared(choice.mix, natural, run, folder / "compare", seeds, key),
        "table": str(folder / TABLE),
        "proxies": len(tried),
        "slowest_s": max(_seconds(folder / "runs")),
    }
    write_atomic(folder / "mix.json", json.dumps(found, indent=1) + "\n")
    return found


def _compared(
    chosen: Shares,
    natural: Shares,
    run: Callable[[Shares, int], dict[str, float]],
    folder: Path,
    seeds: int,
    key: str,
) -> dict[str, dict[str, Any]]:
    """Train both mixes with seeds that no proxy had, and compare them in pairs."""
    scores: tuple[list[proxy.Scores], list[proxy.Scores]] = ([], [])
    for seed in range(DESIGN_SEED + 1, DESIGN_SEED + 1 + seeds):
        pair = proxy.run_proxies([chosen, natural], run, folder / str(seed), seed=seed, key=key)
        for found, one in zip(scores, pair, strict=True):
            found.append(one.metrics)
    return proxy.compare(*scores)


def _simulating(small: Config, config: Config) -> Config:
    """The proxy, repeating cells as often as the run that it stands for.

    Raises:
        ValueError: it reads another corpus.
    """
    other = diff(small.data.corpus, config.data.corpus)
    if other:
        raise ValueError(
            f"proxy recipe {small.name} reads another corpus than {config.name}:"
            f" data.corpus.{other[0].path} is {other[0].before!r}, not {other[0].after!r}"
        )
    tokens = max(config.train.tokens, small.train.tokens)
    return dataclasses.replace(small, data=dataclasses.replace(small.data, simulated_tokens=tokens))


def _topics(prepared: Prepared) -> tuple[Path | None, list[str]]:
    """The folder of the topic model and the topics' names; None where cells are sources."""
    for stage in prepared.facts["stages"]:
        if stage["stage"] == "topic_model":
            names = [topic["name"] for topic in stage["facts"]["topics"]]
            return prepared.corpus.path.parent / stage["ref"], names
    return None, []


def _caps(config: Config, held: Mapping[str, int], unit_tokens: int) -> Shares | None:
    """The share that each stratum may have: its cells read `max_epochs` times, all alike."""
    epochs = config.data.mix.max_epochs
    if not epochs:
        return None
    return {
        name: epochs * number * unit_tokens / config.train.tokens for name, number in held.items()
    }


def _key(small: Config, prepared: Prepared, grouped: Strata) -> str:
    """What decides a proxy's scores beside its mix and seed."""
    parts = {
        "config": fingerprint(small),
        "corpus": prepared.corpus.digest,
        "strata": {name: list(cells) for name, cells in grouped.items()},
    }
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def _runner(
    small: Config,
    runs: Path,
    prepared: Prepared,
    grouped: Strata,
    units: Mapping[str, int],
    key: str,
) -> Callable[[Shares, int], dict[str, float]]:
    """The function that trains one proxy: shares of strata and a seed -> bits per byte per set."""
    progress = progress_for()

    def run(shares: Shares, seed: int) -> dict[str, float]:
        import jax

        from shoal.train.checkpoint import CHECKPOINTS

        rows = table(shares, grouped, units)
        mixing = MixConfig(rule="table", table=rows, cooldown_share=0.0, max_epochs=0.0)
        config = dataclasses.replace(
            small,
            data=dataclasses.replace(small.data, mix=mixing, seed=seed),
            train=dataclasses.replace(small.train, seed=seed),
        )
        name = hashlib.sha256(f"{key} {fingerprint(config)}".encode()).hexdigest()[:12]
        path = runs / name / EVALS / f"{config.train.num_steps}.json"
        if not path.is_file():
            trained(config, runs / name, prepared, progress)
            jax.clear_caches()  # every run compiles its own programs: they would stay in memory
        sets = json.loads(path.read_text())["sets"]
        shutil.rmtree(runs / name / CHECKPOINTS, ignore_errors=True)
        return {
            f"{kind}/{domain}": scores["bpb"]
            for kind, one in sets.items()
            for domain, scores in one["domains"].items()
        }

    return run


def _seconds(runs: Path) -> list[float]:
    found = [finish_of(folder)["seconds"] for folder in runs.iterdir()]
    return [seconds for seconds in found if seconds is not None] or [math.nan]


def _write_table(path: Path, rows: Sequence[tuple[str, float, float]]) -> None:
    lines = ["cell,pretrain,cooldown", *(f"{cell},{one!r},{two!r}" for cell, one, two in rows)]
    write_atomic(path, "\n".join(lines) + "\n")


def render(found: Mapping[str, Any]) -> str:
    """Return what a terminal shows."""
    names = list(found["natural"])
    width = max(map(len, [*names, *found["errors"]]))
    lines = [f"{found['proxies']} proxies", "", f"{'stratum':<{width}}  natural  chosen"]
    lines += [
        f"{name:<{width}}  {found['natural'][name]:7.1%}  {found['chosen'][name]:6.1%}"
        for name in names
    ]
    head = f"{'bits per byte':<{width}}  left out  of mean  natural  chosen    change (95 %)"
    lines += ["", head]
    for name, gain in found["comparison"].items():
        change = f"{gain['mean']:+.4f} ± {gain['margin']:.4f}"
        said = " " * 35
        if name in found["errors"]:
            error = found["errors"][name]
            before, after = (found["predicted"][one][name] for one in ("natural", "chosen"))
            said = f"{error['left_out']:8.4f}  {error['ratio']:7.2f}  {before:7.3f} {after:7.3f}"
        lines.append(f"{name:<{width}}  {said:<35} {change}")
    lines += [
        "",
        "left out: the laws' error on a proxy that they did not see; of mean: over that of",
        "guessing the mean (below 1 they know something); natural, chosen: as the laws have it;",
        "change: the chosen mix against the natural one, trained with the same seeds",
        f"train with it: --set data.mix=@{found['table']}",
    ]
    return "\n".join(lines)
