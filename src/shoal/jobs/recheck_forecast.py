"""Rechecks of a forecast: refitted from its ladder, its seal, its rungs' records, its target's.

A rung's values are read again out of its run's folder, whose own chain must hold; where the folder
is not there, only the ladder's word is.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.files import canonical_json, home, sha256_file
from shoal.core.record import EVENTS, read_events, read_metrics, verify_chain
from shoal.data.tokenize import TOKENIZER
from shoal.jobs import stamps
from shoal.jobs.evaluate import EVALS
from shoal.jobs.findings import Check, Findings
from shoal.jobs.forecast import FORECAST, LADDER
from shoal.jobs.recheck_attempts import recheck_attempts
from shoal.jobs.recheck_run import read_object, recheck_scores, stored_fingerprint
from shoal.jobs.recheck_state import corpus_at, scored_of
from shoal.jobs.runs import RUN, read_config
from shoal.jobs.settle import SETTLEMENT, settle
from shoal.scaling.forecast import Forecast, read_forecast
from shoal.scaling.ladder import health_of, rung_name, series_of
from shoal.scaling.records import FRACTIONS, Ladder, RungRun, read_json, read_ladder
from shoal.scaling.seal import REFIT, SEAL, differences, ladder_sha256, problems, refit
from shoal.scaling.settle import sealed_in
from shoal.train.derive import derive

_NUMBER = 1e-9
# What a settlement says of when it was made; a later event, such as another evaluation, is no harm.
_OF_ITS_TIME = {"date", "record", "file", "notes"}


def recheck_forecast(folder: Path, findings: Findings) -> None:
    """Recheck the folder of a forecast."""
    ladder: Ladder | None = None
    found: Forecast | None = None
    with findings.check("ladder", LADDER) as check:
        _there(folder / LADDER, check)
        ladder = read_ladder(folder / LADDER)
        rungs = {run.rung for run in ladder.runs}
        check.says = f"{len(ladder.runs)} runs of {len(rungs)} rungs, for {ladder.target.name}"
    with findings.check("refit", FORECAST) as check:
        _there(folder / FORECAST, check)
        found = read_forecast(folder / FORECAST)
        if ladder is None:
            check.cannot("the ladder cannot be read")
        else:
            _refit(found, ladder, check)
    seal = _recheck_seal(folder, ladder, found, findings)
    if ladder is None:
        findings.skip("rungs, target", "the ladder cannot be read", where=LADDER)
        return
    roots = (home() / "runs", folder.absolute().parents[1] / "runs")
    there = {path.parent.name: path.parent for root in roots for path in root.glob(f"*/{RUN}")}
    for run in ladder.runs:
        if run.run not in there:
            findings.skip(f"rung {run.run}", "run folder missing", where=f"runs/{run.run}")
            continue
        with findings.check(f"rung {run.run}", f"runs/{run.run}") as check:
            _rung(run, there[run.run], check)
    _recheck_target(ladder, seal, there, findings)
    with findings.check("conditions", f"{LADDER} conditions") as check:
        _conditions(ladder, there, check)
    with findings.check("settlement", SETTLEMENT) as check:
        _settlement(folder, there, check)


def _there(path: Path, check: Check) -> None:
    if not path.is_file():
        check.cannot(f"{path.name} is not there")


def _refit(found: Forecast, ladder: Ladder, check: Check) -> None:
    anew = refit(found, ladder)
    if canonical_json(anew.plain()) == canonical_json(found.plain()):
        check.says = "the same bytes"
    else:
        for odd in differences(anew.plain(), found.plain(), within=REFIT):
            check.fails(f"does not follow from the ladder: {odd}")
        check.says = f"numbers within {REFIT:g}, not the same bytes: another kind of processor"
    end = anew.headline
    check.says += f"; {found.metric} at the end {end.central[-1]}, 90 % {end.interval_90[-1]}"


def _recheck_seal(
    folder: Path, ladder: Ladder | None, found: Forecast | None, findings: Findings
) -> dict[str, Any] | None:
    """The seal, if it is whole."""
    tree: Any = None
    for name in (stamps.TIMESTAMP, stamps.SIGNATURE):
        if (folder / name).is_file():
            findings.skip(name, f"`shoal seal {folder.name}` checks it, with a key that you trust")
    with findings.check("seal", SEAL) as check:
        if not (folder / SEAL).is_file():
            check.cannot("the forecast is not sealed")
        tree = read_json(folder / SEAL)
        for problem in problems(tree):
            check.fails(problem)
        if not check.problems:
            if found is not None:
                for odd in differences(tree["forecast"], found.plain()):
                    check.fails(f"the forecast is not the sealed one: {odd}", where=FORECAST)
            if ladder is not None:
                sealed, seen = tree["ladder_sha256"], ladder_sha256(ladder)
                check.equal("the sealed ladder's SHA-256", sealed, seen, where=LADDER)
            check.says = f"{tree['sha256']} over everything else, sealed {tree['date']}"
        return tree if not check.problems else None
    return None


def _rung(run: RungRun, folder: Path, check: Check) -> None:
    """Read a rung's values out of its run."""
    for problem in verify_chain(folder):
        check.fails(problem, where=f"{check.where}/{EVENTS}")
    config, content = read_config(folder), read_object(folder / RUN)
    computed, _ = stored_fingerprint(config, content["config"])
    check.equal("fingerprint", computed, run.fingerprint)
    steps, model, numbers = config.train.num_steps, config.model, derive(config)
    check.equal("rung", rung_name(model.embed_dim), run.rung)
    check.equal("width", model.embed_dim, run.width)
    check.equal("seed", config.train.seed, run.seed)
    check.equal("tokens", config.train.tokens, run.tokens)
    recheck_attempts(folder, config, check)
    counted = [float(numbers[f"flops{kind}_without_head"]) for kind in ("", "_published")]
    if run.flops not in counted:
        check.fails("FLOPs without the head", expected=counted[0], found=run.flops)
    events = read_events(folder)
    paths = sorted((folder / EVALS).glob("*.json"))
    for path in paths:
        recheck_scores(path, config, events, check, prefix=f"{check.where}/")
    evals = [read_object(path) for path in paths]
    _values("series", series_of(evals, steps), run.series, check)
    _values("health", health_of(read_metrics(folder), steps), run.health, check)
    ends = [e["seconds"] for e in events if e["kind"] == "finish" and e.get("seconds")]
    check.equal("seconds", float(sum(ends)) if ends else None, run.seconds)
    check.says = f"{len(run.series)} series and {len(run.health)} of health read again, the same"


def _values(kind: str, wanted: Mapping[str, Any], found: Mapping[str, Any], check: Check) -> None:
    check.equal(f"names of its {kind}", sorted(wanted), sorted(found), where=LADDER)
    for name in sorted(set(wanted) & set(found)):
        for fraction, one, other in zip(FRACTIONS, wanted[name], found[name], strict=True):
            where = f"{LADDER}, {check.name}, {name} at {fraction:.0%}"
            if one is None or other is None:
                check.equal(f"{kind}, in the run's record", one, other, where=where)
            else:
                spelled = f"{kind}, in the run's record"
                check.close(spelled, one, other, relative=_NUMBER, where=where)


def _recheck_target(
    ladder: Ladder,
    seal: Mapping[str, Any] | None,
    there: Mapping[str, Path],
    findings: Findings,
) -> None:
    """The seal must be the first event of the run that was forecast."""
    runs = [
        folder
        for _, folder in sorted(there.items())
        if _fingerprint(folder) == ladder.target.fingerprint
    ]
    if not runs or seal is None:
        why = "it has not begun, or its folder is missing" if seal else "there is no sound seal"
        findings.skip(f"target {ladder.target.name}", why)
    for folder in runs if seal else []:
        with findings.check(f"target {folder.name}", f"runs/{folder.name}/{EVENTS}") as check:
            for problem in verify_chain(folder):
                check.fails(problem)
            event = sealed_in(read_events(folder))
            if event is None:
                check.fails("the run began without a seal: the forecast is retroactive")
            elif seal is not None:
                spelled = "the seal in its first event"
                check.equal(spelled, seal["sha256"], event["sha256"])
                check.says = f"seal {event['sha256'][:12]} is its first event, of {event['time']}"


def _conditions(ladder: Ladder, there: Mapping[str, Path], check: Check) -> None:
    """The tokenizer and the held-out texts, out of the corpus that the conditions name."""
    told = ladder.conditions
    if "sets" not in told or "corpus" not in told:
        check.cannot("they name no corpus and no sets")
    own = [there[run.run] for run in ladder.runs if run.run in there]
    corpus = corpus_at(str(told["corpus"]), own[:1])
    if corpus is None or not own:
        check.cannot(f"corpus {told['corpus']}, or every run of a rung, is not there")
        return
    config = read_config(own[0])
    digest = sha256_file(corpus.folders["tokenizer"] / TOKENIZER)
    check.equal("the tokenizer's SHA-256", told["tokenizer_sha256"], digest)
    found = {
        f"{name}/{domain}": {
            "sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
            "documents": len(texts),
            "bytes": sum(len(text.encode()) for text in texts),
        }
        for name, domains in scored_of(config, corpus).items()
        for domain, texts in domains.items()
    }
    for odd in differences(found, told["sets"]):
        check.fails(f"evaluated text: {odd}")
    length = config.eval.sequence_tokens
    check.equal("tokens of an evaluated sequence", length, told["sequence_tokens"])
    check.says = f"tokenizer and {len(found)} evaluated domains hashed anew"


def _settlement(folder: Path, there: Mapping[str, Path], check: Check) -> None:
    """Settle again, writing nothing, and compare."""
    if not (folder / SETTLEMENT).is_file():
        check.cannot("the forecast is not settled")
    told = read_object(folder / SETTLEMENT)
    if told["run"] not in there:
        check.cannot(f"its run {told['run']} is not there")
    named = (told["clean"] or {}).get("flagged", [])
    anew = settle(str(there[told["run"]]), str(folder), extra=named, write=False)
    anew, told = ({k: v for k, v in one.items() if k not in _OF_ITS_TIME} for one in (anew, told))
    for one in (anew, told):
        one["clean"] = one["clean"] and {k: v for k, v in one["clean"].items() if k != "whence"}
    for odd in differences(json.loads(json.dumps(anew)), told, within=_NUMBER):
        check.fails(f"does not follow from forecast and run: {odd}")
    check.says = f"run {told['run']} settled again, the same; a miss: {told['miss']}"


def _fingerprint(folder: Path) -> str:
    try:
        return str(read_object(folder / RUN).get("fingerprint"))
    except ValueError:
        return ""
