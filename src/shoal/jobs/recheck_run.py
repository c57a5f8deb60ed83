"""Rechecks of a run's folder from its own files: config, chain, events, metrics, evaluations.

Nothing is written, and nothing needs jax.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.config import fingerprint, from_plain, leaves
from shoal.core.files import canonical_json, read_limited, sha256_file
from shoal.core.record import EVENTS, METRICS, read_events, read_metrics, verify_chain
from shoal.eval.domains import MACRO_KEYS
from shoal.jobs.evaluate import EVALS, SAMPLES
from shoal.jobs.findings import Check, Findings
from shoal.jobs.recheck_attempts import lines_of, recheck_attempts
from shoal.jobs.runs import RUN, settings_sha256
from shoal.optim.law import num_warmup_steps, schedule_fraction
from shoal.scaling.records import read_json
from shoal.scaling.seal import SEAL, problems
from shoal.scaling.settle import sealed_in
from shoal.train.config import Config
from shoal.train.derive import derive, peak_rates

LIMIT_BYTES = 64_000_000
# Doubles that were computed anew: the last bits of a power or a sum may differ elsewhere.
SAME = 1e-12
# Rates are computed in float32, where a line that ends in 0 loses digits.
RATE = 1e-5
RATE_OF_PEAK = 1e-6
# What `run.json` holds.
KEYS = (
    "name", "fingerprint", "config", "notes", "environment", "created", "corpus", "derived",
    "parameters",
)  # fmt: skip
_ABSENT = object()


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: it cannot be read, or holds none.
    """
    content = json.loads(read_limited(path, LIMIT_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object")
    return content


def recheck_config(folder: Path, findings: Findings) -> Config | None:
    """Recheck `run.json`: what it says of its config, and what the record says."""
    config: Config | None = None
    with findings.check("config", RUN) as check:
        content = read_object(folder / RUN)
        config = from_plain(Config, content["config"])
        computed, newer = stored_fingerprint(config, content["config"])
        check.equal("fingerprint of its config", content["fingerprint"], computed)
        started = [e for e in read_events(folder) if e["kind"] == "start"]
        check.equal("number of `start` events", 1, len(started), where=EVENTS)
        for event in started[:1]:
            where = f"{EVENTS}, event start"
            check.equal("fingerprint of the config", event["fingerprint"], computed, where=where)
            check.equal("the run's corpus", event["corpus"], content["corpus"], where=where)
        _changes(folder, content["config"], check)
        check.says = f"fingerprint {computed} recomputed, as in run.json and event start"
        if newer:
            check.says += f" (without {', '.join(newer)}, which came to shoal later)"
    if config is not None:
        with findings.check("settings", RUN) as check:
            _settings(folder, check)
        with findings.check("derived numbers", RUN) as check:
            _derived(folder, config, check)
    return config


def _settings(folder: Path, check: Check) -> None:
    """What the fingerprint leaves out: numerics, placement, and where the run ran."""
    content = read_object(folder / RUN)
    for name in sorted(set(content) - set(KEYS)):
        check.fails(f"holds {name!r}, which no run has")
    written = [e for e in read_events(folder) if e["kind"] in ("start", "change")]
    if not written:
        check.cannot("no event says with what it was written")
    last, where = written[-1], f"{EVENTS}, the last `start` or `change`"
    told = last if last["kind"] == "start" else last.get("environment")
    if told is not None:
        seen = content["environment"]
        for name in sorted(seen):
            spelled = f"{name} of the environment, on record"
            check.equal(spelled, told.get(name), seen[name], where=f"{RUN} environment.{name}")
    if "settings" not in last:
        check.cannot("this record has no hash of them; those that changes name agree")
    found = settings_sha256(content["config"])
    check.equal("SHA-256 of all settings but notes", last["settings"], found, where=where)
    check.says = "numerics, placement and environment as on record; notes are free"


def stored_fingerprint(config: Config, stored: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The fingerprint of a config as it was stored, and the settings that it does not name."""
    named: dict[str, Any] = {}
    newer: list[str] = []
    for leaf in leaves(config):
        if leaf.kind == "identity":
            value = _at(stored, leaf.path)
            if value is _ABSENT:
                newer.append(leaf.path)
            else:
                named[leaf.path] = value
    if not newer:
        return fingerprint(config), []
    return hashlib.sha256(canonical_json(named).encode()).hexdigest(), newer


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        else:
            return _ABSENT
    return tree


def _changes(folder: Path, stored: Mapping[str, Any], check: Check) -> None:
    """What `change` events set last must be what `run.json` says."""
    last: dict[str, Any] = {}
    for event in read_events(folder):
        if event["kind"] == "change":
            last |= {one["path"]: one["after"] for one in event["differences"]}
    for path, after in last.items():
        where = f"{RUN} config.{path}"
        check.equal("what the last `change` event set", after, _at(stored, path), where=where)


def _derived(folder: Path, config: Config, check: Check) -> None:
    from shoal.model.count import num_active, num_tensors

    content = read_object(folder / RUN)
    numbers = derive(config)
    told = content["derived"]
    check.equal("names of the derived numbers", sorted(numbers), sorted(told))
    for name in sorted(set(numbers) & set(told)):
        where = f"{RUN} derived.{name}"
        check.close("a derived number", numbers[name], told[name], relative=SAME, where=where)
    counted = {"tensors": num_tensors(config.model), "active": num_active(config.model)}
    check.equal("parameters", counted, content["parameters"], where=f"{RUN} parameters")
    check.says = (
        f"{numbers['tokens']:,} tokens, {numbers['flops']:.6g} FLOPs, {counted['tensors']:,}"
        f" parameters, rates {numbers['muon_lr']:.4g} and {numbers['adam_lr']:.4g} recomputed"
    )


def recheck_chain(folder: Path, findings: Findings) -> None:
    """Recheck the record's links, and the order of its events."""
    with findings.check("chain", EVENTS) as check:
        for problem in verify_chain(folder):
            check.fails(problem)
        if any(METRICS in problem["says"] for problem in check.problems):
            check.problems.insert(0, {"says": _where_edited(folder), "where": METRICS})
        events = read_events(folder)
        check.says = f"{len(events)} events, each linked to all before it"
        covered = max((e["link"]["metrics"]["bytes"] for e in events), default=0)
        loose = (folder / METRICS).stat().st_size - covered if (folder / METRICS).exists() else 0
        if loose > 0 and not check.problems:
            findings.skip(
                "end of the metrics",
                f"the last {loose} bytes were written after the last event, which covers them not",
                where=METRICS,
            )
    with findings.check("order of events", EVENTS) as check:
        _order(read_events(folder), check)


def recheck_seal(folder: Path, config: Config, findings: Findings) -> None:
    """Recheck the seal of a run that was forecast: whole, of this run, and its first event."""
    with findings.check("seal", SEAL) as check:
        event, path = sealed_in(read_events(folder)), folder / SEAL
        if event is None:
            if path.is_file():
                check.fails("there is a seal, and the run began without it")
            check.cannot("the run began without a seal")
            return
        tree = read_json(path)
        for problem in problems(tree):
            check.fails(problem)
        if not check.problems:
            check.equal("the seal in the first event", event["sha256"], tree["sha256"])
            target = tree["forecast"]["target"]["fingerprint"]
            computed, _ = stored_fingerprint(config, read_object(folder / RUN)["config"])
            check.equal("fingerprint of the run that was forecast", target, computed)
        check.says = f"{event['sha256']} is the first event, and of this run"


def _where_edited(folder: Path) -> str:
    """Say between which lines the metrics first differ from what the events saw."""
    lines = (folder / METRICS).read_bytes().splitlines(keepends=True)
    links = sorted(
        (e["link"]["metrics"]["bytes"], e["link"]["metrics"]["sha256"]) for e in read_events(folder)
    )
    data, good, bad = b"".join(lines), 0, None
    for size, digest in links:
        if size > len(data) or hashlib.sha256(data[:size]).hexdigest() != digest:
            bad = size
            break
        good = size
    begin, sound, hit = 0, 0, []
    for number, line in enumerate(lines, 1):
        begin += len(line)
        if begin <= good:
            sound = number
        elif bad is not None and begin - len(line) < bad:
            hit.append((number, line))
    if not hit or (bad or 0) > len(data):
        return f"is shorter than it was: after line {sound}, lines are missing or were edited"
    steps = [str(json.loads(line).get("step")) for _, line in (hit[0], hit[-1])]
    return (
        f"was edited in lines {hit[0][0]} to {hit[-1][0]} (steps {steps[0]} to {steps[1]}), or a"
        " line is missing there"
    )


def _order(events: Sequence[Mapping[str, Any]], check: Check) -> None:
    attempt, steps = 0, Counter[int]()
    begun = False
    for number, event in enumerate(events, 1):
        where = f"{EVENTS} line {number} ({event['kind']})"
        if event["attempt"] < attempt:
            check.fails(
                "attempts never go back", where=where, expected=attempt, found=event["attempt"]
            )
        attempt = max(attempt, event["attempt"])
        begun = begun or event["kind"] == "start"
        if "step" in event and not begun:
            check.fails("stands before the run's start", where=where)
        if event["kind"] == "checkpoint":
            if event["step"] <= steps[event["attempt"]]:
                last = steps[event["attempt"]]
                check.fails(
                    "checkpoints of an attempt go up", where=where, expected=f"above {last}",
                    found=event["step"],
                )  # fmt: skip
            steps[event["attempt"]] = event["step"]
    kinds = Counter(event["kind"] for event in events)
    check.says = ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def recheck_metrics(folder: Path, config: Config, findings: Findings) -> None:
    """Recheck every line of the metrics against the config and the events."""
    with findings.check("metrics, steps", METRICS) as check:
        _steps(folder, config, check)
    with findings.check("metrics, attempts", METRICS) as check:
        recheck_attempts(folder, config, check)
    with findings.check("metrics, values", METRICS) as check:
        lines = read_metrics(folder)
        events = read_events(folder)
        for line in lines:
            _values(line, config, check)
        told = {e["step"] for e in events if e["kind"] == "nonfinite"}
        seen = {line["step"] for line in lines if not line.get("applied", 1.0)}
        dropped = {e["step"] for e in events if e["kind"] == "dropped"}
        if missing := sorted(seen - told - dropped):
            check.fails(f"steps {missing} were not applied, and no event says so")
        check.says = (
            f"losses of {len(lines)} steps finite, tokens and assignments recounted, rates on the"
            f" schedule; {len(seen)} steps not applied"
        )


def _steps(folder: Path, config: Config, check: Check) -> None:
    events = read_events(folder)
    finished = [e["step"] for e in events if e["kind"] == "finish"]
    counts = Counter[tuple[int, int]]()
    first: dict[int, int] = {}
    if (folder / METRICS).exists():
        for line in lines_of(folder):
            counts[line["attempt"], line["step"]] += 1
            first.setdefault(line["attempt"], line["step"])
    for (attempt, step), count in counts.items():
        if count > 1:
            check.fails(f"step {step} stands {count} times in attempt {attempt}")
    kept = {step for _, step in counts}
    reached = max([*kept, *finished], default=0)
    every = max(config.train.log_every_steps, 1)
    skipped = {line["step"] for line in read_metrics(folder) if not line.get("applied", 1.0)}
    wanted = set(range(every, reached + 1, every))
    for step in sorted(wanted - kept):
        check.fails(f"step {step} is missing")
    if any(event["kind"] == "change" for event in events):
        wanted |= kept  # it may have been logged more often before
    for step in sorted(kept - wanted - skipped):
        check.fails(f"step {step} should not have been logged: every {every} steps are")
    if finished:
        last = config.train.num_steps
        check.equal("last step of a finished run", last, finished[-1], where=f"{EVENTS}, finish")
        check.equal("last step of a finished run", last, reached)
    check.says = f"steps 1 to {reached}, each once, in {max(len(first), 1)} attempts" + (
        "" if finished else "; the run is not finished"
    )


def _values(line: Mapping[str, Any], config: Config, check: Check) -> None:
    step, train, where = line["step"], config.train, f"{METRICS} step {line['step']}"
    check.equal("tokens so far", step * train.tokens_per_step, line["tokens"], where=where)
    if line.get("applied", 1.0) and not math.isfinite(line["loss"]):
        check.fails("its loss is not finite, and it was applied", where=where)
    rate = train.tokens_per_step / line["seconds"]
    check.close("tokens per second", rate, line["tokens_per_s"], relative=SAME, where=where)
    peak, settings = peak_rates(config), config.optimizer
    fraction = schedule_fraction(step - 1, settings, train.num_steps)
    for name, top in (("muon", peak.muon_lr), ("adam", peak.adam_lr)):
        if (seen := line.get(f"learning_rate/{name}")) is not None:
            check.close(
                f"learning rate, {name} (warmup {num_warmup_steps(settings, train.num_steps)})",
                fraction * top, seen, relative=RATE, absolute=RATE_OF_PEAK * top, where=where,
            )  # fmt: skip
    assigned = train.tokens_per_step * config.model.top_k
    names = ("delivered", "dropped/sender", "dropped/receiver")
    if all(name in line for name in names):
        for layer, parts in enumerate(zip(*(line[name] for name in names), strict=True)):
            spelled = f"assignments of layer {layer}, delivered or dropped"
            check.equal(spelled, assigned, int(sum(parts)), where=where)


def recheck_evaluations(folder: Path, config: Config, findings: Findings) -> None:
    """Recheck `evals/*.json`: means, bits per byte, and what the events say."""
    paths = sorted((folder / EVALS).glob("*.json"))
    with findings.check("evaluations", EVALS) as check:
        events = read_events(folder)
        for path in paths:
            recheck_scores(path, config, events, check)
        told = {e["step"] for e in events if e["kind"] == "evaluate"}
        for step in sorted(told - {int(path.stem) for path in paths if path.stem.isdecimal()}):
            check.fails(f"the scores of step {step}, which an event names, are missing")
        if not paths and not check.problems:
            check.cannot("no evaluation is on record")
        check.says = f"{len(paths)} files: means and bits per byte recomputed, as in the events"
    with findings.check("samples", SAMPLES) as check:
        _samples(folder, check)


def _samples(folder: Path, check: Check) -> None:
    """Every file of samples must be the one whose hash is on record."""
    hashes = _hashes(read_events(folder), SAMPLES)
    there = {f"{SAMPLES}/{path.name}" for path in (folder / SAMPLES).glob("*.json")}
    if not there and not hashes:
        check.cannot("there are none whose hash is on record")
    for name in sorted(hashes.keys() - there):
        check.fails("is on record and missing", where=name)
    if not hashes:
        check.cannot("this record has no hash of them")
    for name in sorted(there):
        spelled = "SHA-256, as in the `evaluate` event"
        check.equal(spelled, hashes.get(name, ""), sha256_file(folder / name), where=name)
    check.says = f"{len(there)} files as their events saw them"


def _hashes(events: Sequence[Mapping[str, Any]], below: str) -> dict[str, str]:
    """File -> its SHA-256, of the last `evaluate` event that names it."""
    found: dict[str, str] = {}
    for event in events:
        if event["kind"] == "evaluate":
            found |= event.get("files", {})
    return {name: one for name, one in found.items() if name.startswith(f"{below}/")}


def recheck_scores(
    path: Path,
    config: Config,
    events: Sequence[Mapping[str, Any]],
    check: Check,
    *,
    prefix: str = "",
) -> None:
    """Recheck one `evals/STEP.json`; `prefix` goes before its place."""
    content, where = read_object(path), f"{prefix}{EVALS}/{path.name}"
    step = content["step"]
    check.equal("its step", path.stem, str(step), where=where)
    if (told := _hashes(events, EVALS).get(f"{EVALS}/{path.name}")) is not None:
        check.equal("SHA-256, as in the `evaluate` event", told, sha256_file(path), where=where)
    tokens = step * config.train.tokens_per_step
    check.equal("tokens trained on", tokens, content["tokens"], where=where)
    for name, one in content["sets"].items():
        _scores(one, f"{where} {name}", check)
    macro = {name: one["macro"] for name, one in content["sets"].items()}
    told = [e["macro"] for e in events if e["kind"] == "evaluate" and e["step"] == step]
    if told:
        _macros(told[-1], macro, where, check)
    else:
        check.fails("no `evaluate` event of this step is on record", where=where)


def _scores(one: Mapping[str, Any], where: str, check: Check) -> None:
    domains = one["domains"]
    for name, scores in domains.items():
        bpb = scores["loss"] * scores["tokens"] / (math.log(2) * scores["bytes"])
        spelled = "bits per byte = loss x tokens / (ln 2 x bytes)"
        check.close(spelled, bpb, scores["bpb"], relative=SAME, where=f"{where}/{name} bpb")
    for key in MACRO_KEYS:
        mean = math.fsum(scores[key] for scores in domains.values()) / len(domains)
        place = f"{where}/macro {key}"
        check.close("mean over domains", mean, one["macro"][key], relative=SAME, where=place)


def _macros(told: Mapping[str, Any], macro: Mapping[str, Any], where: str, check: Check) -> None:
    check.equal("sets, in the `evaluate` event", sorted(told), sorted(macro), where=where)
    for name in sorted(set(told) & set(macro)):
        for key in sorted({*told[name], *macro[name]}):
            spelled, place = "macro mean, in the `evaluate` event", f"{where} {name}/macro {key}"
            check.equal(spelled, told[name].get(key), macro[name].get(key), where=place)
