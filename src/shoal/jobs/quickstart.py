"""Job `quickstart`: from nothing to a trained, evaluated, reported mixture of experts."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.config import fingerprint, replace
from shoal.core.files import home
from shoal.core.progress import Progress, progress_for
from shoal.core.record import read_events
from shoal.data.local import local_corpus
from shoal.data.settings import MixConfig
from shoal.jobs.ladder import climb, write_ladder
from shoal.jobs.prepare import Prepared, prepared_for
from shoal.jobs.report import write_pages
from shoal.jobs.resolve import overridden, resolve, resolve_ladder
from shoal.jobs.runs import run_folder
from shoal.jobs.runtime import peak_rss_gb, start_jax
from shoal.jobs.seal import seal
from shoal.jobs.sealed import find_seal
from shoal.jobs.settle import scored, settle
from shoal.jobs.trained import trained
from shoal.scaling.seal import Seal
from shoal.scaling.settle import sealed_in
from shoal.train.checks import check
from shoal.train.config import Config

OWN_TEXT = "given: the text of this run"
# However little text there is, it is read as often as the run asks.
NATURAL = MixConfig(rule="natural", cooldown_share=0.0, max_epochs=0.0)


def quickstart(
    *, text: Path | None = None, overrides: Sequence[str] = (), json: bool = False
) -> dict[str, Any]:
    """Run the whole main job, going on from whatever of it is done.

    Args:
        text: a folder of text files, or a .jsonl file, to train on instead of the demo corpus.
        overrides: `path=value` settings.
        json: the caller prints the result itself, so say nothing of it here.
    """
    began = time.perf_counter()
    config = configure(text, overrides)
    start_jax(home())
    progress = progress_for()
    folder = run_folder(config.name)
    prepared = prepared_for(config, progress)
    sealed = None if overrides else foretold(config, folder, prepared, progress)
    done, sets = trained(config, folder, prepared, progress, seal=sealed)
    settled = settle(str(folder)) if sealed else None
    page = write_pages(folder)["report"]
    # A small text can leave nothing to hold out: then there are no scores, and that is said.
    macro = sets.get("sources", {}).get("macro", {})
    result = {
        "run": str(folder),
        "report": page,
        "macro_bpb": macro.get("bpb"),
        "xz_bpb": macro.get("xz_bpb"),
        "sets": {name: one["macro"] for name, one in sets.items()},
        "forecast": settled and settled["headline"],
        "first_loss_s": done["first_loss_s"],
        "tokens_per_s": done["tokens_per_s"],
        "total_s": time.perf_counter() - began,
        "peak_rss_gb": peak_rss_gb(),
        "reused": all(prepared.reused.values()) and done["reused"] and done["evaluated_before"],
    }
    if not json:
        _say(result, sets)
    return result


def foretold(config: Config, folder: Path, prepared: Prepared, progress: Progress) -> Seal | None:
    """Train three small runs, forecast the end of the run from them, and seal that.

    None where nothing is held out that could be forecast, or the run began without a seal.
    """
    if not any(prepared.heldout.values()):
        return None
    recipe = resolve_ladder("quickstart")
    mine = dataclasses.replace(
        recipe,
        name=config.name,
        target=config,
        rung=lambda width: dataclasses.replace(recipe.rung(width), data=config.data),
    )
    begun = read_events(folder)
    if begun and sealed_in(begun) is None:
        progress.note(f"run {folder.name} began before its forecast: none is made")
        return None
    write_ladder(climb(mine, prepared, progress)[0])
    progress.note(seal(config.name)["line"])
    return find_seal(config.name)


def configure(text: Path | None, overrides: Sequence[str]) -> Config:
    """Return the recipe's config, on the user's own text if given.

    Own text replaces the corpus and trains on it in proportion to its tokens; the run's name
    carries the text's digest, so another text is another run.
    """
    if text is None:
        return resolve("quickstart", overrides)
    config = resolve("quickstart")
    corpus = local_corpus(text)
    unit = config.data.corpus.unit_tokens
    corpus = dataclasses.replace(corpus, unit_tokens=unit)
    data = dataclasses.replace(config.data, corpus=corpus, mix=NATURAL)
    name = f"quickstart-{corpus.name}-{fingerprint(corpus)[:8]}"
    given = dict.fromkeys(("name", "data.corpus.*", "data.corpus.unit_tokens"), OWN_TEXT)
    notes = {**config.notes, **given, "data.mix.*": "ours: in proportion to tokens"}
    config = dataclasses.replace(config, data=data, name=name, notes=notes)
    config = overridden(config, overrides)
    vocab = config.data.corpus.tokenizer.vocab_size
    config = replace(config, "model.vocab_size", max(config.model.vocab_size, vocab))
    check(config)
    return config


def _say(result: dict[str, Any], sets: dict[str, Any]) -> None:
    print("reused: everything was done before" if result["reused"] else "done")
    for name, one in sets.items():
        macro = one["macro"]
        print(
            f"  {name}: {macro['bpb']:.3f} bits per byte over {len(one['domains'])} domains"
            f" (xz -9e {macro['xz_bpb']:.3f}, zstd -19 {macro['zstd_bpb']:.3f})"
        )
    if result["forecast"]:
        print(f"  forecast before the run, now settled: {scored(result['forecast'])}")
    if result["tokens_per_s"]:
        print(f"  {result['tokens_per_s']:,.0f} tokens/s, {result['total_s']:.0f} s in all")
    print(f"  report: {result['report']}")
