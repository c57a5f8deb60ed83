"""Job `prepare`: from a corpus config to training tokens and held-out texts.

Every stage is an artifact under HOME/corpora, found again by what went into it: a second call
reads, a killed one goes on at the shard of the stage that it was at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from shoal.core.artifact import Artifact
from shoal.core.files import home
from shoal.core.progress import Progress, progress_for
from shoal.data import debian, provenance
from shoal.data.benchmarks import benchmarks, uncovered
from shoal.data.cells import Cells, SourceCells, TopicCells
from shoal.data.config import CorpusConfig
from shoal.data.decontam import contamination
from shoal.data.dedup import TABLE as DUPLICATES
from shoal.data.dedup import duplicates
from shoal.data.heldout import Unique, heldout
from shoal.data.manifest import Stages, corpus_artifact, read_corpus
from shoal.data.near import TABLE as NEAR
from shoal.data.near import near
from shoal.data.normalize import documents
from shoal.data.source import source_artifact
from shoal.data.tokenize import TOKENIZER, load_tokenizer, tokenizer_artifact, tokens
from shoal.data.training import Split
from shoal.jobs.resolve import resolve_corpus
from shoal.train.config import Config


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A finished corpus.

    Attributes:
        corpus: the artifact that names all others.
        benchmarks: the items that training text was held against.
        store: the folder of the token store.
        tokenizer_path: the `tokenizer.json`.
        heldout: set -> domain -> texts; sets are `sources` and `domains`.
        kinds: set -> domain -> kind of text; `code` is the kind that is shown, not gated.
        facts: the content of `corpus.json` for the run folder.
        reused: artifact name -> whether it was there already.
    """

    corpus: Artifact
    benchmarks: Artifact
    store: Path
    tokenizer_path: Path
    heldout: dict[str, dict[str, list[str]]]
    kinds: dict[str, dict[str, str]]
    facts: dict[str, Any]
    reused: Mapping[str, bool]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, read from its file."""
        return load_tokenizer(self.tokenizer_path)


def prepare_recipe(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    engine: str | None = None,
    permissive_only: bool = False,
    as_found: bool = False,
) -> dict[str, Any]:
    """Prepare a recipe's corpus; returns what `corpus.json` says and where the tokens are.

    Args:
        recipe: a recipe with a corpus, or the recipe of a corpus.
        engine, permissive_only: in place of the corpus' own settings.
        as_found: pin Debian packages to what apt offers now.
    """
    corpus, progress = resolve_corpus(recipe, overrides), progress_for()
    if engine:
        corpus = replace(corpus, engine=engine)
    if permissive_only:
        corpus = replace(corpus, permissive_only=True)
    if as_found:
        corpus = debian.as_found(corpus, progress)
    prepared = prepare(corpus, home(), progress)
    return {
        "corpus": prepared.corpus.ref,
        "path": str(prepared.corpus.path),
        "tokens": str(prepared.store),
        "reused": all(prepared.reused.values()),
        "sources": prepared.facts["sources"],
        "cells": prepared.facts["cells"],
    }


def render(result: dict[str, Any]) -> str:
    """Return a prepared corpus as a table of its sources, and where it is."""
    head = ("source", "documents", "copies", "near", "held out", "cut", "trained", "MB", "tokens")
    rows = [head, *(_told(one) for one in result["sources"] if one["usage"] == "training")]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    lines = [
        "  ".join(
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    total = sum(one.get("tokens", 0) for one in result["sources"])
    name = result["corpus"]
    lines += [
        "",
        f"{total:,} tokens in {len(result['cells'])} cells: {result['tokens']}",
        f"`shoal audit {name}` accounts for every document",
    ]
    return "\n".join(lines)


def _told(one: dict[str, Any]) -> tuple[str, ...]:
    counts = (
        one["documents"],
        one["duplicates"],
        one["near_duplicates"],
        one["heldout_documents"] + one["overlap_dropped"],
        one["contaminated_documents"],
        one["training_documents"],
    )
    size = f"{one['training_bytes'] / 1e6:.1f}"
    return (one["name"], *(f"{count:,}" for count in counts), size, f"{one['tokens']:,}")


def prepared_for(config: Config, progress: Progress) -> Prepared:
    """Prepare the corpus of a run.

    Raises:
        ValueError: as `prepare`, or training text was not held against what `eval.benchmarks` says
            that the model will be judged by.
    """
    prepared = prepare(config.data.corpus, home(), progress)
    missing = uncovered(prepared.benchmarks, config.eval.benchmarks)
    if missing and not config.data.corpus.decontam.allow_uncovered:
        raise ValueError("; ".join(missing))
    return prepared


def prepare(corpus: CorpusConfig, home: Path, progress: Progress) -> Prepared:
    """Finds or makes everything that training and evaluation need of a corpus.

    Raises:
        ValueError: a source is missing, empty or not the pinned one, or an artifact is damaged.
    """
    if corpus.permissive_only:
        corpus = provenance.permissive_only(corpus, progress)
    root, downloads = home / "corpora", home / "downloads"
    sources = {
        source.name: source_artifact(root, source, downloads, progress) for source in corpus.read
    }
    written = documents(root, corpus, sources, progress)
    repeated = duplicates(root, corpus, written, progress)
    contained = near(
        root, corpus, written, repeated, progress, config=corpus.near, engine=corpus.engine
    )
    stages = Stages(sources=sources, documents=written, duplicates=repeated, near=contained)
    unique = Unique(written, [repeated.path / DUPLICATES, contained.path / NEAR])
    held = heldout(root, corpus, unique, stages.digests(), progress)
    stages = replace(stages, heldout=held)
    split, stages = _decontaminated(root, corpus, Split(unique, held), stages, progress)
    cells, stages = _cells(root, corpus, split, stages, progress)
    inputs = stages.digests()
    tokenizer = tokenizer_artifact(root, corpus, split, inputs, progress)
    store = tokens(root, corpus, split, tokenizer, cells, inputs, progress)
    stages = replace(stages, tokenizer=tokenizer, tokens=store)
    whole = corpus_artifact(root, corpus, stages)
    reused = {artifact.name: artifact.reused for artifact in [*stages.all(), whole]}
    progress.note(_summary(whole, reused))
    for source in corpus.training:
        if not held.facts["sources"][source.name]["kept"]:
            progress.note(f"source {source.name}: nothing of it is left to evaluate on")
    return Prepared(
        corpus=whole,
        benchmarks=stages.named()["benchmarks"],
        store=store.path,
        tokenizer_path=tokenizer.path / TOKENIZER,
        heldout=split.heldout_texts(corpus),
        kinds={
            "sources": {source.name: source.kind for source in corpus.training},
            "domains": {source.domain: source.kind for source in corpus.evaluation},
        },
        facts=read_corpus(whole),
        reused=reused,
    )


def _decontaminated(
    root: Path, corpus: CorpusConfig, split: Split, stages: Stages, progress: Progress
) -> tuple[Split, Stages]:
    """Return the training text without the text of benchmarks."""
    config = corpus.decontam
    items = benchmarks(root, corpus, config, split, stages.digests(), progress)
    found = contamination(root, corpus, config, split, items, stages.digests(), progress)
    return split.without(found), replace(stages, benchmarks=items, contamination=found)


def _cells(
    root: Path, corpus: CorpusConfig, split: Split, stages: Stages, progress: Progress
) -> tuple[Cells, Stages]:
    """Return which cell every training document goes to."""
    if corpus.cells.by == "source":
        return SourceCells(), stages
    # They load scikit-learn, which a corpus with one cell per source does without.
    from shoal.data.quality import quality, quality_model
    from shoal.data.topics import topic_model, topics

    inputs = stages.digests()
    model = topic_model(root, corpus, split, inputs, progress)
    about = topics(root, corpus, split, model, inputs, progress)
    student = quality_model(root, corpus, split, inputs, progress)
    levels = quality(root, corpus, split, student, inputs, progress)
    stages = replace(stages, topic_model=model, topics=about, quality_model=student, quality=levels)
    return TopicCells(corpus, about, levels), stages


def _summary(corpus: Artifact, reused: Mapping[str, bool]) -> str:
    found = sum(reused.values())
    if found == len(reused):
        return f"corpus {corpus.ref}: reused"
    return f"corpus {corpus.ref}: made ({found} of {len(reused)} artifacts reused)"
