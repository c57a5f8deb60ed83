"""What each stage of a corpus does and what each column of its tables means, in a sentence."""

from collections.abc import Mapping

STAGES: Mapping[str, tuple[str, str]] = {
    "source": ("Sources", "What the reader of each source takes from its pinned archive."),
    "documents": (
        "Normalized",
        "Records become documents: UTF-8, one line end, no endless space, an id from the text.",
    ),
    "duplicates": (
        "Exact duplicates",
        "Of documents with the same text one stays: that of the source that stands first.",
    ),
    "near": (
        "Near duplicates",
        "A document goes only where another that stays holds most of its word n-grams.",
    ),
    "heldout": (
        "Held out",
        "Whole documents kept for evaluation; what shares long n-grams with training is dropped.",
    ),
    "benchmarks": (
        "Benchmarks",
        "The text of every evaluation that training text is held against.",
    ),
    "contamination": (
        "Benchmark text",
        "Passages that a benchmark holds are cut from training text, or the document goes.",
    ),
    "topic_model": ("Topic model", "Words, directions and centroids, fitted on a sample."),
    "topics": ("Topics", "What each document is about, by the centroid that is closest."),
    "quality_model": (
        "Quality model",
        "A student of a judge's labels, calibrated and cut into levels for each kind of text.",
    ),
    "quality": (
        "Quality",
        "How good an example of its kind each document is; each level holds equal text of a kind.",
    ),
    "tokenizer": ("Tokenizer", "Byte pairs learned from training text alone."),
    "tokens": ("Cells", "The token store: every training document, encoded, in its cell."),
}

_COMMON: Mapping[str, str] = {
    "id": "xxh3-128 of the document's text, 32 hexadecimal digits",
    "source": "name of its source",
    "source_id": "where the record stood in its archive",
    "bytes": "length of the text in UTF-8",
    "benchmark": "the evaluation that the text belongs to",
    "item": "its item there",
}
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "records.parquet": {
        "raw": "the record's bytes, not checked yet",
        "problem": "why there are no bytes; empty where there are",
    },
    "SOURCE.parquet": {
        "text": "the normalized text",
        "language": "ISO 639 code, und where the text is too short to say",
        "language_score": "share of the probability that the code has",
    },
    "rejected.parquet": {
        "rule": "why it is no document",
        "evidence": "what is wrong, and where",
    },
    "duplicates.parquet": {
        "keeper_source": "source of the copy that stays",
        "keeper_source_id": "where that copy stood",
        "rule": "whether the copies are of one source",
    },
    "near.parquet": {
        "keeper_id": "the document that stays and holds most of it",
        "keeper_source": "its source",
        "keeper_source_id": "where it stood",
        "containment": "share of the distinct word n-grams that the keeper holds",
        "jaccard": "shared n-grams over all of both",
        "novel_words": "distinct words that the keeper does not have",
        "component_documents": "documents in its component of candidates",
    },
    "heldout.parquet": {
        "set": "sources, held out of training text; domains, text for evaluation only",
        "domain": "its name in the set",
        "kept": "false where it was dropped from the held-out set as well",
        "rule": "why it was dropped",
        "ngram": "words that it shares with training text",
        "training_id": "the training document that has them",
    },
    "items.parquet": {
        "part": "the field that stands alone; empty for the whole item",
        "text": "what is looked for",
        "own": "held-out text of this corpus",
    },
    "contamination.parquet": {
        "start": "first character that is cut, or of the paragraph",
        "stop": "the character after the last",
        "num_words": "words from the first match to the last",
        "ngram": "the first words that match, as the item has them",
        "share": "of the item's n-grams, how many the document holds",
        "rule": "spans, passages go; documents, whole documents go",
        "action": "cut, a passage; drop, the document",
    },
    "likely_false.parquet": {
        "start": "first character of the match",
        "stop": "the character after the last",
        "share": "of the item's n-grams, how many the document holds",
        "reason": "why a person should look",
        "sample": "the matching text",
    },
    "boilerplate.parquet": {
        "ngram": "words that prove nothing",
        "num_words": "how many",
        "reason": "why they prove nothing",
        "where": "what they are common in",
        "count": "how often they are there",
        "of": "out of how many",
    },
    "topics.parquet": {
        "centroid": "the closest centroid",
        "topic": "the topic of that centroid, by falling share",
        "score": "closeness to it, 1 at most",
    },
    "quality.parquet": {
        "kind": "kind of text, within which it is compared",
        "score": "0 to 1",
        "level": "0 is the worst",
    },
}
_FILES: Mapping[str, str] = {
    "model.npz": "the fitted arrays",
    "words.json": "the vocabulary",
    "topics.json": "name, share and centroids of each topic",
    "student.json": "calibrations and cut points for each kind of text",
    "tokenizer.json": "vocabulary and merges",
    "cells/*.bin": "token ids of a cell, an end of text after each document",
    "store.json": "what each cell holds",
}


def stage_title(stage: str) -> str:
    """The stage's name for readers."""
    return STAGES.get(stage, (stage, ""))[0]


def column_sentence(file: str, column: str) -> str:
    """What a column means; empty where it is not known."""
    return _COLUMNS.get(file, {}).get(column) or _COMMON.get(column, "")


def file_sentence(file: str) -> str:
    """What a file that is no table holds; empty where it is not known."""
    return _FILES.get(file, "")
