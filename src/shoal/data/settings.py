"""The settings of the stages between documents and tokens; each module says what it does."""

import math
from dataclasses import dataclass
from typing import Literal

from shoal.core.config import identity, placement


@dataclass(frozen=True, kw_only=True)
class NearConfig:
    """Near duplicates: candidates by MinHash, removal only where a kept one contains it.

    Attributes:
        shingles: what is hashed, runs of `shingle_length` words or characters.
        max_characters: of a document, its beginning is hashed only.
        ngram_words, min_containment: a document is removed if a kept one holds at least this share
            of its distinct word n-grams.
        exempt: names of sources from which nothing is removed.
    """

    shingles: Literal["words", "characters"] = identity("words")
    shingle_length: int = identity(5)
    bands: int = identity(32)
    rows: int = identity(4)
    max_characters: int = identity(500_000)
    seed: int = identity(42)
    ngram_words: int = identity(3)
    min_containment: float = identity(0.75)
    exempt: tuple[str, ...] = identity(())

    def __post_init__(self) -> None:
        for name in ("shingle_length", "bands", "rows", "max_characters", "ngram_words"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 < self.min_containment <= 1:
            raise ValueError(
                f"min_containment={self.min_containment}: use a share above 0, up to 1"
            )


# Marin's candidates: data that saturates less, for eight times the work (its reference pipeline).
MARIN_NEAR = NearConfig(shingles="characters", bands=26, rows=11)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Evaluation items that training text may not hold: a file, or an lm-eval task.

    Attributes:
        form: `jsonl` (plain, gz or zst), `text` (one item a line) or `lm-eval` (a task's name).
        path: of the file; for lm-eval the folder with further tasks, or empty.
        fields: of a JSON line, what is joined to the item's text; empty takes every string in it.
        sha256: of the file, pinned; empty for lm-eval tasks, whose items are hashed as found.
    """

    name: str = identity()
    form: Literal["jsonl", "text", "lm-eval"] = identity("jsonl")
    path: str = placement("")
    fields: tuple[str, ...] = identity(())
    sha256: str = identity("")


@dataclass(frozen=True, kw_only=True)
class DecontamConfig:
    """Benchmark text in training text: what is cut, or which documents go.

    Attributes:
        rule: `spans` cuts what matches, `documents` drops a document of which one paragraph has at
            least `paragraph_overlap` of its n-grams in a benchmark (the public run's rule).
        short_words: a benchmark text below `ngram_words` counts as one n-gram of its own length if
            it has so many words; shorter ones are not looked for.
        common_share, common_documents: an n-gram in more than this share of a source's sampled
            documents, and in at least so many, is boilerplate and proves nothing.
        across_documents, across_sources: so is one in so many sampled documents of so many sources.
        template_items, template_share: and one in so many items of its benchmark, and in more than
            this share of them.
        sample_documents: of each source, how many are looked at for boilerplate.
        allow_uncovered: lets a run begin whose evaluations are not in `benchmarks`.
    """

    rule: Literal["spans", "documents"] = identity("spans")
    ngram_words: int = identity(13)
    paragraph_overlap: float = identity(0.5)
    common_share: float = identity(0.005)
    common_documents: int = identity(5)
    short_words: int = identity(8)
    across_documents: int = identity(50)
    across_sources: int = identity(3)
    template_items: int = identity(10)
    template_share: float = identity(0.01)
    sample_documents: int = identity(5_000)
    allow_uncovered: bool = placement(False)
    benchmarks: tuple[Benchmark, ...] = identity(())

    def __post_init__(self) -> None:
        if self.ngram_words < 1 or not 0 < self.paragraph_overlap <= 1:
            raise ValueError(
                f"ngram_words={self.ngram_words}, paragraph_overlap={self.paragraph_overlap}: "
                "use at least one word and a share above 0, up to 1"
            )
        for name in ("short_words", "common_documents", "across_documents", "template_items"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        names = [benchmark.name for benchmark in self.benchmarks]
        if len(set(names)) != len(names):
            raise ValueError(f"benchmarks {names} repeat a name; give each its own")


@dataclass(frozen=True, kw_only=True)
class TopicsConfig:
    """Topics: many centroids by spherical k-means, grouped by weighted division.

    Attributes:
        embedding: `lexical` (TF-IDF and SVD), `onnx` (a sentence model at `model`) or `endpoint`
            (an OpenAI-compatible server at the URL `model`, its model named `model_name`).
        weight: what topics are balanced by; by `documents` long books do not become many topics.
        min_share: of the weight, in every topic at least.
    """

    embedding: Literal["lexical", "onnx", "endpoint"] = identity("lexical")
    model: str = identity("")
    model_name: str = identity("")
    dimensions: int = identity(64)
    sample_documents: int = identity(20_000)
    centroids: int = identity(1_000)
    num_topics: int = identity(40)
    weight: Literal["bytes", "documents"] = identity("bytes")
    min_share: float = identity(0.01)
    seed: int = identity(42)

    def __post_init__(self) -> None:
        if self.num_topics < 1 or self.min_share * self.num_topics > 1 or self.min_share < 0:
            raise ValueError(
                f"num_topics={self.num_topics}, min_share={self.min_share}: so many topics cannot "
                "each have that share; lower one of them"
            )


@dataclass(frozen=True, kw_only=True)
class QualityConfig:
    """Quality: a student of a judge's labels, calibrated per kind of text, cut into buckets.

    Attributes:
        labels: `packaged` (the labels that ship with Shoal) or the path of a labels file.
        num_buckets: levels, the best last.
    """

    labels: str = identity("packaged")
    num_buckets: int = identity(5)
    seed: int = identity(0)


@dataclass(frozen=True, kw_only=True)
class CellsConfig:
    """What the cells of the token store are.

    Attributes:
        by: `source`, or `topic_quality`, named `t07-q3`: topic 7 of level 3.
    """

    by: Literal["source", "topic_quality"] = identity("source")
    topics: TopicsConfig = identity(TopicsConfig())
    quality: QualityConfig = identity(QualityConfig())


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """How much of each cell a run reads, before and in the cooldown (see `data.mix`).

    Attributes:
        rule: `natural` (what a cell holds), `heuristic` (its size to the power `size_exponent`,
            times a factor for its quality) or `table` (the weights in `table`).
        table: (cell, weight before the cooldown, weight in it), on any scale per phase; a cell that
            is not named has weight 0. `mix.read_weights` reads one from a file.
        cooldown_share: of the run's steps, at its end; 0 gives one phase.
        quality_ratio, cooldown_ratio: what a level of quality weighs against the one below it.
        max_epochs: how often the run may read any cell, over both phases; 0 sets no cap.
    """

    rule: Literal["natural", "heuristic", "table"] = identity("natural")
    table: tuple[tuple[str, float, float], ...] = identity(())
    cooldown_share: float = identity(0.2)
    size_exponent: float = identity(0.8)
    quality_ratio: float = identity(1.2)
    cooldown_ratio: float = identity(2.0)
    max_epochs: float = identity(4.0)

    def __post_init__(self) -> None:
        if (self.rule == "table") != bool(self.table):
            raise ValueError(
                f"mix rule {self.rule!r} with {len(self.table)} rows of weights: give a table with "
                "rule 'table', and only with it"
            )
        names = [cell for cell, *_ in self.table]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the mixture names cell {twice[0]!r} twice; keep one row of weights")
        for cell, *weights in self.table:
            if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
                raise ValueError(f"weights {weights} of cell {cell!r}: use finite ones, 0 or more")
        if not 0 <= self.cooldown_share < 1:
            raise ValueError(f"cooldown_share={self.cooldown_share}: use a share below 1")
        if min(self.size_exponent, self.max_epochs) < 0:
            raise ValueError(
                f"size_exponent={self.size_exponent}, max_epochs={self.max_epochs}: use 0 or more"
            )
        if min(self.quality_ratio, self.cooldown_ratio) <= 0:
            raise ValueError(
                f"quality_ratio={self.quality_ratio}, cooldown_ratio={self.cooldown_ratio}: use "
                "ratios above 0"
            )
