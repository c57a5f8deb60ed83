"""HTML that is escaped by its type, and the ways a number is written.

A `str` is text from somewhere and is escaped; only `Html`, which `el` returns, goes in as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

NONE = "\N{EN DASH}"
_ROUNDS_UP = 0.9995  # 999,500 with three digits is 1.00M
MINUS = "\N{MINUS SIGN}"
SCALES = ((1e15, "Q"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_VOID = {"br", "col", "link", "meta"}
# Control characters and lone surrogates are no HTML and cannot be stored; \t and \n are text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Html(str):
    """Markup that is safe to put into the page."""

    __slots__ = ()


Child = str | int | float | None | Iterable[Any]


def text(value: object) -> Html:
    """Any text as markup; what cannot be shown becomes the replacement character."""
    return Html(escape(_UNPRINTABLE.sub("\ufffd", str(value))))


def join(*children: Child) -> Html:
    """Children one after another; None is left out, `str` is escaped."""
    return Html("".join(_pieces(children)))


def _pieces(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield child
        elif isinstance(child, str | int | float):
            yield text(child)
        else:
            yield from _pieces(child)


def el(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element: `class_` means class, `aria_label` aria-label; None and False leave one out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        parts.append(spelled if value is True else f'{spelled}="{text(value)}"')
    start = Html(f"<{' '.join(parts)}>")
    return start if name in _VOID else join(start, *children, Html(f"</{name}>"))


def table(
    caption: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[Child]],
    *,
    foot: Iterable[Sequence[Child]] = (),
    named: bool = True,
) -> Html:
    """A table that scrolls by itself where it is too wide; the first cell of a row is its header.

    Args:
        caption: what the table shows, for everyone.
        columns: heading to class of its cells: "", "n" (a number) or "s" (never broken).
        rows: cells; a cell that is None is shown as missing.
        foot: rows that sum up.
        named: the caption is seen; False where a heading just above says the same.
    """
    classes = [kind or None for kind in columns.values()]

    def line(cells: Sequence[Child]) -> Html:
        made = [
            el("td" if place else "th", NONE if cell is None else cell, **attributes(place))
            for place, cell in enumerate(cells)
        ]
        return el("tr", made)

    def attributes(place: int) -> dict[str, object]:
        return {"class_": classes[place], "scope": None if place else "row"}

    heads = [el("th", name, class_=kind or None, scope="col") for name, kind in columns.items()]
    feet = [line(cells) for cells in foot]
    return el(
        "div",
        el(
            "table",
            el("caption", caption, class_=None if named else "unseen"),
            el("thead", el("tr", heads)),
            el("tbody", [line(cells) for cells in rows]),
            el("tfoot", feet) if feet else None,
        ),
        class_="table",
        role="region",
        tabindex=0,
        aria_label=caption,
    )


def missing(what: str) -> Html:
    """Says plainly that the record has nothing to show here."""
    return el("p", f"No data: {what}", class_="none")


def number(value: object) -> float | None:
    """The value where it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def count(value: object) -> str:
    """A whole number in full: 4,412,672."""
    found = number(value)
    return NONE if found is None else f"{found:,.0f}"


def compact(value: object) -> str:
    """Three digits and a scale: 4.41M."""
    found = number(value)
    if found is None:
        return NONE
    scale, unit = next(((s, u) for s, u in SCALES if abs(found) >= s * _ROUNDS_UP), (1.0, ""))
    return f"{_digits(found / scale, 3)}{unit}"


def size(value: object) -> str:
    """Bytes in decimal units: 6.52 MB."""
    found = number(value)
    if found is None:
        return NONE
    scales = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    scale, unit = next(((s, u) for s, u in scales if found >= s * _ROUNDS_UP), (1.0, "B"))
    return f"{_digits(found / scale, 3) if scale > 1 else count(found)} {unit}"


def fixed(value: object, places: int) -> str:
    """With so many decimals, also zeros."""
    found = number(value)
    return NONE if found is None else f"{found:,.{places}f}".replace("-", MINUS)


def signed(value: object, places: int) -> str:
    """With its sign, and a true minus."""
    found = number(value)
    return NONE if found is None else f"{found:+.{places}f}".replace("-", MINUS)


def significant(value: object) -> str:
    """Four digits, with an exponent where that is shorter."""
    found = number(value)
    if found is None:
        return NONE
    if found and not 1e-3 <= abs(found) < 1e6:
        mantissa, exponent = f"{found:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", MINUS)
    return _digits(found, 4).replace("-", MINUS)


def _digits(value: float, digits: int) -> str:
    rounded = float(f"{value:.{digits - 1}e}")
    magnitude = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(0, digits - 1 - magnitude)}f}"


def duration(value: object) -> str:
    """Seconds in the two units that matter: 3 min 12 s."""
    seconds = number(value)
    if seconds is None:
        return NONE
    if 0 < seconds < 10:
        return f"{seconds:.{1 if seconds >= 1 else 2}f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def moment(value: object) -> datetime | None:
    """The time of an ISO text; None where it is not one."""
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None


def plain(value: Any, *, grouped: bool = True) -> str:
    """A configuration's or event's value on one line; `grouped` is for reading, not copying."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return ("yes" if value else "no") if grouped else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if grouped and abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if grouped and value.is_integer() and 1e4 <= abs(value) < 1e15:
            return f"{value:,.0f}"
        short = f"{value:.6g}".replace("e+", "e")
        return short if float(short) == value else repr(value)
    if isinstance(value, list | tuple):
        return ", ".join(plain(item, grouped=grouped) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inner(item, grouped=grouped)}" for key, item in value.items())
    return str(value)


def _inner(value: Any, *, grouped: bool) -> str:
    """A value inside another: in parentheses where it has parts of its own."""
    told = plain(value, grouped=grouped)
    return f"({told})" if isinstance(value, list | tuple | Mapping) else told


def pairs(items: Iterable[tuple[str, Child]]) -> Html:
    """Names and values, for lists that are no table."""
    return el("dl", [join(el("dt", key), el("dd", value)) for key, value in items], class_="pairs")
