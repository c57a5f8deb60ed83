"""Lexical embeddings: weighted word counts, projected on the directions in which they differ most.

A word is one of `data.ngrams`. The vocabulary is the words that stand in at least `MIN_DOCUMENTS`
and at most `MAX_SHARE` of the sampled documents (in any number of fewer than `FEW_DOCUMENTS`), the
most frequent first, words without a letter left out. A document is log(1 + count) x idf of its
words, scaled to unit length, projected on the singular vectors of the sample, and scaled again; one
without a known word is the zero vector.

Letters: N documents, V words of the vocabulary, E dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from jaxtyping import Float32, UInt64
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from shoal.data.scan import LETTER, Scan, scan

MIN_DOCUMENTS = 3
MAX_SHARE = 0.2
FEW_DOCUMENTS = 100
MAX_WORDS = 20_000
POWER_ITERATIONS = 4
BATCH_DOCUMENTS = 512


@dataclass(frozen=True, kw_only=True)
class Lexical:
    """A fitted vocabulary and its directions.

    Attributes:
        hashes: of the words, ascending.
        words: the words themselves, for people.
        directions: a column of it is what a word adds to the embedding.
    """

    hashes: UInt64[np.ndarray, " V"]
    words: tuple[str, ...]
    idf: Float32[np.ndarray, " V"]
    directions: Float32[np.ndarray, "E V"]

    def weights(self, texts: Sequence[str]) -> sp.csr_matrix:
        """[N, V] float32: the weighted words of each text, rows of unit length or zero."""
        parts = [
            _weighted(scan(_array(texts[start : start + BATCH_DOCUMENTS])), self.hashes, self.idf)
            for start in range(0, len(texts), BATCH_DOCUMENTS)
        ]
        empty = sp.csr_matrix((0, len(self.idf)), dtype=np.float32)
        return sp.csr_matrix(sp.vstack([empty, *parts]))

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "N E"]:
        """One row per text, of unit length or zero."""
        return self.project(self.weights(texts))

    def project(self, weights: sp.csr_matrix) -> Float32[np.ndarray, "N E"]:
        """The same from `weights`."""
        # Sparse times dense adds in one thread and one order: no batch or core count changes it.
        return unit(np.asarray(weights @ self.directions.T, np.float32))


def unit(rows: Float32[np.ndarray, "N E"]) -> Float32[np.ndarray, "N E"]:
    """Rows of length one; those of length zero stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def fit(texts: Sequence[str], dimensions: int, seed: int) -> Lexical:
    """The vocabulary of a sample and its directions.

    Few texts have few directions: there are never more than texts or words.

    Raises:
        ValueError: no word stands in enough of the texts.
    """
    hashes, words, idf = _vocabulary(texts)
    if not len(hashes):
        raise ValueError(
            f"{len(texts)} sampled documents share no words; topics need more text, or one cell "
            "per source"
        )
    blank = np.zeros((0, len(hashes)), np.float32)
    counted = Lexical(hashes=hashes, words=words, idf=idf, directions=blank).weights(texts)
    rank = min(dimensions, len(texts), len(hashes))
    settings: Any = {"n_iter": POWER_ITERATIONS, "random_state": seed, "flip_sign": False}
    with threadpool_limits(1):
        found: Any = randomized_svd(counted, rank, **settings)[2]
    # The sign of a direction is free: its largest entry is positive.
    largest = np.abs(found).argmax(1)
    signs = np.sign(found[np.arange(rank), largest])
    directions = np.asarray(found * signs[:, None], np.float32)
    return Lexical(hashes=hashes, words=words, idf=idf, directions=directions)


def _vocabulary(
    texts: Sequence[str],
) -> tuple[UInt64[np.ndarray, " V"], tuple[str, ...], Float32[np.ndarray, " V"]]:
    spelled: dict[int, str] = {}
    seen: list[np.ndarray] = []
    for start in range(0, len(texts), BATCH_DOCUMENTS):
        found = scan(_array(texts[start : start + BATCH_DOCUMENTS]))
        words = np.flatnonzero(found.flags & LETTER)
        owners = found.owners(words)
        pairs = np.unique(np.stack([found.hashes[words], owners.astype(np.uint64)]), axis=1)
        seen.append(pairs[0])
        distinct, first = np.unique(found.hashes[words], return_index=True)
        for word, place in zip(distinct.tolist(), words[first].tolist(), strict=True):
            if word not in spelled:
                spelled[word] = _spelled(found.text(place, place))
    hashes, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *seen]), return_counts=True)
    most = len(texts) if len(texts) < FEW_DOCUMENTS else int(MAX_SHARE * len(texts))
    usable = (counts >= MIN_DOCUMENTS) & (counts <= most)
    hashes, counts = hashes[usable], counts[usable]
    best = np.sort(np.lexsort([hashes, -counts])[:MAX_WORDS])
    hashes, counts = hashes[best], counts[best]
    idf = np.log((1 + len(texts)) / (1 + counts)).astype(np.float32) + np.float32(1)
    return hashes, tuple(spelled[word] for word in hashes.tolist()), idf


def _spelled(written: str) -> str:
    return "".join(letter for letter in written.lower() if letter.isalnum())


def _weighted(
    found: Scan, hashes: UInt64[np.ndarray, " V"], idf: Float32[np.ndarray, " V"]
) -> sp.csr_matrix:
    places = np.minimum(np.searchsorted(hashes, found.hashes), max(0, len(hashes) - 1))
    known = np.flatnonzero(hashes[places] == found.hashes)
    shape = (len(found.starts) - 1, len(hashes))
    ones = np.ones(len(known), np.float32)
    counts: Any = sp.coo_matrix((ones, (found.owners(known), places[known])), shape).tocsr()
    counts.data = np.log1p(counts.data) * idf[counts.indices]
    lengths = np.sqrt(np.asarray(counts.multiply(counts).sum(1), np.float64)).ravel()
    scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    counts.data *= np.repeat(scale, np.diff(counts.indptr)).astype(np.float32)
    return counts


def _array(texts: Sequence[str]) -> pa.StringArray:
    return pa.array(texts, pa.string())
