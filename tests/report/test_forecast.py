import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report import fake_forecast, fake_run
from report.test_page import HOSTILE, Outline
from scaling.ladders import made
from shoal.core.record import Record, read_metrics
from shoal.report import page
from shoal.report.forecast import render, write_forecast
from shoal.report.forecast_folder import medians, read_forecast, seen_at
from shoal.report.forecast_plots import residuals_of
from shoal.report.markup import fixed, signed
from shoal.scaling.forecast import forecast
from shoal.scaling.ladder import health_of, series_of
from shoal.scaling.outcome import score
from shoal.scaling.records import FRACTIONS, HEADLINE

PLACES = 4


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home")
    fake_forecast.make(home)
    return home


@pytest.fixture
def own(home, tmp_path) -> tuple[Path, Path]:
    """A copy of it: the forecast's folder and the run's."""
    shutil.copytree(home, tmp_path / "home")
    return tmp_path / "home" / "forecasts" / "rise", tmp_path / "home" / "runs" / "quickstart"


@pytest.fixture
def bare(home, tmp_path) -> Path:
    """A copy of the forecast's folder, its run elsewhere."""
    copied = shutil.copytree(home / "forecasts", tmp_path / "home" / "forecasts")
    return copied / "rise"


@pytest.fixture(scope="module")
def document(home) -> str:
    return render(home / "forecasts" / "rise")


def chart(document: str, title: str) -> dict[str, Any]:
    """Numbers of the chart with a title, by the names in its legend; and its bands."""
    figures = re.findall(r"<figure.*?</figure>", document, re.DOTALL)
    figure = next(one for one in figures if f'<span class="title">{title}</span>' in one)
    found = re.search(r'<script type="application/json">(.*?)</script>', figure)
    assert found
    names = re.findall(r"</svg>([^<]*)<output>", figure)
    series = json.loads(found[1])["series"]
    kinds = re.findall(r'<path d="[^"]*" class="(band|whisker) ', figure)
    widths = re.findall(r'<path d="M([^"]*)" class="(?:band|whisker) ', figure)
    return {"bands": kinds, "edges": widths, **dict(zip(names, series, strict=True))}


def row(document: str, name: str) -> str:
    """The first table row that begins with a name, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", document, re.DOTALL)
    found = next(one for one in rows if one.startswith(f'<th scope="row">{name}<'))
    return re.sub(r"<[^>]*>", "|", found)


def change(folder: Path, file: str, **values: Any) -> None:
    path = folder / f"{file}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_page_has_every_part_and_says_when_it_was_sealed(document):
    seen = Outline(document)
    for heading in ("Ladder", "Trajectory", "Outcome", "All series", "Interval", "Residuals",
                    "Health", "Seal", "All forecasts"):  # fmt: skip
        assert re.search(f"<h2>{heading}</h2>", document), heading
    assert "No data" not in seen.text
    assert "Sealed 3 November 2026, 08:00 UTC" in seen.text
    assert "../../runs/quickstart/report.html" in {one["href"] for one in seen.named("a")}
    assert fake_forecast.sealed().sha256 in seen.text
    assert "Retroactive" not in seen.text
    assert "shows something only if it came first" in seen.text


def test_the_ladder_has_every_seed_the_law_and_the_target(document):
    head, ladder = fake_forecast.foretold().headline, fake_forecast.ladder()
    found = chart(document, "Ladder")
    dots = found["runs of rungs"]
    assert len(dots["x"]) == len(ladder.runs) == 8
    assert sorted(dots["y"]) == pytest.approx(
        sorted(run.series[HEADLINE][-1] for run in ladder.runs), rel=1e-4
    )
    law = found["law"]
    for compute, value in zip(law["x"], law["y"], strict=True):
        expected = head.E[-1] + head.A[-1] * compute ** -head.alpha[-1]
        assert value == pytest.approx(expected, rel=1e-4)
    assert found["forecast"]["x"] == [ladder.target.flops]
    assert found["forecast"]["y"] == pytest.approx([head.central[-1]], rel=1e-4)
    assert law["y"][-1] == found["forecast"]["y"][0]
    assert found["seen"]["y"] == pytest.approx([last_headline()], rel=1e-4)
    assert found["bands"] == ["whisker", "whisker"]


def last_headline() -> float:
    return fake_run.evaluation(fake_run.STEPS)["sets"]["sources"]["macro"]["bpb"]


def test_given_bands_take_the_place_of_the_bars(home):
    rows = [(1e12, 1.0, 3.0, 1.5, 2.5), (2e14, 1.0, 2.0, 1.2, 1.8)]
    found = chart(render(home / "forecasts" / "rise", rows), "Ladder")
    assert found["bands"] == ["band", "band"]
    outer, inner = (tops(edge) for edge in found["edges"])
    # Down is more: the wide band begins above the narrow one and ends below it.
    assert outer[0] > inner[0] > inner[-1] > outer[-1]


def tops(edge: str) -> list[int]:
    """How far down each point of a band's edge is."""
    return [int(point.split()[1]) for point in edge.split("L")]


def test_the_bands_of_the_trajectory_are_the_intervals(document):
    head = fake_forecast.foretold().headline
    for title, shift in (("Trajectory", 0.0), ("Seen minus forecast", 1.0)):
        for edge, ends in zip(
            chart(document, title)["edges"], (head.interval_90, head.interval_50), strict=True
        ):
            downs = tops(edge)
            told = [
                (low - shift * c, high - shift * c)
                for (low, high), c in zip(ends, head.central, strict=True)
            ]
            expected = [*(low for low, _ in told), *(high for _, high in reversed(told))]
            # Places on the screen are values, shifted and stretched.
            assert np.corrcoef(downs, expected)[0, 1] < -0.9999


def test_the_trajectory_is_the_forecast_and_the_evaluations_as_they_are(home, document):
    head = fake_forecast.foretold().headline
    found = chart(document, "Trajectory")
    assert found["forecast"]["y"] == pytest.approx(head.central, rel=1e-4)
    assert found["forecast"]["x"] == pytest.approx([100 * g for g in FRACTIONS])
    evals = fake_forecast.evaluations(home / "runs" / "quickstart")
    points = sorted((e["step"], e["sets"]["sources"]["macro"]["bpb"]) for e in evals)
    assert found["run"]["x"] == pytest.approx([100 * step / fake_run.STEPS for step, _ in points])
    assert found["run"]["y"] == pytest.approx([value for _, value in points], rel=1e-4)
    apart = chart(document, "Seen minus forecast")["run"]["y"]
    expected = [value - said for (_, value), said in zip(points, head.central, strict=True)]
    assert apart == pytest.approx(expected, abs=1e-4)


def test_every_series_is_scored_as_by_a_settlement(home, document):
    evals = fake_forecast.evaluations(home / "runs" / "quickstart")
    seen = series_of(evals, fake_run.STEPS)
    for name, one in fake_forecast.foretold().series.items():
        expected = score(one, seen[name][-1])
        told = row(document, name)
        for value in (expected["central"], expected["seen"], *one.interval_90[-1]):
            assert fixed(value, PLACES) in told, (name, value)
        assert signed(expected["error"], PLACES) in told
        inside = "50 %" if expected["inside_50"] else "90 %"
        assert ("inside " + inside if expected["inside_90"] else "outside 90 %") in told


@pytest.mark.parametrize("every", [24, 35, 100])
def test_values_at_the_fractions_are_those_that_settling_takes(tmp_path, every):
    folder, run = fake_forecast.make(tmp_path, steps=400, finished=False, evaluate=every)
    theirs = series_of(fake_forecast.evaluations(run), fake_run.STEPS)
    ours = seen_at(read_forecast(folder))
    assert set(theirs) <= set(ours)
    for name, values in theirs.items():
        for mine, value in zip(ours[name], values, strict=True):
            assert math.isnan(mine) if value is None else mine == pytest.approx(value, rel=1e-6)


def test_health_of_the_run_is_what_ladders_take_of_rungs(home):
    found = read_forecast(home / "forecasts" / "rise")
    theirs = health_of(read_metrics(home / "runs" / "quickstart"), fake_run.STEPS)
    for name in ("grad_norm", "router/entropy", "weight_norm/muonh"):
        assert medians(found, name).tolist() == pytest.approx(theirs[name], rel=1e-6), name
    assert np.isnan(medians(found, "no such thing")).all()


def test_a_run_outside_its_health_band_is_told(document):
    assert "grad_norm (100% of what was seen)" in Outline(document).text


def test_residuals_are_seen_minus_the_law(home, document):
    head = fake_forecast.foretold().headline
    rows = residuals_of(read_forecast(home / "forecasts" / "rise"))
    assert len(rows) == 8
    for run, seen, fitted in rows:
        assert fitted == pytest.approx(head.E[-1] + head.A[-1] * run["flops"] ** -head.alpha[-1])
        assert seen == run["series"][HEADLINE][-1]
        assert f">{run['run']}</td>" in document
    drawn = chart(document, "Residuals")["seen minus fitted"]["y"]
    assert sorted(drawn) == pytest.approx(sorted(s - f for _, s, f in rows), abs=1e-6)


def test_the_parts_of_the_interval_and_the_back_test_are_told(document):
    head = fake_forecast.foretold().headline
    seen = Outline(document)
    for value in (*head.parts.values(), head.backtest["predicted"], head.backtest["seen"]):
        assert fixed(value, PLACES) in seen.text
    low, high = head.interval_90[-1]
    assert f"The interval {fixed((high - low) / 2, PLACES)}" in seen.text


def test_the_settlement_is_told_with_what_changed(document):
    seen = Outline(document)
    found = fake_forecast.sealed().forecast.headline
    verdict = "No miss" if score(found, last_headline())["inside_90"] else "A miss"
    assert f"{verdict} at its end" in seen.text
    assert "Premise broken at step 120 transport: moe.transport is 'ragged'" in seen.text
    assert "sources/macro/bpb without sources/owt" in seen.text
    assert "a note" in seen.text


def test_a_forecast_without_a_seal_is_retroactive_once_its_run_has_begun(own):
    folder, run = own
    for file in ("seal", "settlement"):
        (folder / f"{file}.json").unlink()
    assert "Retroactive. Nothing shows" in Outline(render(folder)).text
    shutil.rmtree(run)
    seen = Outline(render(folder))
    assert "Retroactive" not in seen.text
    assert "it could still change" in seen.text


def test_a_seal_that_is_not_first_in_the_record_is_retroactive(own):
    folder, run = own
    (folder / "settlement.json").unlink()
    assert read_forecast(folder).retroactive is None
    events = (run / "events.jsonl").read_text().splitlines(keepends=True)
    assert '"seal"' in events[0]
    (run / "events.jsonl").write_text("".join([events[1], events[0], *events[2:]]))
    assert "does not begin with the seal" in Outline(render(folder)).text
    (run / "events.jsonl").write_text("".join(events).replace(fake_forecast.sealed().sha256, "0"))
    assert "does not begin with the seal" in Outline(render(folder)).text


def test_what_a_settlement_calls_retroactive_is(bare):
    change(bare, "settlement", retroactive="for a reason")
    assert "before the run: for a reason." in Outline(render(bare)).text


def test_an_altered_seal_is_named(bare):
    seal = json.loads((bare / "seal.json").read_text())
    seal["forecast"]["series"][HEADLINE]["interval_90"][-1][1] += 0.5
    (bare / "seal.json").write_text(json.dumps(seal))
    assert "seal.json is not as it was sealed" in Outline(render(bare)).text


def test_a_forecast_beside_another_seal_gives_way_to_it(bare):
    change(bare, "forecast", metric="sources/owt/bpb")
    seen = Outline(render(bare))
    assert "forecast.json is not the one that was sealed" in seen.text
    assert f"What {HEADLINE} of run quickstart" in seen.text


def test_a_settlement_of_another_seal_is_not_shown(bare):
    change(bare, "settlement", sealed={"sha256": "0" * 64, "date": "then"})
    seen = Outline(render(bare))
    assert "settlement.json is about another seal" in seen.text
    assert "Premise broken" not in seen.text


def test_a_run_in_progress_is_shown_as_far_as_it_is(tmp_path):
    folder, _ = fake_forecast.make(tmp_path, steps=200, finished=False)
    change(folder, "settlement", finished=False)
    document = render(folder)
    seen = Outline(document)
    assert "its run is at step 200 of 480" in seen.text
    assert "The run is at step 200 of 480, 42% of its training." in seen.text
    assert "Forecasts after 40% of the run" in seen.text
    assert "so far: 40% of the run, not its end" in seen.text
    assert "seen" not in chart(document, "Ladder")
    assert len(chart(document, "Trajectory")["run"]["x"]) == 8


@pytest.mark.parametrize("kept", [("ladder",), ("forecast",), ("seal",), ("ladder", "seal"), ()])
def test_a_folder_with_a_part_of_the_files_has_a_page(bare, kept):
    for file in {"ladder", "forecast", "seal", "settlement"} - set(kept):
        (bare / f"{file}.json").unlink()
    if not kept:
        with pytest.raises(ValueError, match="is no forecast: it has no"):
            render(bare)
        return
    seen = Outline(render(bare))
    assert ("Nothing is forecast from it yet" in seen.text) == (kept == ("ladder",))
    assert "its run is not here" in seen.text


def test_a_settled_run_that_is_not_here_is_shown_by_its_settlement(own):
    folder, run = own
    before = chart(render(folder), "Trajectory")["run"]
    shutil.rmtree(run)
    document = render(folder)
    assert "settled by run quickstart, which is not here" in Outline(document).text
    assert chart(document, "Trajectory")["run"] == before
    assert fixed(last_headline(), PLACES) in row(document, HEADLINE)


def test_three_rungs_seen_at_their_end_alone_have_a_page(tmp_path):
    few = made("few", flops=(1e12, 3e12, 1e13), seeds=(1, 1, 1), noise=0.004, ends=True)
    folder = fake_forecast.put(tmp_path / "few", ladder=few, forecast=forecast(few))
    document = render(folder)
    assert chart(document, "Trajectory")["bands"] == ["whisker", "whisker"]
    seen = Outline(document)
    assert "from 3 smaller runs of 3 sizes" in seen.text
    assert "so no back-test" in seen.text


def test_a_forecast_that_stops_before_the_end_says_so(bare):
    for file in ("seal", "settlement"):
        (bare / f"{file}.json").unlink()
    tree = fake_forecast.foretold().plain()
    for one in tree["series"].values():
        for key in ("central", "interval_50", "interval_90", "alpha", "A", "E"):
            one[key] = [*one[key][:9], *[None] * 11]
    fake_forecast.put(bare, forecast=tree)
    document = render(bare)
    seen = Outline(document)
    assert "will be after 45% of it" in seen.text
    assert "Nothing is forecast beyond 45% of training" in seen.text
    law = chart(document, "Ladder")
    assert law["forecast"]["x"] == pytest.approx([0.45 * fake_forecast.ladder().target.flops])


def test_no_value_of_a_wrong_kind_breaks_the_page(bare):
    odd = [None, 3, -1.5, "x", HOSTILE, [], [1, "a"], {}, {"a": {"b": 2}}, True, [[1, 2]]]
    rng = np.random.default_rng(0)
    for file in ("seal", "settlement", "ladder", "forecast"):
        if file == "forecast":  # a seal's own would be shown
            (bare / "seal.json").unlink()
            (bare / "settlement.json").unlink()
        whole = (bare / f"{file}.json").read_text()
        for _ in range(8):
            tree = json.loads(whole)
            here = tree
            for _ in range(int(rng.integers(0, 5))):
                keys = list(here) if isinstance(here, dict) else range(len(here))
                below = [key for key in keys if isinstance(here[key], dict | list) and here[key]]
                if not below:
                    break
                here = here[below[int(rng.integers(len(below)))]]
            keys = list(here) if isinstance(here, dict) else range(len(here))
            here[keys[int(rng.integers(len(keys)))]] = odd[int(rng.integers(len(odd)))]
            (bare / f"{file}.json").write_text(json.dumps(tree))
            Outline(render(bare))
        (bare / f"{file}.json").write_text(whole)


def test_hostile_text_stays_text(own):
    folder, run = own
    tree = fake_forecast.foretold().plain()
    tree |= {"ladder": HOSTILE, "form": HOSTILE, "conditions": {HOSTILE: HOSTILE}}
    tree["target"]["name"] = HOSTILE
    tree["series"][f"{HOSTILE}/bpb"] = tree["series"]["sources/owt/bpb"]
    tree["health"][HOSTILE] = tree["health"]["grad_norm"]
    fake_forecast.put(folder, forecast=tree)
    (folder / "seal.json").unlink()
    shutil.rmtree(run)
    fake_forecast.begin(run, None, steps=3, finished=False)
    change(folder, "settlement", sealed=None, notes=[HOSTILE], retroactive=HOSTILE)
    ladder = fake_forecast.ladder().plain()
    ladder["runs"][0] |= {"run": HOSTILE, "rung": HOSTILE}
    fake_forecast.put(folder, ladder=ladder)
    for document in (write_forecast(folder).read_text(encoding="utf-8"), page.render(run)):
        seen = Outline(document)
        assert not seen.named("img")
        assert [one.get("type") for one in seen.named("script")].count(None) == 1
        assert seen.text.count("alert(1)") >= 3


def test_all_forecasts_are_listed_with_what_became_of_them(bare):
    root = bare.parent
    fake_forecast.put(root / "other", forecast=fake_forecast.foretold("other"))
    (root / "other" / "report.html").write_text("")
    shutil.copytree(bare, root / "late")
    change(root / "late", "settlement", retroactive="for a reason")
    document = render(bare)
    links = [one["href"] for one in Outline(document).named("a") if "forecasts" not in one["href"]]
    assert [link for link in links if link.startswith("../")] == ["../other/report.html"]
    listed = document[document.index('id="forecasts"') :]
    assert re.findall(r"Not settled|Retroactive\. ", listed) == ["Retroactive. ", "Not settled"]
    held = score(fake_forecast.foretold().headline, last_headline())["inside_90"]
    assert f"{int(held)} of 1 that were sealed before their run are inside 90 %" in listed


def test_a_run_that_was_forecast_has_it_on_its_page(own):
    folder, run = own
    document = page.render(run)
    assert re.search("<h2>Forecast</h2>", document)
    assert chart(document, "Trajectory")["run"] == chart(render(folder), "Trajectory")["run"]
    assert "at its end" in Outline(document).text
    links = [one["href"] for one in Outline(document).named("a")]
    assert "../../forecasts/rise/report.html" in links


def test_a_run_without_a_forecast_has_no_section_of_it(own):
    folder, run = own
    shutil.rmtree(folder.parent)
    (run / "seal.json").unlink()
    assert "<h2>Forecast</h2>" not in page.render(run)


def test_a_run_that_was_moved_is_shown_by_its_copy_of_the_seal(own, tmp_path):
    shutil.move(own[1], tmp_path / "elsewhere")
    document = page.render(tmp_path / "elsewhere")
    assert "<h2>Forecast</h2>" in document
    assert "The whole forecast" not in document


def test_a_forecast_finds_a_run_by_its_config_and_prefers_the_one_with_its_seal(tmp_path):
    seal = fake_forecast.sealed()
    folder = fake_forecast.put(
        tmp_path / "forecasts" / "rise", forecast=fake_forecast.foretold(), seal=seal
    )
    fake_forecast.begin(tmp_path / "runs" / "a", None, steps=5)
    found = read_forecast(folder)
    assert found.run_folder is not None
    assert found.run_folder.name == "a"
    assert found.retroactive
    document = page.render(tmp_path / "runs" / "a")
    assert "Retroactive. Nothing shows" in Outline(document).text
    fake_forecast.begin(tmp_path / "runs" / "b", seal, steps=3, finished=False)
    found = read_forecast(folder)
    assert found.run_folder is not None
    assert found.run_folder.name == "b"
    assert found.retroactive is None


def test_a_seal_named_by_a_path_leads_nowhere(tmp_path):
    run = fake_forecast.begin(tmp_path / "runs" / "a", None, steps=2, finished=False)
    fake_forecast.put(tmp_path / "outside", seal=fake_forecast.sealed())
    (tmp_path / "forecasts").mkdir()
    (run / "seal.json").unlink(missing_ok=True)
    (run / "events.jsonl").unlink()
    (run / "metrics.jsonl").unlink()
    with Record.open(run) as log:
        log.event("seal", forecast="../outside", sha256=fake_forecast.sealed().sha256)
    assert "<h2>Forecast</h2>" not in page.render(run)
