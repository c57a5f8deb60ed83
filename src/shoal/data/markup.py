"""Text out of markup: HTML, roff manual pages, Mallard help, translations, Metamath.

Every reader takes time linear in its input, whatever that is: it is written by strangers. HTML is
scanned, not parsed into a tree: scripts, styles, navigation and other furniture go, block elements
part lines, and white space collapses outside `pre`.
"""

import html
import re
from collections.abc import Callable

RAW = ("script", "style", "template", "noscript", "textarea", "svg", "math", "iframe", "select")
SKIPPED = frozenset({"nav", "head", "footer", "button", "form", "info", "links"})
_FURNITURE = """banner breadcrumb breadcrumbs docnav footer headerlink leftnav menu
    modules-nav nav navbar navbox navfooter navheader navigation related searchbox
    searchmenu sidebar-nav site-footer site-header sphinxsidebar
    sphinxsidebarwrapper toc_sub"""
FURNITURE = frozenset(_FURNITURE.split())
CONTAINERS = frozenset({"div", "ul", "ol", "table", "section", "aside", "header", "p", "a", "span"})
_BLOCKS = """address article aside blockquote body br caption center code-block dd desc div
    dl dt example fieldset figcaption figure h1 h2 h3 h4 h5 h6 header hr html item
    li list listing main note ol p page pre quote screen section steps summary
    synopsis table tbody terms tfoot thead title tr ul"""
BLOCKS = frozenset(_BLOCKS.split())
PARAGRAPHS = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "ul", "ol", "table", "dl"})
# Parts the cells of a row until all is tidied.
CELL = "\x1f"
VERBATIM = frozenset({"pre", "code-block", "listing", "screen"})

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_QUOTE_OR_END = re.compile(r"[\"'>]")
_NAMES = re.compile(
    r"(?:class|id|role)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))", re.IGNORECASE
)
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML_CHARSET = re.compile(rb"<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)")
_BLANKS = re.compile(r"[ \t\n\r\f]+")
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
HEAD_BYTES = 2_048


def without_markup(data: bytes, markup: str) -> bytes:
    """The text of a record; its bytes as they are where they are not text in its encoding."""
    text = decoded(data, markup=markup in ("html", "mallard"))
    return data if text is None else _READERS[markup](text).encode("utf-8", "surrogatepass")


def decoded(data: bytes, charset: str = "", *, markup: bool) -> str | None:
    """The characters of a page: by its byte-order mark, `charset`, its own word, or UTF-8.

    None where the bytes are neither in that encoding nor in UTF-8.
    """
    named = [encoding for mark, encoding in _MARKS if data.startswith(mark)] + [charset]
    if markup:
        head = data[:HEAD_BYTES]
        own = _XML_CHARSET.search(head) or _CHARSET.search(head)
        named.append(own[1].decode("ascii", "replace") if own else "")
    first = next((name for name in named if name), "utf-8")
    # Browsers read the two old names for Western text as their superset.
    first = "cp1252" if first.lower() in ("iso-8859-1", "latin-1", "us-ascii") else first
    for encoding in (first, "utf-8-sig"):
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    return None


def html_text(page: str) -> str:
    """What a reader sees of a page, one block a line, paragraphs parted by blank lines."""
    return _Page(page).text()


class _Page:
    """One pass over a page; `position` only grows."""

    def __init__(self, page: str) -> None:
        self.page, self.position = page, 0
        self.pieces: list[str] = []
        self.verbatim = 0
        self.skipping = ""  # the element that is left out, and how many of its name are open
        self.depth = 0

    def text(self) -> str:
        while (start := self.page.find("<", self.position)) >= 0:
            self._words(self.page[self.position : start])
            self.position = start
            self._angle()
        self._words(self.page[self.position :])
        return _tidied("".join(self.pieces))

    def _angle(self) -> None:
        page, start = self.page, self.position
        if page.startswith("<!--", start):
            self.position = self._after("-->", start + 4)
        elif page.startswith("<![CDATA[", start):
            end = self._after("]]>", start + 9)
            self._words(page[start + 9 : end - 3], plain=True)
            self.position = end
        elif page.startswith(("<!", "<?"), start):
            self.position = self._after(">", start + 2)
        elif tag := _TAG.match(page, start):
            end = self._tag_end(tag.end())
            self.position = end
            self._tag(tag[2].lower(), closing=bool(tag[1]), attributes=page[tag.end() : end])
        else:
            self._words("<", plain=True)
            self.position = start + 1

    def _tag(self, name: str, *, closing: bool, attributes: str) -> None:
        if self.skipping:
            if name == self.skipping and not attributes.endswith("/>"):
                self.depth += -1 if closing else 1
                self.skipping = self.skipping if self.depth else ""
            return
        if not closing and not attributes.endswith("/>"):
            if name in RAW:
                self.position = self._after_raw(name)
                return
            if name in SKIPPED or (name in CONTAINERS and _is_furniture(attributes)):
                self.skipping, self.depth = name, 1
                return
        if name == "title" and not closing:
            self.pieces.append("\n\n")
        elif name in BLOCKS:
            self.pieces.append("\n\n" if name in PARAGRAPHS else "\n")
        elif name in ("td", "th") and not closing:
            self.pieces.append(CELL)
        if name in VERBATIM:
            self.verbatim = max(0, self.verbatim + (-1 if closing else 1))

    def _words(self, words: str, *, plain: bool = False) -> None:
        if not words or self.skipping:
            return
        words = words if plain or "&" not in words else html.unescape(words)
        # A vertical tab stands for a space that is kept, until all is tidied.
        kept = words.replace(" ", "\v") if self.verbatim else _BLANKS.sub(" ", words)
        self.pieces.append(kept)

    def _after(self, mark: str, start: int) -> int:
        # What is never closed ends the page, so that no search fails twice.
        found = self.page.find(mark, start)
        return len(self.page) if found < 0 else found + len(mark)

    def _after_raw(self, name: str) -> int:
        found = re.compile(f"</{name}", re.IGNORECASE).search(self.page, self.position)
        return self._after(">", found.end()) if found else len(self.page)

    def _tag_end(self, start: int) -> int:
        while found := _QUOTE_OR_END.search(self.page, start):
            sign = found[0]
            if sign == ">":
                return found.end()
            # A quote without another after it is the last of its sign: this fails twice at most.
            close = self.page.find(sign, found.end())
            start = found.end() if close < 0 else close + 1
        return len(self.page)


def _is_furniture(attributes: str) -> bool:
    if "=" not in attributes:
        return False
    for found in _NAMES.finditer(attributes[:HEAD_BYTES]):
        names = (found[1] or found[2] or found[3] or "").lower().split()
        if not FURNITURE.isdisjoint(names):
            return True
    return False


def _tidied(text: str) -> str:
    lines = [
        line.strip(f" {CELL}").replace(CELL, "\t").replace("\v", " ").rstrip()
        for line in text.split("\n")
    ]
    joined = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return f"{joined}\n" if joined.strip() else ""


def po_text(text: str) -> str:
    """The translations of a gettext catalog, one a line; its header and comments are left out."""
    found: list[str] = []
    current: list[str] | None = None
    identity = ""
    for line in text.splitlines():
        if line.startswith("msgid "):
            identity, current = line[6:].strip(), None
        elif line.startswith("msgstr"):
            current = [line.partition('"')[2].rstrip().removesuffix('"')]
            # The catalog's header is the translation of the empty string.
            if identity != '""':
                found.append("")
        elif line.startswith('"') and current is not None:
            current.append(line.strip()[1:].removesuffix('"'))
        elif line.startswith('"'):
            identity += line
        else:
            current = None
        if current is not None and found and identity != '""':
            found[-1] = "".join(current)
    lines = (re.sub(r"\\(.)", _unescape, line) for line in found)
    return "".join(f"{line.strip()}\n" for line in lines if line.strip())


def _unescape(found: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(found[1], found[1])


def metamath_text(text: str) -> str:
    """A Metamath database without its proofs, which are packed codes: `$= ... $.` becomes `$.`."""
    pieces: list[str] = []
    position = 0
    while (start := text.find("$=", position)) >= 0:
        end = text.find("$.", start)
        pieces.append(text[position:start])
        position = len(text) if end < 0 else end
    pieces.append(text[position:])
    return re.sub(r"[ \t]+\n", "\n", "".join(pieces))


def _man_text(text: str) -> str:
    from shoal.data.roff import man_text

    return man_text(text)


_READERS: dict[str, Callable[[str], str]] = {
    "html": html_text,
    "mallard": html_text,
    "man": _man_text,
    "po": po_text,
    "metamath": metamath_text,
}
