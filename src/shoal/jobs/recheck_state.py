"""Rechecks of a run beyond its record: checkpoints, corpus, order of the data, a replay.

A replay computes steps anew, from the seed and from a checkpoint, and writes nothing to the run.
On a CPU whose environment is the recorded one every metric must be the same bits. Elsewhere losses
may differ by `tolerance`, relative: set above what was measured (docs/verify.md).
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.files import home, sha256_file
from shoal.core.progress import Progress
from shoal.core.record import EVENTS, METRICS, read_events, read_metrics, verify_link
from shoal.data.manifest import CORPUS
from shoal.data.tokenize import TOKENIZER, load_tokenizer
from shoal.eval.domains import limit_bytes
from shoal.jobs.corpora import Corpus, find_corpus
from shoal.jobs.devices import mesh_or_none
from shoal.jobs.evaluate import EVALS
from shoal.jobs.findings import Check, Findings
from shoal.jobs.recheck_run import read_object
from shoal.jobs.recheck_tables import heldout_texts
from shoal.jobs.replay import Side, side_of
from shoal.jobs.runs import RUN, restored
from shoal.jobs.runtime import environment
from shoal.jobs.train import mix_of, order_of, store_of
from shoal.train.config import Config

# Losses of replays elsewhere: so much in the first steps, twice as much every few steps, no more.
ALLOWED, ALLOWED_STEPS, DOUBLING_STEPS, ALLOWED_AT_MOST = 1e-5, 8, 4, 1e-2
ORDER_STEPS = 20_000
_KEYS = ("step", "digest", "leaves", "files", "link", "fingerprint", "tokens_per_step")
_OWN = {"step", "attempt", "tokens", "seconds", "tokens_per_s"}
# What decides the bits of a step; the rest of an environment is for the reader.
_BITS = (
    "jax", "jaxlib", "platform", "backend", "devices", "cores", "processor", "xla_flags",
)  # fmt: skip


def recheck_checkpoints(
    folder: Path, config: Config, progress: Progress, findings: Findings
) -> None:
    """Recheck every checkpoint that is there: files, leaves, digest, place in the record."""
    from shoal.train import checkpoint

    events = [event for event in read_events(folder) if event["kind"] == "checkpoint"]
    told = {event["step"]: event["digest"] for event in events}
    there = checkpoint.steps(folder)
    mesh = mesh_or_none(config, progress) if there else None
    for step in there:
        where = f"{checkpoint.CHECKPOINTS}/{step}"
        with findings.check(f"checkpoint {step}", where) as check:
            _manifest(folder, config, step, told.get(step), check)
            state = restored(folder, config, step, mesh)
            check.equal("step of its state", step, int(state.step))
            check.says = f"bytes, leaves and digest {told.get(step)}, as in the record at that step"
    if gone := sorted(told.keys() - set(there)):
        steps = ", ".join(map(str, gone))
        findings.skip("older checkpoints", f"those of steps {steps} are not kept")


def _manifest(folder: Path, config: Config, step: int, digest: str | None, check: Check) -> None:
    from shoal.train import checkpoint

    place = folder / checkpoint.CHECKPOINTS / str(step)
    loose = read_object(place / checkpoint.MANIFEST)
    check.equal("its step", step, loose.get("step"))
    told = read_object(folder / RUN)["fingerprint"]
    check.equal("fingerprint of its run", told, loose.get("fingerprint"))
    check.equal("its keys", sorted(_KEYS), sorted(loose))
    check.equal("tokens per step", config.train.tokens_per_step, loose.get("tokens_per_step"))
    there = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    for name in sorted(there - loose["files"].keys() - {checkpoint.MANIFEST}):
        check.fails("a file that its manifest does not list", where=f"{check.where}/{name}")
    if digest is None:
        check.fails("no `checkpoint` event of this step is on record")
    else:
        check.equal("its digest, in the `checkpoint` event", digest, loose.get("digest"))
    for problem in verify_link(folder, loose.get("link") or {}):
        check.fails(f"the record differs from what it saw: {problem}")
    for name, entry in loose["files"].items():
        if (place / name).is_file():
            found = sha256_file(place / name)
            check.equal("SHA-256 of a file", entry["sha256"], found, where=f"{check.where}/{name}")
    if not check.problems:
        checkpoint.manifest_of(folder, step)  # sizes, and the digest of the leaves


def corpus_of(folder: Path, findings: Findings) -> Corpus | None:
    """Recheck a run's copy of its corpus' record; the corpus, where it is there."""
    found: Corpus | None = None
    with findings.check("corpus of the run", CORPUS) as check:
        copy, ref = read_object(folder / CORPUS), read_object(folder / RUN)["corpus"]
        check.equal("the corpus that run.json names", ref, copy["corpus"])
        try:
            found = corpus_at(ref, [folder])
        except ValueError as error:  # a stage is gone
            check.cannot(str(error))
        if found is None:
            check.cannot(f"{ref} is not there; `shoal prepare` makes it again")
            return None
        content = {name: value for name, value in copy.items() if name != "corpus"}
        if content != found.content:
            odd = [
                k for k in {**content, **found.content} if content.get(k) != found.content.get(k)
            ]
            check.fails(f"differs from that of the corpus in: {', '.join(odd)}")
        check.says = f"corpus.json is that of {ref}; `shoal verify {ref}` rechecks the corpus"
    return found


def corpus_at(ref: str, runs: Sequence[Path]) -> Corpus | None:
    """The corpus of a reference, under SHOAL_HOME or in the home of one of some runs.

    Raises:
        ValueError: one of its stages is gone.
    """
    roots = [home(), *(run.absolute().parents[1] for run in runs)]
    there = [root / "corpora" / ref for root in roots]
    found = [path for path in there if (path / CORPUS).is_file()]
    return find_corpus(str(found[0])) if found else None


def scored_of(config: Config, corpus: Corpus) -> dict[str, dict[str, list[str]]]:
    """Set -> domain -> the held-out texts that a config scores."""
    limit = config.eval.limit_bytes
    return {
        name: {
            domain: limit_bytes(texts, limit) if limit else texts for domain, texts in one.items()
        }
        for name, one in heldout_texts(corpus.folders).items()
    }


def recheck_scored(folder: Path, config: Config, corpus: Corpus, findings: Findings) -> None:
    """Recount the held-out text behind the evaluations; the scores themselves need a model."""
    with findings.check("evaluated text", EVALS) as check:
        paths = sorted((folder / EVALS).glob("*.json"))
        if not paths:
            check.cannot("no evaluation is on record")
        tokenizer = load_tokenizer(corpus.folders["tokenizer"] / TOKENIZER)
        wanted: dict[str, dict[str, int]] = {}
        for name, domains in scored_of(config, corpus).items():
            for domain, texts in domains.items():
                kept = limit_bytes(texts)
                encoded = tokenizer.encode_batch_fast(kept, add_special_tokens=False)
                wanted[f"{name}/{domain}"] = {
                    "documents": len(kept),
                    "bytes": sum(len(text.encode()) for text in kept),
                    "tokens": sum(len(one.ids) for one in encoded),
                }
        for path in paths:
            sets = read_object(path)["sets"]
            found = {f"{n}/{d}": one for n, s in sets.items() for d, one in s["domains"].items()}
            where = f"{EVALS}/{path.name}"
            check.equal("its sets and domains", sorted(wanted), sorted(found), where=where)
            for name in wanted.keys() & found.keys():
                mine = {key: found[name][key] for key in wanted[name]}
                check.equal("held-out text", wanted[name], mine, where=f"{where} {name}")
        check.says = f"documents, bytes and tokens of {len(wanted)} domains recounted"


def recheck_order(config: Config, corpus: Corpus, findings: Findings) -> None:
    """Walk the steps of the run and count what each cell gives, against the exact lanes."""
    with findings.check("order of the data", "data.mix") as check:
        store = store_of(config, corpus.folders["tokens"])
        order, mix = order_of(config, store), mix_of(config, store)
        steps = min(config.train.num_steps, ORDER_STEPS)
        size = config.train.sequence_tokens
        counted, twice = Counter[str](dict.fromkeys(store.units, 0)), Counter[tuple[Any, ...]]()
        for step in range(steps):
            found = order.locate_step(step)
            for cell, epoch, unit in zip(found.cell, found.epoch, found.unit, strict=True):
                counted[found.cells[cell]] += size
                twice[found.cells[cell], int(epoch), int(unit), found.slice] += 1
        if repeated := [place for place, number in twice.items() if number > 1]:
            check.fails(f"{len(repeated)} slices are read twice in an epoch, such as {repeated[0]}")
        told = order.consumed_tokens(steps)
        for cell in sorted(counted):
            spelled = f"tokens of cell {cell} after {steps} steps, by the exact lanes"
            check.equal(spelled, told[cell], counted[cell])
        tokens = steps * config.train.tokens_per_step
        check.equal("tokens in all", tokens, sum(counted.values()))
        read = sum(number > 0 for number in counted.values())
        most = max(sum(epochs) for epochs in mix.epochs.values())
        check.says = (
            f"{tokens:,} tokens of {steps:,} steps counted one by one: {read} of {len(counted)}"
            f" cells, as the lanes say, no slice twice in an epoch, at most {most:.2f} epochs"
        )
        if steps < config.train.num_steps:
            check.says += f"; later steps of {config.train.num_steps:,} not walked"


def recheck_replay(
    folder: Path,
    config: Config,
    corpus: Corpus,
    steps: int,
    progress: Progress,
    findings: Findings,
) -> None:
    """Compute steps anew, from the seed and from a checkpoint, and compare them with the record."""
    from shoal.train import checkpoint

    lines = {line["step"]: line for line in read_metrics(folder)}
    events = [event for event in read_events(folder) if event["kind"] == "checkpoint"]
    told = {event["step"]: event["digest"] for event in events}
    last = max(lines, default=0)
    starts = [(0, min(steps, last))]
    there = [step for step in checkpoint.steps(folder) if step < last]
    enough = [step for step in there if step + steps <= last]
    if at := (enough or there)[-1:]:
        starts.append((at[0], min(steps, last - at[0])))
    else:
        findings.skip("replay from a checkpoint", "none that is there has a step after it")
    try:
        side = side_of(config, store_of(config, corpus.folders["tokens"]))
    except ValueError as error:
        findings.skip("replay", f"the run does not fit this machine: {error}")
        return
    run = Steps(side)
    for start, number in starts:
        name = f"replay from checkpoint {start}" if start else "replay from the seed"
        with findings.check(name, METRICS) as check:
            if number < 1:
                check.cannot("the record has no step")
            wanted = [lines[s] for s in range(start + 1, start + number + 1) if s in lines]
            if not wanted:
                check.cannot(f"steps {start + 1} to {start + number} were not logged")
            found, digests = run.after(folder, start, number, progress, told.keys())
            exact = compare(folder, start, wanted, found, check)
            if digests and exact:
                compare_digests(told, digests, check)
            if number < steps:
                check.says += f" ({steps} were asked for, no more are on record after it)"


class Steps:
    """The run's step, compiled once."""

    def __init__(self, side: Side) -> None:
        from shoal.train.derive import peak_rates
        from shoal.train.loop import jitted_step
        from shoal.train.state import shardings
        from shoal.train.step import make_step

        self.side, self.peak = side, peak_rates(side.config)
        config, mesh = side.config, side.devices.mesh
        places = shardings(config, self.peak, mesh)
        self.step = jitted_step(make_step(config, self.peak, mesh), places)

    def after(
        self, folder: Path, start: int, number: int, progress: Progress, saved: Collection[int]
    ) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """Step -> its metrics, computed from the checkpoint of `start`, or from the seed.

        The second is step -> digest of the state, of the steps that were saved.
        """
        import jax
        import jax.numpy as jnp

        from shoal.train.digest import census, digest
        from shoal.train.state import initial_state

        config, mesh = self.side.config, self.side.devices.mesh
        if start:
            state = restored(folder, config, start, mesh)
            if mesh is None:  # not bound to a device, as when drawn: the same program serves both
                state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)
        else:
            state = initial_state(config, self.peak, mesh)
        found: dict[int, dict[str, Any]] = {}
        digests: dict[int, str] = {}
        with progress.task(f"replay from {start}", number, "steps") as task:
            for index in range(start, start + number):
                state, metrics = self.step(state, self.side.batch(index))
                found[index + 1] = jax.device_get(metrics)
                if index + 1 in saved:
                    digests[index + 1] = digest(census(state))
                task.advance()
        return found, digests


def tolerance(steps: int) -> float:
    """How far a loss may be from the record so many steps after the start, relative to it."""
    doublings = max(0, steps - ALLOWED_STEPS) / DOUBLING_STEPS
    return min(ALLOWED_AT_MOST, ALLOWED * 2.0 ** min(doublings, 64.0))


def compare(
    folder: Path,
    start: int,
    lines: Sequence[Mapping[str, Any]],
    found: Mapping[int, Mapping[str, Any]],
    check: Check,
) -> bool:
    """Bit for bit where the environment is the recorded one, which it returns, else nearly."""
    differs = sorted({why for line in lines for why in _differs(folder, line["attempt"])})
    allowed = {line["step"]: tolerance(line["step"] - start) for line in lines}
    if "backend" in differs:
        allowed = dict.fromkeys(allowed, ALLOWED_AT_MOST)
    worst, odd = 0.0, 0
    for line in lines:
        anew = found[line["step"]]
        spread = abs(float(anew["loss"]) - line["loss"]) / max(abs(line["loss"]), 1e-9)
        worst = max(worst, spread) if np.isfinite(spread) else np.inf
        names = [n for n in line.keys() - _OWN if n not in anew or not _same(line[n], anew[n])]
        odd += bool(names)
        where = f"{METRICS} step {line['step']}"
        if not spread <= allowed[line["step"]]:
            check.fails("loss", where=where, expected=float(anew["loss"]), found=line["loss"])
        elif names and not differs:
            name = "loss" if "loss" in names else min(names)
            again = np.asarray(anew.get(name)).tolist()
            spelled = f"{name}, bit for bit: this environment is the recorded one"
            check.fails(spelled, where=where, expected=again, found=line[name])
    steps = f"steps {lines[0]['step']} to {lines[-1]['step']}"
    most = max(allowed.values())
    if not odd:
        check.says = f"{steps}: every metric of the record, bit for bit"
    else:
        check.says = f"{steps}: losses within {worst:.1e} of the record (allowed {most:.2g})"
    if differs:
        check.says += f"; bits are not asked for: {', '.join(differs)}"
    return not differs


def compare_digests(told: Mapping[int, str], found: Mapping[int, str], check: Check) -> None:
    """What training comes to at a checkpoint's step must be the checkpoint."""
    for step, anew in found.items():
        spelled = f"digest of the state at step {step}, where a checkpoint was saved"
        check.equal(spelled, anew, told[step], where=f"{EVENTS}, checkpoint {step}")
    steps = ", ".join(map(str, found))
    check.says += f"; the state comes to the digest of checkpoint {steps}"


def _same(recorded: Any, anew: Any) -> bool:
    one, two = np.asarray(recorded, np.float64), np.asarray(anew, np.float64)
    return one.shape == two.shape and np.array_equal(one, two, equal_nan=True)


def _differs(folder: Path, attempt: int) -> list[str]:
    """Say what of an attempt's environment or numerics is not that of this replay."""
    events, now = read_events(folder), json.loads(json.dumps(environment()))
    changes = [event["attempt"] for event in events if event["kind"] == "change"]
    if any(change > attempt for change in changes):
        return ["the run's settings were changed after these steps"]
    start = next((event for event in events if event["kind"] == "start"), {})
    then: dict[str, Any] = read_object(folder / RUN)["environment"] if changes else dict(start)
    for event in events:
        if event["kind"] == "resume" and event["attempt"] == attempt:
            then |= event
    odd = [name for name in _BITS if then.get(name) != now[name]]
    if now["backend"] != "cpu":
        odd.append("only a CPU repeats its bits")
    return odd
