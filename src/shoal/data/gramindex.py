"""An index of the word n-grams of benchmark items: which item holds the n-grams of a text.

Sorted arrays, 28 bytes an n-gram and the items' own text; no Python object per n-gram. A look-up
goes by the top bits of the hash to the n-grams that share them, and where hashes agree the words
are compared, so that a collision proves nothing.

Letters: W words, I items, E entries (one n-gram of one item), H hits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int32, Int64, UInt64

from shoal.data.scan import (
    LETTER,
    PARAGRAPH,
    Scan,
    find_ngrams,
    meanings,
    ngram_hashes,
    same_ngrams,
    scan,
)

SHORTEST_PARAGRAPH = 3


@dataclass(frozen=True, kw_only=True)
class Grams:
    """The entries of one length, by hash; `first` is the number of the first of them.

    Attributes:
        firsts: where in `hashes` those begin whose top bits are at least an index of this array.
        shift: how many low bits of a hash do not count there.
        places: the word of the items' scan at which each begins.
        items: the item of each.
    """

    length: int
    first: int
    hashes: UInt64[np.ndarray, "E"]
    firsts: Int32[np.ndarray, "buckets_plus_one"]
    shift: int
    places: Int64[np.ndarray, "E"]
    items: Int32[np.ndarray, "E"]


@dataclass(frozen=True, kw_only=True)
class Hits:
    """N-grams of a text that stand in the index: the word at which one begins, and the entry."""

    at: Int64[np.ndarray, "H"]
    entries: Int64[np.ndarray, "H"]
    lengths: Int64[np.ndarray, "H"]


@dataclass(frozen=True, kw_only=True)
class Index:
    """All n-grams that are looked for.

    Attributes:
        names: benchmark and item, by item number.
        words: the scan of the items' texts.
        grams: by length.
        items: the item of each entry.
        totals: how many entries an item has.
        kinds: a number for each entry; entries with the same words have the same one.
    """

    names: Sequence[tuple[str, str]]
    words: Scan
    grams: tuple[Grams, ...]
    items: Int32[np.ndarray, "E"]
    totals: Int64[np.ndarray, "I"]
    kinds: Int64[np.ndarray, "E"]

    def find(
        self,
        found: Scan,
        kept: Int64[np.ndarray, "kept"],
        starts: Int64[np.ndarray, "texts_plus_one"],
        *,
        whole_below: int = 0,
    ) -> Hits:
        """Every n-gram among the words `kept`, in order of place, length and entry.

        Entries shorter than `whole_below` count only where they are a whole text; `starts` says
        where in `kept` texts begin.
        """
        parts = [self._find(g, found, kept, starts, g.length < whole_below) for g in self.grams]
        at = np.concatenate([np.empty(0, np.int64), *(at for at, _ in parts)])
        entries = np.concatenate([np.empty(0, np.int64), *(entry for _, entry in parts)])
        sizes = [len(at) for at, _ in parts]
        lengths = np.repeat(np.array([g.length for g in self.grams], np.int64), sizes)
        order = np.lexsort((entries, lengths, at))
        return Hits(at=at[order], entries=entries[order], lengths=lengths[order])

    def _find(
        self,
        grams: Grams,
        found: Scan,
        kept: Int64[np.ndarray, "kept"],
        starts: Int64[np.ndarray, "texts_plus_one"],
        whole: bool,
    ) -> tuple[Int64[np.ndarray, "H"], Int64[np.ndarray, "H"]]:
        room = 1_024
        while True:
            at, entries = np.empty(room, np.int64), np.empty(room, np.int64)
            count = find_ngrams(
                *(found.hashes, found.begins, found.ends, found.data, kept, starts),
                *(grams.length, whole, grams.hashes, grams.firsts, np.uint64(grams.shift)),
                *(grams.places, self.words.begins, self.words.ends, self.words.data),
                *(meanings(), at, entries),
            )
            if count <= room:
                return at[:count], entries[:count] + grams.first
            room = count

    def ngram(self, entry: int) -> str:
        """The words of an entry as its item has them, white space and punctuation included."""
        grams = next(g for g in reversed(self.grams) if g.first <= entry)
        place = int(grams.places[entry - grams.first])
        return self.words.text(place, place + grams.length - 1)

    def length(self, entry: int) -> int:
        """How many words an entry has."""
        return next(g for g in reversed(self.grams) if g.first <= entry).length

    def first_entry(self, length: int) -> int:
        """The number of the first entry that has at least so many words."""
        return next((g.first for g in self.grams if g.length >= length), len(self.items))

    def without(self, dropped: Bool[np.ndarray, "E"]) -> "Index":
        """The index less some entries; the others keep their order and get new numbers."""
        chosen = []
        for grams in self.grams:
            kept = ~dropped[grams.first : grams.first + len(grams.hashes)]
            chosen.append((grams.length, grams.hashes[kept], grams.places[kept], grams.items[kept]))
        _, first, inverse = np.unique(self.kinds[~dropped], return_index=True, return_inverse=True)
        return _assemble(self.names, self.words, chosen, first[inverse].astype(np.int64))


def build_index(
    items: pa.Table, *, length: int, short_words: int, paragraphs: bool = False
) -> Index:
    """The index of a table of benchmark items (`data.benchmarks`).

    A text of fewer than `length` words is one n-gram of its own length, if it has `short_words`
    (own held-out text: one). With `paragraphs` every paragraph is a text, of three words at least.
    N-grams without a letter are left out.
    """
    names, owners = _items(items)
    words = scan(_joined(items["text"]))
    starts = words.starts
    if paragraphs:
        starts = paragraph_starts(words)
        own = np.ones(len(starts) - 1, np.int64) * SHORTEST_PARAGRAPH
    else:
        own = np.where(np.array(items["own"].to_pylist(), np.bool_), 1, short_words)
    counts = np.diff(starts)
    sizes = np.where(counts >= own, np.minimum(counts, length), 0)
    chosen = []
    for size in sorted(set(sizes[sizes > 0].tolist())):
        hashes, places = ngram_hashes(words.hashes, starts, size)
        mine = sizes[np.searchsorted(starts, places, side="right") - 1] == size
        mine &= has_letter(words, places, size)
        hashes, places = hashes[mine], places[mine]
        item = owners[words.owners(places)]
        order = np.lexsort((places, item, hashes))
        hashes, places, item = hashes[order], places[order], item[order]
        fresh = _first_of_item(words, hashes, places, item, size)
        chosen.append((size, hashes[fresh], places[fresh], item[fresh]))
    return _assemble(names, words, chosen, None)


def paragraph_starts(words: Scan) -> Int64[np.ndarray, "paragraphs_plus_one"]:
    """Where paragraphs begin among the words of a scan, and where the last one ends."""
    breaks = np.flatnonzero(words.flags & PARAGRAPH)
    return np.unique(np.concatenate([words.starts, breaks])).astype(np.int64)


def has_letter(words: Scan, places: Int64[np.ndarray, "n"], length: int) -> Bool[np.ndarray, "n"]:
    """Whether n-grams hold a letter; a row of numbers proves nothing."""
    letters = np.concatenate([[0], np.cumsum((words.flags & LETTER) != 0)])
    return letters[places + length] > letters[places]


def _items(items: pa.Table) -> tuple[list[tuple[str, str]], Int32[np.ndarray, "texts"]]:
    pairs = zip(items["benchmark"].to_pylist(), items["item"].to_pylist(), strict=True)
    numbers: dict[tuple[str, str], int] = {}
    owners = [numbers.setdefault(pair, len(numbers)) for pair in pairs]
    return list(numbers), np.array(owners, np.int32)


def _joined(texts: pa.ChunkedArray) -> pa.StringArray:
    joined = texts.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _first_of_item(
    words: Scan,
    hashes: UInt64[np.ndarray, "E"],
    places: Int64[np.ndarray, "E"],
    items: Int32[np.ndarray, "E"],
    length: int,
) -> Bool[np.ndarray, "E"]:
    """Not the repeats of an n-gram inside one item."""
    again = np.flatnonzero((hashes[1:] == hashes[:-1]) & (items[1:] == items[:-1])) + 1
    same = same_ngrams(words, places[again], words, places[again - 1], length)
    fresh = np.ones(len(hashes), np.bool_)
    fresh[again[same]] = False
    return fresh


def _assemble(
    names: Sequence[tuple[str, str]],
    words: Scan,
    chosen: Sequence[
        tuple[
            int,
            UInt64[np.ndarray, "_"],
            Int64[np.ndarray, "_"],
            Int32[np.ndarray, "_"],
        ]
    ],
    kinds: Int64[np.ndarray, "E"] | None,
) -> Index:
    first = 0
    grams: list[Grams] = []
    found = [np.empty(0, np.int64)]
    for length, hashes, places, items in chosen:
        bits = max(1, int(2 * len(hashes)).bit_length())
        tops = (hashes >> np.uint64(64 - bits)).astype(np.int64)
        firsts = np.zeros(2**bits + 1, np.int32)
        np.cumsum(np.bincount(tops, minlength=2**bits), out=firsts[1:])
        grams.append(
            Grams(
                length=length,
                first=first,
                hashes=hashes,
                firsts=firsts,
                shift=64 - bits,
                places=places,
                items=items,
            )
        )
        if kinds is None:
            found.append(first + _kinds(words, hashes, places, length))
        first += len(hashes)
    every = np.concatenate([np.empty(0, np.int32), *(g.items for g in grams)]).astype(np.int32)
    return Index(
        names=names,
        words=words,
        grams=tuple(grams),
        items=every,
        totals=np.bincount(every, minlength=len(names)).astype(np.int64),
        kinds=np.concatenate(found) if kinds is None else kinds,
    )


def _kinds(
    words: Scan, hashes: UInt64[np.ndarray, "E"], places: Int64[np.ndarray, "E"], length: int
) -> Int64[np.ndarray, "E"]:
    """For each entry the first one with the same words; equal hashes stand side by side."""
    kinds = np.arange(len(hashes), dtype=np.int64)
    again = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    same = same_ngrams(words, places[again], words, places[again - 1], length)
    kinds[again[same]] = -1
    return np.maximum.accumulate(kinds)
