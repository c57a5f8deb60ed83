"""`report.html`: a run folder's records as one page that needs nothing else.

The page holds its own style, script and drawings, and a policy that forbids it every request.
It reads records only, so it is the same for a run in progress, a finished one and another's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import shoal
from shoal.core.files import write_atomic
from shoal.report import evaluation, forecast, origins, training
from shoal.report.folder import RunFolder, at, read
from shoal.report.forecast_folder import ForecastFolder, forecast_of
from shoal.report.frame import frame
from shoal.report.markup import (
    Html,
    compact,
    count,
    duration,
    el,
    fixed,
    moment,
    number,
    plain,
)
from shoal.report.plots import bar

_SECTIONS: tuple[tuple[str, str, Callable[[RunFolder], Html]], ...] = (
    ("training", "Training", training.training),
    ("evaluation", "Evaluation", evaluation.evaluation),
    ("samples", "Samples", origins.samples),
    ("routing", "Expert routing", training.routing),
    ("optimizer", "Gradients and weights", training.optimizer),
    ("speed", "Speed", training.speed),
    ("sources", "Sources", origins.sources),
    ("stages", "Corpus stages", origins.stages),
    ("configuration", "Configuration", origins.configuration),
    ("events", "Events", origins.events),
    ("provenance", "Provenance", origins.provenance),
)

_NO_DATA = ("no data", "")
_FOOT = f"Made by Shoal {shoal.__version__} from the run's own records."


def render(folder: Path) -> str:
    """The page of a run folder.

    Raises:
        ValueError: `folder` is not a run folder.
    """
    run = read(folder)
    return document(run, forecast_of(folder, run))


def write(folder: Path) -> Path:
    """Writes `report.html` into the run folder, whole or not at all; errors as `render`."""
    path = folder / "report.html"
    write_atomic(path, render(folder))
    return path


def document(run: RunFolder, foretold: ForecastFolder | None = None) -> str:
    """The page of records that were read before, and of the forecast that the run is about."""
    sections = [(name, title, section(run)) for name, title, section in _SECTIONS]
    if foretold is not None:
        place = 1 + [name for name, _, _ in sections].index("evaluation")
        sections.insert(place, ("forecast", "Forecast", forecast.section(foretold)))
    return frame(f"{_name(run)} · Shoal run report", _header(run), sections, _FOOT)


def _name(run: RunFolder) -> str:
    return str(run.run.get("name") or "Unnamed run")


def _header(run: RunFolder) -> Html:
    problems = [el("li", problem) for problem in run.problems]
    return el(
        "header",
        el("p", _mark(), "Shoal run report", class_="brand"),
        el("h1", _name(run)),
        el("p", _sentence(run), class_="summary"),
        _state(run),
        el("div", el("p", "Some records could not be read:"), el("ul", problems), class_="problems")
        if problems
        else None,
        evaluation.headline(run),
        _facts(run),
    )


def _mark() -> Html:
    """Seven fish of a school, all heading the same way."""
    places = ((4, 8), (11, 4), (11, 12), (18, 8), (18, 1.5), (18, 14.5), (25, 8))
    fish = [el("ellipse", cx=x, cy=y, rx="2.6", ry="1.1") for x, y in places]
    return el("svg", fish, width="30", height="16", viewBox="0 0 30 16", aria_hidden="true")


def _sentence(run: RunFolder) -> str:
    tensors, active = (number(at(run.run, "parameters", key)) for key in ("tensors", "active"))
    told = "A mixture-of-experts language model"
    if tensors is not None:
        told += f" of {compact(tensors)} parameters"
        told += f", {compact(active)} of them active for each token" if active is not None else ""
    found = len(origins.trained_on(run))
    if not len(run.metrics.steps):
        return f"{told}. No step has been recorded yet."
    return f"{told}, trained on {_tokens(run)} tokens{f' of {found} sources' if found else ''}."


def _tokens(run: RunFolder) -> str:
    """Tokens trained on, of those planned while some are left."""
    planned = number(at(run.run, "derived", "tokens"))
    if not len(run.tokens):
        return f"0 of {compact(planned)}" if planned is not None else "0"
    trained = float(run.tokens[-1])
    left = planned is not None and trained < planned
    return f"{compact(trained)} of {compact(planned)}" if left else compact(trained)


def _state(run: RunFolder) -> Html:
    step, planned = run.last_step, number(at(run.run, "derived", "steps"))
    if run.finished:
        told = f"Finished after {count(step)} steps"
    elif step is None:
        told = "Not started"
    else:
        told = f"Unfinished: the record ends at step {count(step)}"
        told += f" of {count(planned)}" if planned else ""
    created = moment(run.run.get("created"))
    begun = f", begun {created.day} {created:%B %Y, %H:%M}" if created else ""
    share = min(1.0, step / planned) if step is not None and planned and not run.finished else None
    progress = None if share is None else bar(share, f"{share:.0%} of the steps")
    return el("p", progress, el("b", told), begun, class_="state")


def _facts(run: RunFolder) -> Html:
    """The numbers of the headline, each with what qualifies it."""
    per_step = number(at(run.run, "derived", "tokens_per_step"))
    facts = {
        "Parameters": _parameters(run),
        "Tokens": (_tokens(run), f"{count(per_step)} per step" if per_step else ""),
        "Training loss": _loss(run),
        "Throughput": _rate(run),
        "Wall time": _wall(run),
        "Machine": _machine(run),
    }
    return el(
        "dl",
        [
            el("div", el("dt", name), el("dd", value), el("dd", note, class_="note"))
            for name, (value, note) in facts.items()
        ],
        class_="facts",
    )


def _parameters(run: RunFolder) -> tuple[str, str]:
    tensors, active = (number(at(run.run, "parameters", key)) for key in ("tensors", "active"))
    if tensors is None:
        return _NO_DATA
    note = count(tensors) if active is None else f"{count(tensors)}; {count(active)} active"
    return compact(tensors), note


def _loss(run: RunFolder) -> tuple[str, str]:
    loss = run.metrics.column("loss")
    if loss is None:
        return _NO_DATA
    width = training.window(len(loss))
    tail = loss[-width:]
    tail = tail[np.isfinite(tail)]
    mean = fixed(float(tail.mean()), 3) if tail.size else "not finite"
    note = f"mean of the last {width:,} steps" if width > 1 else "last step"
    return mean, f"nats per token, {note}"


def _rate(run: RunFolder) -> tuple[str, str]:
    rate = run.metrics.column("tokens_per_s")
    if rate is None:
        return _NO_DATA
    return f"{compact(float(np.median(rate[np.isfinite(rate)])))} tokens/s", "median of all steps"


def _wall(run: RunFolder) -> tuple[str, str]:
    """From the first event to the last, pauses between attempts included."""
    seconds = run.metrics.column("seconds")
    in_steps = None if seconds is None else float(seconds[np.isfinite(seconds)].sum())
    times = [found for event in run.events if (found := moment(event.get("time")))]
    whole = origins.between(times[0], times[-1]) if len(times) > 1 else None
    if whole is None:
        return (duration(in_steps), "in steps") if in_steps is not None else _NO_DATA
    notes = [f"{duration(in_steps)} of it in steps"] if in_steps is not None else []
    attempts = {str(event.get("attempt")) for event in run.events}
    if len(attempts) > 1:
        notes.append(f"{len(attempts)} attempts, pauses included")
    return duration(whole), "; ".join(notes)


def _machine(run: RunFolder) -> tuple[str, str]:
    environment = run.run.get("environment")
    cores, devices = at(environment, "cores"), at(environment, "devices")
    known = [plain(devices)] if devices is not None else []
    known += [
        f"{name} {plain(at(environment, key))}"
        for key, name in (("jax", "JAX"), ("python", "Python"))
        if at(environment, key) is not None
    ]
    if cores is None and not known:
        return _NO_DATA
    shown = f"{plain(cores)} cores" if cores is not None else known.pop(0)
    return shown, ", ".join(known)
