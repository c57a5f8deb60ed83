"""`shoal verify FORECAST`: fitted again, rungs read again, seal and target held to the record."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.sealing import prepared_with, rewritten
from journey.tiny import TEXT, tiny_ladder
from shoal.cli import main
from shoal.core.config import fingerprint
from shoal.core.files import home
from shoal.core.record import Record, read_events, read_metrics
from shoal.jobs.findings import FAILS, HOLDS, NOT_CHECKED
from shoal.jobs.runs import begin
from shoal.jobs.settle import settle
from shoal.jobs.verify import verify
from shoal.scaling.forecast import forecast
from shoal.scaling.ladder import (
    LadderConfig,
    compute_flops,
    health_of,
    num_seeds,
    rung_config,
    rung_run,
)
from shoal.scaling.records import Ladder, Target
from shoal.scaling.seal import make_seal, parse_seal, read_seal
from shoal.train.config import Config

FILES = ("ladder.json", "forecast.json", "seal.json")


def lay_run(config: Config, folder: Path, value: float, seal: Any = None) -> None:
    """A run as training leaves it, whose scores fall to a value, without any training."""
    steps = config.train.num_steps
    (folder / "evals").mkdir(parents=True)
    with Record.open(folder) as record:
        begin(folder, config, prepared_with(), record, change=None, seal=seal)
        for step in range(1, steps + 1):
            record.metric(step, {"grad_norm": 1.0 / step, "weight_norm/muonh": 3.0})
            if step % max(1, steps // 20) == 0:
                bpb = value * (step / steps) ** -0.05
                domains = {name: _scores(bpb * part) for name, part in (("a", 0.9), ("b", 1.1))}
                macro = {
                    key: math.fsum(one[key] for one in domains.values()) / 2
                    for key in ("loss", "bpb", "xz_bpb", "zstd_bpb")
                }
                tokens = step * config.train.tokens_per_step
                sets = {"sources": {"domains": domains, "macro": macro}}
                content = {"step": step, "tokens": tokens, "sets": sets}
                (folder / f"evals/{step}.json").write_text(json.dumps(content))
                record.event("evaluate", step=step, macro={"sources": macro})
        record.event("finish", step=steps, seconds=2.5)


def _scores(bpb: float) -> dict[str, float]:
    told = {"tokens": 10, "bytes": 40, "documents": 1, "xz_bpb": 3.0, "zstd_bpb": 3.1}
    return {"bpb": bpb, "loss": bpb * math.log(2) * 4, **told}


def law(ladder: LadderConfig, config: Config) -> float:
    return 0.6 + 2.0 * (compute_flops(ladder, config) / 1e9) ** -0.12


@pytest.fixture(scope="module")
def made(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with four runs of three rungs, a sealed forecast, its target's run, settled."""
    root = tmp_path_factory.mktemp("ladder") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(root))
        patch.setenv(TEXT, str(text))
        found, runs = tiny_ladder(), []
        for width in found.widths:
            for seed in range(num_seeds(found, width)):
                config = rung_config(found, width, seed)
                folder = root / "runs" / config.name
                lay_run(config, folder, law(found, config) * (1 + 0.001 * seed))
                runs.append(read_run(found, config, folder))
        own = fingerprint(found.target)
        target = Target(
            name=found.target.name, fingerprint=own, width=32, tokens=found.target.train.tokens,
            flops=compute_flops(found, found.target),
        )  # fmt: skip
        ladder = Ladder(
            name="tiny-ladder", metric=found.metric, runs=tuple(runs), target=target,
            conditions={"sequence_tokens": 32},
        )  # fmt: skip
        said = forecast(ladder)
        seal = make_seal(said, ladder, date="2026-12-01T10:00:00+00:00")
        folder = root / "forecasts" / ladder.name
        folder.mkdir(parents=True)
        for name, one in zip(FILES, (ladder, said, seal), strict=True):
            (folder / name).write_text(json.dumps(one.plain(), indent=1) + "\n")
        lay_run(found.target, root / "runs" / "tiny-target", law(found, found.target), seal)
        settle("tiny-target", "tiny-ladder")
    return root


def read_run(found: LadderConfig, config: Config, folder: Path) -> Any:
    evals = [json.loads(path.read_text()) for path in (folder / "evals").glob("*.json")]
    return rung_run(
        found, config, run=folder.name, fingerprint=fingerprint(config), seconds=2.5,
        evals=evals, metrics=read_metrics(folder),
    )  # fmt: skip


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The forecast's folder in a copy that is this test's own."""
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    return home() / "forecasts" / "tiny-ladder"


def failures(result: dict[str, Any]) -> list[str]:
    return [
        f"{line['check']} | {line['where']} | {line['says']}"
        f" | {line.get('expected')} | {line.get('found')}"
        for line in result["lines"]
        if line["state"] == FAILS
    ]


def edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=1) + "\n")


def test_a_sealed_and_settled_forecast_holds_and_nothing_is_written(folder):
    before = {path: path.read_bytes() for path in home().rglob("*") if path.is_file()}
    found = verify("tiny-ladder")
    assert failures(found) == []
    says = {line["check"]: line["says"] for line in found["lines"] if line["state"] == HOLDS}
    rungs = ("d8-seed0", "d8-seed1", "d16-seed0", "d24-seed0")
    assert {f"rung tiny-ladder-{name}" for name in rungs} <= set(says)
    assert says["refit"].startswith("the same bytes")
    assert says["rung tiny-ladder-d8-seed0"] == "6 series and 2 of health read again, the same"
    assert "is its first event" in says["target tiny-target"]
    assert says["settlement"].startswith("run tiny-target settled again, the same")
    unchecked = [line["check"] for line in found["lines"] if line["state"] == NOT_CHECKED]
    assert unchecked == ["conditions"]
    assert {path: path.read_bytes() for path in home().rglob("*") if path.is_file()} == before
    assert main(["verify", str(folder / "seal.json")]) == 0


def test_what_is_not_there_is_not_checked(folder):
    shutil.rmtree(home() / "runs")
    for name in ("seal.json", "settlement.json"):
        (folder / name).unlink()
    found = verify("tiny-ladder")
    assert failures(found) == []
    unchecked = {one["check"]: one["says"] for one in found["lines"] if one["state"] == NOT_CHECKED}
    assert unchecked["rung tiny-ladder-d16-seed0"] == "run folder missing"
    assert unchecked["seal"] == "the forecast is not sealed"
    assert "target tiny-target" in unchecked
    (folder / "ladder.json").unlink()
    found = verify("tiny-ladder")
    assert [one["check"] for one in found["lines"] if one["state"] == HOLDS] == []


def _forecast_edited(folder: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["series"]["sources/a/bpb"]["central"][9] += 1e-5

    edit(folder / "forecast.json", change)


def _setting_edited(folder: Path) -> None:
    edit(folder / "forecast.json", lambda tree: tree["settings"].update(huber=4.0))


def _ladder_edited(folder: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["runs"][1]["series"]["sources/a/loss"][3] += 1e-6

    edit(folder / "ladder.json", change)


def _ladder_tokens_edited(folder: Path) -> None:
    edit(folder / "ladder.json", lambda tree: tree["runs"][2].update(tokens=7))


def _ladder_flops_edited(folder: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["runs"][2]["flops"] *= 2

    edit(folder / "ladder.json", change)


def _health_edited(folder: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["runs"][3]["health"]["grad_norm"][19] = 9.0

    edit(folder / "ladder.json", change)


def _seal_edited(folder: Path) -> None:
    edit(folder / "seal.json", lambda tree: tree["miss"]["interval"].__setitem__(1, 99.0))


def _seal_forged(folder: Path) -> None:
    """Another interval, sealed anew as a whole: only the run's first event knows better."""
    seal = read_seal(folder / "seal.json")
    ladder = Ladder.parse(json.loads((folder / "ladder.json").read_text()))
    forged = make_seal(seal.forecast, ladder, date="2026-11-30T10:00:00+00:00")
    assert parse_seal(forged.plain()).sha256 != seal.sha256
    (folder / "seal.json").write_text(json.dumps(forged.plain()))


def _rung_scores_edited(folder: Path) -> None:
    path = home() / "runs/tiny-ladder-d16-seed0/evals/40.json"

    def change(tree: dict[str, Any]) -> None:
        for scores in tree["sets"]["sources"]["domains"].values():
            scores["loss"], scores["bpb"] = scores["loss"] / 2, scores["bpb"] / 2

    edit(path, change)


def _rung_metrics_edited(folder: Path) -> None:
    path = home() / "runs/tiny-ladder-d24-seed0/metrics.jsonl"
    path.write_text(path.read_text().replace('"grad_norm": 1.0', '"grad_norm": 0.9', 1))


def _rung_metrics_overridden(folder: Path) -> None:
    """The ladder is read from the record after a line was appended to it: both agree."""
    run = home() / "runs/tiny-ladder-d24-seed0"
    last = len((run / "metrics.jsonl").read_text().splitlines())
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": last, "attempt": 2, "grad_norm": 9.0}) + "\n")
    told = health_of(read_metrics(run), last)

    def change(tree: dict[str, Any]) -> None:
        tree["runs"][3]["health"] = told

    edit(folder / "ladder.json", change)


def _rung_swapped(folder: Path) -> None:
    runs = home() / "runs"
    shutil.rmtree(runs / "tiny-ladder-d8-seed1")
    shutil.copytree(runs / "tiny-ladder-d8-seed0", runs / "tiny-ladder-d8-seed1")


def _seal_event_removed(folder: Path) -> None:
    run = home() / "runs/tiny-target"
    rewritten(run, read_events(run)[1:])


def _seal_event_late(folder: Path) -> None:
    run = home() / "runs/tiny-target"
    seal, *rest = read_events(run)
    rewritten(run, [*rest, seal])


def _settlement_edited(folder: Path) -> None:
    edit(folder / "settlement.json", lambda tree: tree["headline"].update(error=0.0))


TAMPERED = [
    (
        _forecast_edited,
        "refit | forecast.json | does not follow from the ladder: series.sources/a/b",
    ),
    (_forecast_edited, "seal | forecast.json | the forecast is not the sealed one"),
    (_setting_edited, "refit | forecast.json | does not follow from the ladder: settings.huber"),
    (_ladder_edited, "rung {d8-seed1} | ladder.json, rung {d8-seed1}, sources/a/loss at 20%"),
    (_ladder_edited, "seal | ladder.json | the sealed ladder's SHA-256"),
    (_ladder_tokens_edited, "rung {d16-seed0} | runs/{d16-seed0} | tokens |"),
    (_ladder_flops_edited, "rung {d16-seed0} | runs/{d16-seed0} | FLOPs without the head"),
    (_health_edited, "rung {d24-seed0} | ladder.json, rung {d24-seed0}, grad_norm at 100%"),
    (_seal_edited, "seal | seal.json | miss.interval was altered"),
    (_seal_forged, "target tiny-target | runs/tiny-target/events.jsonl | the seal in its first"),
    (_rung_scores_edited, "runs/{d16-seed0}/evals/40.json sources/macro loss | mean over domains"),
    (
        _rung_scores_edited,
        "rung {d16-seed0} | ladder.json, rung {d16-seed0}, sources/b/bpb at 100%",
    ),
    (_rung_metrics_edited, "rung {d24-seed0} | runs/{d24-seed0}/events.jsonl"),
    (_rung_metrics_overridden, "rung {d24-seed0} | runs/{d24-seed0} | first step of attempt 2"),
    (_rung_swapped, "rung {d8-seed1} | runs/{d8-seed1} | fingerprint"),
    (_rung_swapped, "rung {d8-seed1} | runs/{d8-seed1} | seed | 0 | 1"),
    (_seal_event_removed, "the run began without a seal: the forecast is retroactive"),
    (_seal_event_late, "only a seal that is the first event"),
    (
        _settlement_edited,
        "settlement | settlement.json | does not follow from forecast and run: hea",
    ),
]


@pytest.mark.parametrize(
    ("tamper", "named"),
    TAMPERED,
    ids=[f"{tamper.__name__[1:]}-{number}" for number, (tamper, _) in enumerate(TAMPERED)],
)
def test_what_was_tampered_with_is_caught_and_named(folder, tamper, named):
    tamper(folder)
    told = failures(verify("tiny-ladder"))
    spelled = named
    for rung in ("d8-seed1", "d16-seed0", "d24-seed0"):
        spelled = spelled.replace(f"{{{rung}}}", f"tiny-ladder-{rung}")
    assert any(spelled in line for line in told), told


def test_a_refit_on_another_processor_may_round_the_ninth_digit(folder):
    def change(tree: dict[str, Any]) -> None:
        tree["series"]["sources/a/bpb"]["central"][9] *= 1 + 1e-9

    edit(folder / "forecast.json", change)
    (folder / "seal.json").unlink()
    (line,) = [one for one in verify("tiny-ladder")["lines"] if one["check"] == "refit"]
    assert line["state"] == HOLDS
    assert "numbers within 1e-06, not the same bytes" in line["says"]


def test_a_ladder_of_published_flops_is_read_as_it_counts(folder):
    def change(tree: dict[str, Any]) -> None:
        for run in tree["runs"]:
            told = json.loads((home() / "runs" / run["run"] / "run.json").read_text())["derived"]
            run["flops"] = told["flops_published_without_head"]

    edit(folder / "ladder.json", change)
    told = failures(verify("tiny-ladder"))
    assert not any(line.startswith("rung") for line in told)


def test_a_seal_of_the_run_is_verified_with_the_run(folder):
    run = home() / "runs" / "tiny-target"

    def seal_line() -> dict[str, Any]:
        (line,) = [one for one in verify(str(run), steps=0)["lines"] if one["check"] == "seal"]
        return line

    assert seal_line()["state"] == HOLDS
    edit(run / "seal.json", lambda tree: tree.update(name="other"))
    assert (seal_line()["state"], seal_line()["says"]) == (FAILS, "name was altered")
