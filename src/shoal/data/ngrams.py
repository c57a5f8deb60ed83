"""Word n-grams of many texts at once, as 64-bit hashes.

A *word* is what white space separates after lower-casing and after every character that is not a
letter, a mark or a digit is taken out: `Don't` is `dont`, with whichever apostrophe.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from jaxtyping import Int, UInt64

# The steps that make words; `data.scan` takes its table of characters from the same ones.
LOWER = "utf8_lower"
NOT_WORD = r"[^\pL\pM\pN\pZ\s]+"
WHITE = r"[\pZ\s]+"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words of consecutive documents; document d has words starts[d] to starts[d + 1]."""

    words: pa.StringArray
    hashes: UInt64[np.ndarray, "words"]
    starts: Int[np.ndarray, "documents_plus_one"]

    def of(self, document: int) -> list[str]:
        """One document's words."""
        first, last = self.starts[document], self.starts[document + 1]
        return self.words[first:last].to_pylist()


def words_of(texts: pa.StringArray) -> Words:
    """The words of every text."""
    lower = pc.call_function(LOWER, [texts])
    cleaned = _replace(_replace(lower, NOT_WORD, ""), WHITE, " ")
    # Not utf8_split_whitespace: pyarrow 25 reads past the last text, and at times leaves a
    # no-break space at its end.
    lists = pc.call_function("split_pattern", [cleaned], pc.SplitPatternOptions(pattern=" "))
    flat, parents = lists.flatten(), lists.value_parent_indices()
    # White space at either end splits off an empty word.
    full = pc.call_function("not_equal", [flat, pa.scalar("")])
    flat, parents = flat.filter(full), parents.filter(full)
    counts = np.bincount(parents.to_numpy(), minlength=len(texts))
    coded = flat.dictionary_encode()
    distinct = np.fromiter(
        (xxhash.xxh3_64_intdigest(word.encode()) for word in coded.dictionary.to_pylist()),
        np.uint64,
    )
    hashes = distinct[coded.indices.to_numpy()] if len(flat) else np.empty(0, np.uint64)
    return Words(words=flat, hashes=hashes, starts=np.concatenate([[0], np.cumsum(counts)]))


def _replace(texts: pa.StringArray, pattern: str, replacement: str) -> pa.StringArray:
    options = pc.ReplaceSubstringOptions(pattern=pattern, replacement=replacement)
    return pc.call_function("replace_substring_regex", [texts], options)


def ngram_hashes(
    words: Words, length: int
) -> tuple[UInt64[np.ndarray, "grams"], Int[np.ndarray, "grams"]]:
    """Hashes of all n-grams inside documents, and where in `words` each begins."""
    total = len(words.hashes) - length + 1
    if total <= 0:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    rolled = np.zeros(total, np.uint64)
    for place in range(length):
        rolled = rolled * _FACTOR + words.hashes[place : place + total]
    ends = np.repeat(words.starts[1:], np.diff(words.starts))[:total]
    begins = np.flatnonzero(np.arange(total) + length <= ends)
    return rolled[begins], begins
