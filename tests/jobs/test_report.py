"""`shoal report`: the page of a run as training left it."""

from html.parser import HTMLParser

import pytest

from shoal.jobs.report import report


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
