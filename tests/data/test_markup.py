"""Text out of markup: what a reader sees, whatever the page does, in linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.markup import decoded, html_text, metamath_text, po_text, without_markup
from shoal.data.roff import man_text


def test_a_page_gives_its_text_by_blocks():
    page = """<!DOCTYPE html><html><head><title>Title</title><meta charset=utf-8>
    <style>p { color: red }</style></head><body><h1>One &amp; two</h1><p>A  line
    goes on, <b>bold</b>ly.<br>Next</p><ul><li>first<li>second</ul>
    <table><tr><td>a</td><td>b</td></tr></table></body></html>"""
    assert html_text(page) == (
        "One & two\n\nA line goes on, boldly.\nNext\n\nfirst\nsecond\n\na\tb\n"
    )


@pytest.mark.parametrize(
    "furniture",
    [
        "<script>if (a < b) document.write('<p>gone</p>')</script>",
        "<SCRIPT type='x'>gone</SCRIPT >",
        "<style>gone</style>",
        "<nav>gone <nav>gone</nav> gone</nav>",
        "<!-- gone <p>gone</p> -->",
        '<div class="wide navbar">gone <div>gone</div> gone</div>',
        "<ul id=docnav><li>gone</li></ul>",
        "<div role='navigation'>gone</div>",
        "<?php gone ?>",
        "<svg><title>gone</title></svg>",
        "<footer>gone</footer>",
        "<noscript>gone</noscript>",
    ],
)
def test_what_is_no_text_of_the_page_goes(furniture: str):
    assert html_text(f"<p>before</p>{furniture}<p>after</p>") == "before\n\nafter\n"


@pytest.mark.parametrize("kept", ["<div class=navigator>kept</div>", "<p id='n'>kept</p>"])
def test_what_only_looks_like_furniture_stays(kept: str):
    assert html_text(kept) == "kept\n"


def test_white_space_stays_where_it_is_text():
    page = "<p>a</p><pre>def f(x):\n    return  x &lt; 2\n</pre><p>b   c</p>"
    assert html_text(page) == "a\n\ndef f(x):\n    return  x < 2\n\nb c\n"


def test_a_sign_that_is_no_tag_is_text():
    assert html_text("<p>1 < 2 and a<3</p><p title='>'>x</p>") == "1 < 2 and a<3\n\nx\n"


@given(st.text(st.sampled_from("<>/!-pa \"'=&;]["), max_size=300))
def test_any_page_has_a_text(page: str):
    assert html_text(page).count("\0") == 0


@pytest.mark.parametrize(
    "piece",
    ["<", "<a", "<!--", "<a href=\"", "<a href='\"", "<script>", "</", "<nav>", "<![CDATA[", "&",
     "<div class=nav>", "<pre> ", "<p class='", "<title>"],
)  # fmt: skip
def test_a_hostile_page_takes_linear_time(piece: str):
    def seconds(times: int) -> float:
        started = time.process_time()
        html_text(piece * times)
        return time.process_time() - started

    seconds(100)
    # Quadratic work would take sixteen times as long for four times as much, and minutes in all.
    assert seconds(20_000) < 8 * seconds(5_000) + 0.5


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("é".encode(), "", "é"),
        (b"\xe9", "iso-8859-1", "é"),
        (b"\x93", "latin-1", "“"),
        (b"<meta charset='windows-1251'>\xe9", "", "<meta charset='windows-1251'>й"),
        (b'<?xml version="1.0" encoding="koi8-r"?>\xc9', "", None),
        ("é".encode("utf-16"), "utf-8", "é"),
        ("\ufeffé".encode(), "latin-1", "é"),
        ("é".encode(), "no-such-charset", "é"),
        ("é".encode(), "ascii", "é"),
        (b"\xe9", "utf-8", None),
        (b"\xe9", "", None),
    ],
)
def test_the_charset_is_the_marks_the_servers_or_the_pages_own(
    data: bytes, charset: str, text: str | None
):
    found = decoded(data, charset, markup=True)
    if data.startswith(b"<?xml"):
        assert found is not None
        assert found.endswith("и")
    else:
        assert found == text


def test_bytes_in_no_charset_are_handed_on_to_be_rejected():
    assert without_markup(b"<p>caf\xe9</p>", "html") == b"<p>caf\xe9</p>"
    assert without_markup("<p>café</p>".encode(), "html") == "café\n".encode()


def test_help_pages_lose_their_credits():
    page = """<page xmlns="http://projectmallard.org/1.0/"><info><credit><name>Jane Roe</name>
    <email>jane@example.test</email></credit></info><title>Sticky keys</title>
    <steps><item><p>Open the <gui>Panel</gui>.</p></item></steps></page>"""
    assert without_markup(page.encode(), "mallard") == b"Sticky keys\n\nOpen the Panel.\n"


def test_a_manual_page_is_filled_and_keeps_its_examples():
    page = r""".\" a comment
.TH CAT 1 2026 "GNU" "User Commands"
.de XX
.B gone
..
.SH NAME
cat \- concatenate
files
.SH OPTIONS
.TP
\fB\-A\fR, \fB\-\-show\-all\fR
equivalent to
.BR \-vET ;
see
.I "other pages"
.nf
  x \e
  y
.fi
na\[u00EF]ve \(lqquotes\(rq \*(aqs
"""
    assert man_text(page) == (
        "CAT(1)\n\nNAME\n\ncat - concatenate files\n\nOPTIONS\n\n"
        "-A, --show-all equivalent to -vET; see other pages\n\n  x \\\n  y\n\n"
        "naïve “quotes” 's\n"
    )
    assert man_text(".so man1/cat.1\n") == ""


def test_lines_of_chinese_and_japanese_join_without_a_space():
    assert man_text(".SH 名前\n基本的には\n電池の\nfile\n状態\n") == (
        "名前\n\n基本的には電池の file 状態\n"
    )


def test_translations_are_taken_without_originals_and_header():
    catalog = r"""# comment
msgid ""
msgstr ""
"Language: de\n"

#, python-format
msgid "Hello"
msgstr "Hallo \"%s\""

msgid "A long "
"message"
msgstr ""
"Eine lange "
"Nachricht\n"

msgid "day"
msgid_plural "days"
msgstr[0] "Tag"
msgstr[1] "Tage"

msgid "untranslated"
msgstr ""
"""
    assert po_text(catalog) == 'Hallo "%s"\nEine lange Nachricht\nTag\nTage\n'


def test_proofs_go_and_statements_stay():
    database = "$( Modus ponens. $)\nax-mp $a |- ps $.\nth $p |- ph $= ( a b ) ABC $.\n$( End $)\n"
    assert metamath_text(database) == (
        "$( Modus ponens. $)\nax-mp $a |- ps $.\nth $p |- ph $.\n$( End $)\n"
    )
