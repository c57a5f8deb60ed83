"""Ladders about a real config, and runs of it as training leaves them, without any training."""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaling.ladders import made
from shoal.core.artifact import Artifact
from shoal.core.config import fingerprint
from shoal.core.files import home, sha256_file
from shoal.core.record import Record
from shoal.eval.domains import MACRO_KEYS
from shoal.jobs.prepare import Prepared
from shoal.jobs.runs import begin
from shoal.recipes.quickstart import quickstart
from shoal.scaling.forecast import Forecast, forecast
from shoal.scaling.records import FRACTIONS, HEADLINE, Ladder
from shoal.scaling.seal import Seal, make_seal, read_seal

_WHOLE = quickstart()
# One source is enough to have a fingerprint.
_CORPUS = replace(_WHOLE.data.corpus, sources=_WHOLE.data.corpus.sources[:1])
CONFIG = replace(_WHOLE, data=replace(_WHOLE.data, corpus=_CORPUS))
FINGERPRINT = fingerprint(CONFIG)
STEPS = CONFIG.train.num_steps


def prepared_with(digest: str = "a" * 64) -> Prepared:
    """A corpus that is nothing but its name."""
    made = Artifact(name="corpus", digest=digest, path=Path(), manifest={}, reused=False)
    return Prepared(
        corpus=made,
        benchmarks=made,
        store=Path(),
        tokenizer_path=Path(),
        heldout={},
        kinds={},
        facts={"corpus": f"corpus@{digest[:12]}", "sources": []},
        reused={},
    )


def ladder_of(name: str = "small", config=CONFIG, **given) -> Ladder:
    """A ladder of a known law whose target is a config, with two domains under the headline."""
    ladder = made(name, **{"noise": 0.003, **given})
    runs = tuple(
        replace(
            run,
            series={
                HEADLINE: run.series[HEADLINE],
                "sources/fine/bpb": tuple(0.9 * value for value in run.series[HEADLINE]),
                "sources/leaked/bpb": tuple(1.1 * value for value in run.series[HEADLINE]),
            },
        )
        for run in ladder.runs
    )
    own = FINGERPRINT if config is CONFIG else fingerprint(config)
    target = replace(ladder.target, name=config.name, fingerprint=own)
    conditions = {"sequence_tokens": config.eval.sequence_tokens, "corpus": f"corpus@{'a' * 12}"}
    return replace(ladder, runs=runs, target=target, conditions=conditions)


def written(ladder: Ladder, *, forecasted: bool = True) -> Path:
    """The folder of a ladder and its forecast under SHOAL_HOME."""
    folder = home() / "forecasts" / ladder.name
    folder.mkdir(parents=True)
    (folder / "ladder.json").write_text(json.dumps(ladder.plain()))
    if forecasted:
        (folder / "forecast.json").write_text(_forecast(json.dumps(ladder.plain())))
    return folder


def sealed(name: str = "small") -> Seal:
    """The seal of a ladder's forecast under SHOAL_HOME, as `shoal seal` writes it."""
    folder = written(ladder_of(name))
    (folder / "seal.json").write_text(_sealed(json.dumps(ladder_of(name).plain())))
    return read_seal(folder / "seal.json")


@functools.cache
def _sealed(text: str) -> str:
    ladder, found = Ladder.parse(json.loads(text)), Forecast.parse(json.loads(_forecast(text)))
    return json.dumps(make_seal(found, ladder, date="2026-12-01T10:00:00+00:00").plain())


@functools.cache
def _forecast(text: str) -> str:
    return json.dumps(forecast(Ladder.parse(json.loads(text))).plain())


def run_of(
    name: str = "target",
    *,
    seal=None,
    config=CONFIG,
    ladder: Ladder | None = None,
    leak: float = 0.0,
    shift: float = 0.0,
    upto: int = 20,
    events=(),
) -> Path:
    """A run that came to what the ladder's law says.

    Args:
        leak: bits per byte that domain `leaked` is below it.
        shift: that both domains are above it.
        upto: of its twenty evaluations, how many there are; all of them is finished.
        events: (kind, fields) after the evaluations.
    """
    folder, target = home() / "runs" / name, (ladder or ladder_of()).target
    (folder / "evals").mkdir(parents=True)
    with Record.open(folder) as record:
        begin(folder, config, prepared_with(), record, change=None, seal=seal)
        record.metric(1, {"loss": 9.0})
        for fraction in FRACTIONS[:upto]:
            step = round(fraction * STEPS)
            value = 0.6 + 2.0 * (step / STEPS * target.flops / 1e12) ** -0.12 + shift
            scores = {"fine": 0.9 * value, "leaked": 1.1 * value - leak}
            sets = {"sources": _scored(scores)}
            tokens = step * config.train.tokens_per_step
            content = json.dumps({"step": step, "tokens": tokens, "sets": sets})
            path = folder / f"evals/{step}.json"
            path.write_text(content)
            record.metric(step, {"loss": value})
            record.event(
                "evaluate",
                step=step,
                macro={"sources": sets["sources"]["macro"]},
                files={f"evals/{step}.json": sha256_file(path)},
            )
        for kind, fields in events:
            record.event(kind, **fields)
        if upto == len(FRACTIONS):
            record.event("finish", step=STEPS)
    return folder


def _scored(bpb: Mapping[str, float]) -> dict[str, Any]:
    """A set as evaluations write it: domains of 9 bytes in 4 tokens, and their means."""
    domains = {
        domain: {
            "bpb": one,
            "xz_bpb": 3.0,
            "zstd_bpb": 3.1,
            "loss": one * math.log(2) * 9 / 4,
            "bytes": 9,
            "tokens": 4,
        }
        for domain, one in bpb.items()
    }
    macro = {
        key: math.fsum(one[key] for one in domains.values()) / len(domains) for key in MACRO_KEYS
    }
    return {"domains": domains, "macro": macro}


def rewritten(folder: Path, lines) -> None:
    """The record anew with other events: every link holds, as after a forger's work."""
    (folder / "events.jsonl").unlink()
    with Record.open(folder, attempt=1) as record:
        for line in lines:
            fields = {k: v for k, v in line.items() if k not in ("time", "attempt", "link", "kind")}
            record.event(line["kind"], **fields)
