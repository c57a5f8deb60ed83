"""Licenses: the SPDX ids that cards may name, and which of them leave a model's maker free.

Classes, in the order in which they bind:
  public domain  nothing is asked
  permissive     attribution at most
  weak copyleft  changed files stay under the license
  copyleft       derived works stay under the license (share-alike texts too)
  restricted     non-commercial, no derivatives, research only
  unknown        not stated, or a LicenseRef- that is not in the table
An expression joins ids by AND, OR, WITH and parentheses: AND binds by its strictest part, OR by its
freest, an exception (WITH) is left out of account. These classes are a reading aid, not advice.
"""

import re
from collections.abc import Iterator
from typing import Literal, get_args

LicenseClass = Literal[
    "public domain", "permissive", "weak copyleft", "copyleft", "restricted", "unknown"
]
CLASSES: tuple[LicenseClass, ...] = get_args(LicenseClass)
FREE: tuple[LicenseClass, ...] = ("public domain", "permissive")

_PUBLIC_DOMAIN = """0BSD CC0-1.0 CC-PDDC CC-PDM-1.0 PDDL-1.0 Unlicense WTFPL blessing MIT-0 SAX-PD
LicenseRef-Public-Domain"""
_PERMISSIVE = """AFL-3.0 Apache-1.1 Apache-2.0 Artistic-2.0 BSD-1-Clause BSD-2-Clause
BSD-2-Clause-Patent BSD-3-Clause BSD-3-Clause-Clear BSD-4-Clause BSD-Source-Code BSL-1.0
BlueOak-1.0.0 CC-BY-1.0 CC-BY-2.0 CC-BY-2.5 CC-BY-3.0 CC-BY-4.0 CDLA-Permissive-1.0
CDLA-Permissive-2.0 CNRI-Python ECL-2.0 EFL-2.0 FTL HPND ICU ISC Libpng MIT MS-PL MirOS NCSA
NIST-PD-fallback Linux-man-pages-copyleft-2-para NTP ODC-By-1.0 OFL-1.1 OGL-UK-3.0 OLDAP-2.8
OpenSSL PHP-3.01 PSF-2.0 PostgreSQL Python-2.0 Python-2.0.1 Ruby TCL UPL-1.0 Unicode-3.0
Unicode-DFS-2016 Vim W3C X11 Xnet ZPL-2.1 Zlib curl etalab-2.0 bzip2-1.0.6 WordNet"""
_WEAK = """APSL-2.0 Artistic-1.0 Artistic-1.0-Perl CDDL-1.0 CDDL-1.1 CPL-1.0 EPL-1.0 EPL-2.0
EUPL-1.1 EUPL-1.2 IPL-1.0 LGPL-2.0-only LGPL-2.0-or-later LGPL-2.1-only LGPL-2.1-or-later
LGPL-3.0-only LGPL-3.0-or-later LPPL-1.3c MPL-1.0 MPL-1.1 MPL-2.0 MS-RL"""
_COPYLEFT = """AGPL-3.0-only AGPL-3.0-or-later CC-BY-SA-1.0 CC-BY-SA-2.0 CC-BY-SA-2.5 CC-BY-SA-3.0
CC-BY-SA-4.0 CDLA-Sharing-1.0 CECILL-2.1 FSFULLR FreeBSD-DOC GFDL-1.1-only GFDL-1.1-or-later
GFDL-1.2-no-invariants-or-later GFDL-1.2-only GFDL-1.2-or-later GFDL-1.3-only GFDL-1.3-or-later
GPL-1.0-only GPL-1.0-or-later GPL-2.0-only GPL-2.0-or-later GPL-3.0-only GPL-3.0-or-later
Linux-man-pages-copyleft ODbL-1.0 OSL-3.0 QPL-1.0 Sleepycat"""
_RESTRICTED = """BUSL-1.1 CC-BY-NC-2.0 CC-BY-NC-3.0 CC-BY-NC-4.0 CC-BY-NC-ND-3.0 CC-BY-NC-ND-4.0
CC-BY-NC-SA-2.0 CC-BY-NC-SA-3.0 CC-BY-NC-SA-4.0 CC-BY-ND-3.0 CC-BY-ND-4.0 Elastic-2.0 SSPL-1.0"""
_UNKNOWN = "NOASSERTION NONE"

TABLE: dict[str, LicenseClass] = {
    name: kind
    for kind, names in zip(
        CLASSES,
        (_PUBLIC_DOMAIN, _PERMISSIVE, _WEAK, _COPYLEFT, _RESTRICTED, _UNKNOWN),
        strict=True,
    )
    for name in names.split()
}
EXCEPTIONS = frozenset(
    {
        "Autoconf-exception-3.0",
        "Bison-exception-2.2",
        "Classpath-exception-2.0",
        "Font-exception-2.0",
        "GCC-exception-3.1",
        "LLVM-exception",
        "Linux-syscall-note",
    }
)
_REFERENCE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z0-9.+-]+)")


def license_class(expression: str) -> LicenseClass:
    """How an SPDX expression binds, by the table above.

    Raises:
        ValueError: it is no SPDX expression, or names an id that the table does not have.
    """
    tokens = list(_tokens(expression))
    kind = _either(tokens, expression)
    if tokens:
        raise _wrong(expression, f"{tokens[0]!r} stands where AND, OR or the end belongs")
    return kind


def is_free(expression: str) -> bool:
    """Whether text under this license asks for attribution at most."""
    return license_class(expression) in FREE


def _tokens(expression: str) -> Iterator[str]:
    position = 0
    text = expression.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            raise _wrong(expression, f"{text[position:].strip()[:20]!r} is no part of one")
        yield found[1]
        position = found.end()


def _either(tokens: list[str], expression: str) -> LicenseClass:
    kinds = [_both(tokens, expression)]
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        kinds.append(_both(tokens, expression))
    return CLASSES[min(map(CLASSES.index, kinds))]


def _both(tokens: list[str], expression: str) -> LicenseClass:
    kinds = [_one(tokens, expression)]
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        kinds.append(_one(tokens, expression))
    return CLASSES[max(map(CLASSES.index, kinds))]


def _one(tokens: list[str], expression: str) -> LicenseClass:
    if not tokens or tokens[0] in ("AND", "OR", "WITH", ")"):
        raise _wrong(expression, "an id is missing")
    first = tokens.pop(0)
    if first == "(":
        kind = _either(tokens, expression)
        if not tokens or tokens.pop(0) != ")":
            raise _wrong(expression, "a parenthesis is not closed")
        return kind
    kind = TABLE.get(first) or ("unknown" if _REFERENCE.fullmatch(first) else None)
    if kind is None:
        raise _wrong(expression, f"{first!r} is not in the table of data/licenses.py")
    if tokens and tokens[0] == "WITH":
        tokens.pop(0)
        if not tokens or tokens.pop(0) not in EXCEPTIONS:
            raise _wrong(expression, f"the exception of {first} is not known")
    return kind


def _wrong(expression: str, why: str) -> ValueError:
    return ValueError(
        f"license={expression!r} is no SPDX expression ({why}); correct the id, or use "
        "LicenseRef-NAME, or NOASSERTION where nothing is stated"
    )
