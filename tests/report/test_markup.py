import math

import pytest

from shoal.report import markup
from shoal.report.markup import el, join, table, text


def test_text_is_escaped_and_markup_is_not():
    made = el("p", "a < b & c", el("b", '"quoted"'), title='"><script>')
    assert made == (
        '<p title="&quot;&gt;&lt;script&gt;">a &lt; b &amp; c<b>&quot;quoted&quot;</b></p>'
    )


def test_what_no_file_can_store_is_replaced():
    assert text("a\x00b\ud800c\x1b[0m\td\n") == "a\ufffdb\ufffdc\ufffd[0m\td\n"
    text("\udfff").encode()


def test_nothing_and_lists_are_children_too():
    assert join(None, ["a", [1, 2.5], None]) == "a12.5"
    assert el("br") == "<br>"
    assert el("a", "x", href=None, hidden=True, aria_label="y") == '<a hidden aria-label="y">x</a>'


def test_a_table_names_itself_and_heads_its_rows():
    made = table("Costs", {"Item": "", "Price": "n"}, [["fish", None]], foot=[["all", "3"]])
    assert "<caption>Costs</caption>" in made
    assert '<th scope="row">fish</th><td class="n">\N{EN DASH}</td>' in made
    assert '<tfoot><tr><th scope="row">all</th>' in made


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (markup.compact(4_412_672), "4.41M"),
        (markup.compact(999_700), "1.00M"),
        (markup.compact(0), "0.00"),
        (markup.compact(18.005e12), "18.0T"),
        (markup.compact("many"), markup.NONE),
        (markup.count(4_412_672.0), "4,412,672"),
        (markup.size(6_520_000), "6.52 MB"),
        (markup.size(12), "12 B"),
        (markup.fixed(-2.5, 2), "\N{MINUS SIGN}2.50"),
        (markup.signed(0.3512, 2), "+0.35"),
        (markup.significant(0.00012), "1.20e\N{MINUS SIGN}4"),
        (markup.significant(1234.5), "1,234"),
        (markup.significant(math.nan), markup.NONE),
        (markup.duration(0), "0 s"),
        (markup.duration(0.376), "0.38 s"),
        (markup.duration(192), "3 min 12 s"),
        (markup.duration(7_500), "2 h 05 min"),
        (markup.duration(6_600_000), "76 d 9 h"),
        (markup.plain(2.3e13), "23,000,000,000,000"),
        (markup.plain(2.3e13, grouped=False), "2.3e13"),
        (markup.plain({"a": {"b": 1}, "c": 2}), "a (b 1), c 2"),
        (markup.plain(0.1 + 0.2), "0.30000000000000004"),
        (markup.plain(True), "yes"),
        (markup.plain(20_261_103), "20,261,103"),
        (markup.plain(20_261_103, grouped=False), "20261103"),
        (markup.plain({"a": [1, None]}), "a (1, none)"),
    ],
)
def test_numbers_are_written_for_a_reader(written, expected):
    assert written == expected


def test_a_time_that_is_none_is_none():
    assert markup.moment("yesterday") is None
    assert markup.moment(None) is None
