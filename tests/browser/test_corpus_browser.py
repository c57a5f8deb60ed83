"""The page of a corpus as a browser sees it; `make test-browser` runs these."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.chromium import Page, browse
from report.test_corpus import found
from shoal.report import corpus

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    with browse(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def audited(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("audits") / "small.html"
    corpus.write(found(), path)
    return path


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_runs_nothing_of_a_corpus_and_asks_for_nothing(browser, audited, width, dark):
    browser.view(width, 900, dark=dark)
    browser.open(audited)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.requests() == [audited.as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('h1, img, main script').length") == 1
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(16, 22, 28)" if dark else "rgb(255, 255, 255)")


def test_the_overview_leads_to_the_section_of_a_stage(browser, audited):
    browser.view(1280, 900)
    browser.open(audited)
    browser.evaluate("document.querySelector('#stages table a').click()")
    assert browser.evaluate("location.hash") == "#stage-near"
    assert browser.evaluate("document.querySelector(location.hash + ' h2').textContent") == (
        "Near duplicates"
    )
