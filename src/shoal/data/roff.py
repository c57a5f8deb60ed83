"""Manual pages as text: roff macros and escapes off, headings and paragraphs kept.

The `man` macros, and of `mdoc` what is plain; lines are filled as on the page, except in examples;
tables keep their rows. Page formatting, conditions and macro definitions are left out.
"""

import re

FONTS = frozenset({".B", ".I", ".SM", ".SB", ".BR", ".RB", ".BI", ".IB", ".IR", ".RI", ".R"})
HEADINGS = frozenset({".SH", ".SS", ".Sh", ".Ss"})
PARAGRAPHS = frozenset({".PP", ".P", ".LP", ".TP", ".IP", ".HP", ".TQ", ".Pp", ".It", ".sp"})
# Macros of mdoc that take no text.
SILENT = frozenset({".Dd", ".Dt", ".Os", ".Bl", ".El", ".Bd", ".Ed", ".Bk", ".Ek", ".Sm"})
CHARACTERS = {
    "em": "—", "en": "\u2013", "hy": "-", "aq": "'", "dq": '"', "lq": "“", "rq": "”",
    "oq": "\u2018", "cq": "\u2019",
    "bu": "•", "co": "©", "rg": "®", "tm": "™", "ha": "^", "ti": "~",
    "rs": "\\",
    "ga": "`", "aa": "'", "mu": "\u00d7", "pl": "+", "mi": "-", "<=": "≤", ">=": "≥", "!=": "≠",
    "->": "→", "<-": "←", "sc": "§", "de": "°", "Fo": "«", "Fc": "»", "la": "⟨", "ra": "⟩",
    "ss": "ß", "ul": "_", "or": "|", "ba": "|", "sl": "/", "at": "@", "sh": "#", "Do": "$",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:f(?:\[[^\]\n]*\]|\(..|.)|[*](?:\[([^\]\n]*)\]|\((..)|(.))|\[([^\]\n]*)\]|\((..)"
    r"|s[-+]?\d{1,2}|[hvwD]'[^'\n]*'|([^\n]))"
)
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_COMMENT = re.compile(r'\\["#].*')
# Where a line of Chinese, Japanese or Korean text goes on, no space belongs.
WIDE = "\u2e80"


def man_text(text: str) -> str:
    """The text of a page; empty where it only includes another one."""
    out: list[str] = []
    skipping = ""
    filling = True
    for line in text.split("\n"):
        if skipping:
            skipping = "" if line.startswith(skipping) else skipping
            continue
        if line.startswith(('.\\"', "'\\\"")):
            continue
        if not line.startswith((".", "'")):
            _add(out, _plain(line), fill=filling)
            continue
        macro, _, rest = f".{line[1:].lstrip()}".partition(" ")
        if macro in (".de", ".ig", ".am"):
            skipping = f".{rest.split()[1]}" if macro == ".de" and len(rest.split()) > 1 else ".."
        elif macro in (".nf", ".EX", ".TS", ".Bd"):
            filling = False
            out.append("")
        elif macro in (".fi", ".EE", ".TE", ".Ed"):
            filling = True
            out.append("")
        else:
            found = _macro(macro, rest)
            if len(found) == 1 and found[0]:
                _add(out, found[0], fill=filling)
            else:
                out += found
    joined = re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip("\n")
    return f"{joined}\n" if joined.strip() else ""


def _add(out: list[str], line: str, *, fill: bool) -> None:
    before = out[-1] if out else ""
    if not (fill and before and line) or line[0] in " \t":
        out.append(line)
        return
    out[-1] = f"{before}{'' if before[-1] > WIDE and line[0] > WIDE else ' '}{line}"


def _macro(macro: str, rest: str) -> list[str]:
    arguments = [found[1] or found[2] or "" for found in _ARGUMENT.finditer(rest)]
    words = [_plain(argument.replace('""', '"')) for argument in arguments]
    if macro == ".TH":
        return [f"{words[0]}({words[1]})"] if len(words) > 1 else words[:1]
    if macro in HEADINGS:
        return ["", " ".join(words), ""]
    if macro in PARAGRAPHS:
        labeled = macro in (".IP", ".It") and words
        return ["", words[0] if macro == ".IP" else " ".join(words)] if labeled else [""]
    if macro in FONTS:
        # Two fonts in turn join their arguments; one font parts them.
        return [("" if len(macro) == 3 and macro != ".SM" else " ").join(words)]
    if macro in (".UR", ".MT"):
        return words[:1]
    if macro in SILENT or not (macro[1:2].isupper() and macro[2:3].islower()):
        return []
    return [" ".join(words)] if words else []


def _plain(text: str) -> str:
    return _ESCAPE.sub(_escape, _COMMENT.sub("", text))


def _escape(found: re.Match[str]) -> str:
    named = found[1] or found[2] or found[4] or found[5]
    if named:
        if re.fullmatch(r"u[0-9A-F]{4,5}", named):
            return chr(int(named[1:], 16))
        return CHARACTERS.get(named, "")
    sign = found[6] or ""
    return {"-": "-", "e": "\\", "\\": "\\", "~": " ", " ": " ", "0": " ", "t": "\t", "'": "'",
            "`": "`", ".": ".", "(": "("}.get(sign, "")  # fmt: skip
