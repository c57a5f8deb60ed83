"""What a text looks like, as numbers: shares of characters, words, lines, and what repeats.

Letters: N texts, F numbers of each.
"""

import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, UInt8, UInt64

from shoal.data.scan import Scan, ngram_hashes, scan

CHARACTERS = 4_000
PAIR_BITS = 18
BATCH_TEXTS = 512
_OWNER, _HASH = np.uint64(54), np.uint64(10)  # 2 ** (64 - 54) is more than BATCH_TEXTS
# How many texts a pair of words must stand in to be a familiar one.
FAMILIAR = 3

_UPPER = bytes(range(65, 91))
_DIGITS = b"0123456789"
_LETTERS = _UPPER + bytes(range(97, 123))
_WHITE = b" \t\n"
_ENDS = b".!?"
_CLASSES = (_LETTERS, _UPPER, _DIGITS, _WHITE, _ENDS, b"<>", b"()[]{}", b"|", b"=_*/+", b",;:")
_STOP = frozenset(
    """a an and are as at be been but by for from had has have he her his i if in is it its me my no
    not of on or our she so that the their them there they this thou thy to us was we were what when
    which who will with you your""".split()  # noqa: SIM905
)
NAMES = (
    "length",
    *("letters", "upper", "digits", "white", "sentence_ends", "angles", "brackets", "bars"),
    *("operators", "commas", "not_ascii", "compressed"),
    *("lines", "line_length", "short_lines", "repeated_lines"),
    *("words", "word_length", "stop_words", "distinct_words", "commonest_word", "single_letters"),
    *("repeated_triples", "familiar_pairs"),
)


def shorten(texts: Sequence[str]) -> list[str]:
    """What of each text is looked at."""
    return [text[:CHARACTERS] for text in texts]


def pair_table(texts: Sequence[str]) -> UInt8[np.ndarray, " buckets"]:
    """In how many texts pairs of neighboring words stand, up to `FAMILIAR`, by hash."""
    counts = np.zeros(1 << PAIR_BITS, np.uint8)
    for start in range(0, len(texts), BATCH_TEXTS):
        found = scan(pa.array(shorten(texts[start : start + BATCH_TEXTS]), pa.string()))
        buckets, places = _buckets(found)
        owners = found.owners(places).astype(np.uint64)
        distinct = np.unique((owners << np.uint64(PAIR_BITS)) | buckets)
        mine = (distinct & np.uint64((1 << PAIR_BITS) - 1)).astype(np.int64)
        here = np.bincount(mine, minlength=len(counts))
        counts = np.minimum(counts + here, FAMILIAR).astype(np.uint8)
    return counts


def surface(
    texts: Sequence[str], pairs: UInt8[np.ndarray, " buckets"]
) -> Float64[np.ndarray, "N F"]:
    """The numbers of each text, by `NAMES`; every row depends on its own text alone."""
    parts = [
        _surface(shorten(texts[start : start + BATCH_TEXTS]), pairs)
        for start in range(0, len(texts), BATCH_TEXTS)
    ]
    return np.concatenate([np.zeros((0, len(NAMES))), *parts])


def _surface(
    texts: Sequence[str], pairs: UInt8[np.ndarray, " buckets"]
) -> Float64[np.ndarray, "N F"]:
    found = scan(pa.array(texts, pa.string()))
    rows = np.array([_of_text(text) for text in texts], np.float64)
    buckets, at = _buckets(found)
    known = np.bincount(found.owners(at), pairs[buckets] >= FAMILIAR, len(texts))
    pairs_of = np.bincount(found.owners(at), minlength=len(texts))
    triples, begins = ngram_hashes(found.hashes, found.starts, 3)
    triples_of = np.bincount(found.owners(begins), minlength=len(texts))
    # Text number and hash in one word of 64 bits: sorting pairs takes five times as long.
    owned = np.unique((found.owners(begins).astype(np.uint64) << _OWNER) | (triples >> _HASH))
    distinct = np.bincount((owned >> _OWNER).astype(np.int64), minlength=len(texts))
    repeated = 1 - distinct / np.maximum(1, triples_of)
    repeated[triples_of == 0] = 0.0
    return np.column_stack([rows, repeated, known / np.maximum(1, pairs_of)])


def _buckets(found: Scan) -> tuple[UInt64[np.ndarray, " pairs"], np.ndarray]:
    values, places = ngram_hashes(found.hashes, found.starts, 2)
    return values >> np.uint64(64 - PAIR_BITS), places


def _of_text(text: str) -> list[float]:
    data = text.encode()
    size = max(1, len(data))
    shares = [(len(data) - len(data.translate(None, few))) / size for few in _CLASSES]
    lines = [line.strip() for line in text.split("\n")]
    full = [line for line in lines if line]
    words = text.lower().split()
    count = max(1, len(words))
    common = Counter(words)
    return [
        np.log1p(len(data)),
        *shares,
        (len(data) - len(text)) / size,
        len(zlib.compress(data, 1)) / size,
        np.log1p(len(full)),
        np.log1p(sum(map(len, full)) / max(1, len(full))),
        sum(len(line) < 20 for line in full) / max(1, len(full)),
        1 - len(set(full)) / max(1, len(full)),
        np.log1p(len(words)),
        sum(map(len, words)) / count,
        sum(common[word] for word in _STOP) / count,
        len(common) / count,
        max(common.values(), default=0) / count,
        sum(n for word, n in common.items() if len(word) == 1) / count,
    ]
