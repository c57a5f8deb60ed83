"""`shoal report`: the page of a run as training left it, and of a forecast."""

import dataclasses
import json
from html.parser import HTMLParser

import pytest

from report import fake_forecast
from scaling.ladders import made
from shoal.jobs.forecast import public
from shoal.jobs.report import corridor, report
from shoal.scaling.forecast import forecast


class Headings(HTMLParser):
    def __init__(self):
        super().__init__()
        self.inside, self.found = False, []

    def handle_starttag(self, tag, attrs):
        self.inside = tag in ("h1", "h2", "h3")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.found.append(data)


def test_a_trained_run_has_a_page_before_it_is_evaluated(copied):
    run = copied()
    found = report("tiny")
    assert found == {"run": str(run), "report": str(run / "report.html")}
    page = (run / "report.html").read_text()
    headings = Headings()
    headings.feed(page)
    assert len(headings.found) > 5
    for word in ("tiny", "own text", "NOASSERTION", "router", "tokens/s"):
        assert word.lower() in page.lower(), word
    assert "not sound" not in page


def test_a_run_that_is_not_there_is_refused(copied):
    copied()
    with pytest.raises(ValueError, match="there are: tiny"):
        report("tyni")


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """SHOAL_HOME with a forecast of another name than its run: both folders."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    return fake_forecast.make(tmp_path)


@pytest.mark.parametrize("name", ["rise", "quickstart"])
def test_a_forecast_and_its_run_are_written_by_either_name(shown, name):
    folder, run = shown
    assert report(name) == {
        "run": str(run),
        "report": str(run / "report.html"),
        "forecast": str(folder),
        "forecast_report": str(folder / "report.html"),
    }
    assert "<h2>Forecast</h2>" in (run / "report.html").read_text()
    assert (folder / "report.html").read_text().count('class="band c1"') >= 3


def test_a_forecast_whose_run_is_not_here_has_a_page_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    ladder = public()
    folder = fake_forecast.put(tmp_path / "x", ladder=ladder, forecast=forecast(ladder))
    page = str(folder / "report.html")
    assert report(str(folder)) == {"forecast": str(folder), "forecast_report": page}


def test_a_name_of_neither_is_refused(shown):
    with pytest.raises(ValueError, match=r"no run 'rises'.*nor is it a forecast"):
        report("rises")


@pytest.mark.parametrize("asymptote", [None, 0.9, (0.7, 1.1)])
def test_the_bands_end_with_the_interval_of_the_forecast(tmp_path, asymptote):
    ladder = made(asymptote=0.9, noise=0.01)
    found = forecast(ladder, asymptote=asymptote)
    rows = corridor(fake_forecast.put(tmp_path / "made", ladder=ladder, forecast=found))
    head, flops = found.headline, [run.flops for run in ladder.runs]
    assert rows[-1][0] == pytest.approx(ladder.target.flops)
    assert rows[-1][1:] == pytest.approx([*head.interval_90[-1], *head.interval_50[-1]], rel=1e-6)
    assert rows[0][0] == pytest.approx(min(flops))
    widths = [outer_high - outer_low for _, outer_low, outer_high, _, _ in rows]
    assert max(widths) == widths[-1]
    for compute, low, high, inner_low, inner_high in rows:
        assert low <= inner_low < inner_high <= high
        assert low <= head.E[-1] + head.A[-1] * compute ** -head.alpha[-1] <= high


def test_bands_follow_a_forecast_that_stops_early(tmp_path):
    ladder = made(noise=0.01)
    cut = dataclasses.replace(
        ladder,
        runs=tuple(
            dataclasses.replace(
                run,
                series={name: (*values[:9], *[None] * 11) for name, values in run.series.items()},
            )
            for run in ladder.runs
        ),
    )
    found = forecast(cut)
    rows = corridor(fake_forecast.put(tmp_path / "made", ladder=cut, forecast=found))
    assert rows[-1][0] == pytest.approx(0.45 * ladder.target.flops)
    assert rows[-1][1:3] == pytest.approx(found.headline.interval_90[8], rel=1e-6)


def test_there_are_no_bands_where_the_files_do_not_give_them(tmp_path):
    folder = fake_forecast.put(tmp_path / "made", ladder=made())
    assert corridor(folder) == []
    (folder / "forecast.json").write_text(json.dumps({"ladder": 3}))
    assert corridor(folder) == []
