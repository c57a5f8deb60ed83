"""The report as a browser sees it; `make test-browser` runs these, they need Chromium."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browser.chromium import Page, browse, find
from report import fake_forecast, fake_run
from shoal.report import folder, page
from shoal.report.forecast import write_forecast

pytestmark = pytest.mark.browser
SHOWN = "document.querySelector('#training .legend output').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    with browse(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    return page.write(fake_run.make(tmp_path_factory.mktemp("runs") / "full"))


def long_run(run: folder.RunFolder, steps: int, num_layers: int) -> folder.RunFolder:
    rng = np.random.default_rng(0)
    place = np.arange(1, steps + 1)
    keys = [*fake_run.metric(1, rng)]
    scalars = {key: 1 + rng.gamma(2, 0.1, steps) for key in keys if not key.startswith("router")}
    scalars |= {"tokens": place * 46_137_344.0, "loss": 2 + 9 * np.exp(-place / 2_000)}
    layers = {
        f"router/{key}": 0.05 + rng.random((steps, num_layers))
        for key in ("entropy", "load_cv", "load_max", "bias_abs_max")
    }
    load = np.exp(rng.normal(0, 0.2, (num_layers, 384)))
    return replace(
        run,
        metrics=folder.Metrics(steps=place, scalars=scalars, layers=layers, load=(steps, load)),
        events=[{"kind": "checkpoint", "step": step, "attempt": 1} for step in range(4_000)],
        evals=[fake_run.evaluation(step) for step in range(0, steps, 2_000)],
    )


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser, report, width, dark):
    browser.view(width, 900, dark=dark)
    browser.open(report)
    assert browser.requests() == [report.as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(16, 22, 28)" if dark else "rgb(255, 255, 255)")


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory) -> list[Path]:
    """A settled forecast, one whose run is in progress, and one that is hardly anything."""
    made = []
    for name, steps in (("settled", 480), ("going", 200)):
        home = tmp_path_factory.mktemp(name)
        made.append(fake_forecast.make(home, steps=steps, finished=steps == 480)[0])
    lone = fake_forecast.put(tmp_path_factory.mktemp("lone") / "l", ladder=fake_forecast.ladder())
    return [write_forecast(folder) for folder in (*made, lone)]


OVERLAPS = """(() => {
  let found = [];
  for (const plot of document.querySelectorAll("svg.plot")) {
    const boxes = [...plot.querySelectorAll("text.tick")].map((one) => one.getBoundingClientRect());
    boxes.forEach((a, n) => boxes.slice(n + 1).forEach((b) => {
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        found.push(plot.getAttribute("aria-label").slice(0, 40));
    }));
  }
  return found;
})()"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_pages_of_forecasts_fit_ask_for_nothing_and_have_labels_apart(
    browser, forecasts, width, dark
):
    browser.view(width, 900, dark=dark)
    for path in forecasts:
        browser.open(path)
        assert browser.requests() == [path.as_uri()]
        assert browser.complaints() == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(OVERLAPS) == []


def test_bands_are_seen_behind_the_curves_in_both_schemes(browser, forecasts):
    """The area of the widest band on screen, and that it has a color of its own."""
    for dark in (False, True):
        browser.view(1280, 900, dark=dark)
        browser.open(forecasts[0])
        box = browser.box("#trajectory path.band")
        assert box["width"] > 500
        assert box["height"] > 10
        paint = browser.evaluate(
            "(s => [s.fill, s.fillOpacity])"
            "(getComputedStyle(document.querySelector('#trajectory path.band')))"
        )
        assert paint == ["rgb(90, 169, 240)" if dark else "rgb(11, 92, 173)", "0.15"]


def test_the_numbers_of_a_trajectory_follow_the_pointer(browser, forecasts):
    shown = "[...document.querySelectorAll('#trajectory .wide .legend output')].map(o => o.value)"
    browser.view(1280, 900)
    browser.open(forecasts[0])
    last = browser.evaluate(shown)
    assert len(last) == 2
    box = browser.box("#trajectory .plot")
    browser.move(box["left"] + 0.05 * box["width"], box["top"] + 20)
    early = browser.evaluate(shown)
    assert all(float(one) > float(other) for one, other in zip(early, last, strict=True))
    assert browser.complaints() == []


def test_400000_steps_make_a_page_under_6_mb_that_is_drawn_within_2_s(browser, report, tmp_path):
    run = long_run(folder.read(report.parent), 400_000, 24)
    path = tmp_path / "report.html"
    path.write_text(page.document(run), encoding="utf-8")
    assert path.stat().st_size < 6_000_000
    browser.view(1280, 900)
    assert browser.open(path) < 2
    assert browser.complaints() == []


def test_the_numbers_of_a_chart_follow_the_pointer_and_the_arrow_keys(browser, report):
    browser.view(1280, 900)
    browser.open(report)
    last = browser.evaluate(SHOWN)
    box = browser.box(".plot")
    browser.move(box["left"] + 2, box["top"] + 50)
    early = browser.evaluate(SHOWN)
    assert float(early) > 2 * float(last)
    browser.move(5, 5)
    assert browser.evaluate(SHOWN) == last
    browser.evaluate("document.querySelector('.frame').focus()")
    for _ in range(3):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
    assert browser.evaluate(SHOWN) != last
    assert browser.complaints() == []


def test_the_heatmap_names_the_expert_under_the_pointer(browser, report):
    browser.view(1280, 900)
    browser.open(report)
    box = browser.box(".plot.heat")
    browser.move(box["left"] + 0.5 * box["width"] / 16, box["top"] + 1.5 * box["height"] / 6)
    told = browser.evaluate("document.querySelector('[data-kind=heat] .where').textContent")
    assert told.startswith("layer 1, expert 0: ")


def test_hostile_text_runs_nothing(browser, tmp_path):
    hostile = (
        "</script><img src=x onerror=document.title='run'><script>document.title='run'</script>"
    )
    (tmp_path / "run.json").write_text(json.dumps({"name": hostile, "config": {hostile: hostile}}))
    path = page.write(tmp_path)
    browser.open(path)
    assert browser.requests() == [path.as_uri()]
    assert browser.evaluate("document.title").startswith("</script>")


def test_a_missing_browser_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(RuntimeError, match="install Chromium, or name it in CHROMIUM"):
        find()
