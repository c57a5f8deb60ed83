"""A page that needs nothing else: own style and script, and a policy that forbids every request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files

from shoal.report.markup import Html, el


def frame(title: str, header: Html, sections: Iterable[tuple[str, str, Html]], foot: str) -> str:
    """The whole document.

    Args:
        title: of the window.
        header: what stands above the sections.
        sections: (anchor, heading, content).
        foot: one line at the end.
    """
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("link", rel="icon", href="data:,"),
        el("style", Html(style)),
    )
    parts = list(sections)
    links = [el("li", el("a", heading, href=f"#{anchor}")) for anchor, heading, _ in parts]
    body = el(
        "body",
        el("a", "Skip to the content", href="#main", class_="skip"),
        el("nav", el("ol", links), aria_label="Sections"),
        el(
            "main",
            header,
            [el("section", el("h2", heading), made, id=anchor) for anchor, heading, made in parts],
            el("footer", el("p", foot)),
            id="main",
        ),
        el("script", Html(script)),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return files("shoal.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
