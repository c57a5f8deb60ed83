"""The words of many texts as hashes with their places, and look-ups of word n-grams among them.

A word is what `data.ngrams.words_of` says it is, character by character: one table, made by that
function's own steps, says of every character whether it is dropped, separates words, or stands for
its lower-case form. The kernels work on UTF-8 bytes, so that a text costs no Python object.

Letters: W words of all texts of a batch, D texts, G n-grams of an index.
"""

import functools
from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64, UInt8, UInt32, UInt64

from shoal.data.kernel import kernel
from shoal.data.ngrams import LOWER, NOT_WORD, WHITE

DROPPED, SPACE = 0, 1
PARAGRAPH, LETTER = 1, 2
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_IS_LETTER = np.uint32(1 << 31)
_LAST_CODE = 0x110000
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The words of consecutive texts; text d has words starts[d] to starts[d + 1].

    Attributes:
        data: the UTF-8 of all texts.
        offsets: where in `data` each text begins, and where the last ends.
        hashes: of each word.
        begins, ends: a word's first byte in `data`, and the one after its last.
        flags: PARAGRAPH if a blank line stands between a word and the one before it, LETTER if it
            holds a letter.
    """

    data: UInt8[np.ndarray, "bytes"]
    offsets: Int64[np.ndarray, "D_plus_one"]
    hashes: UInt64[np.ndarray, "W"]
    begins: Int64[np.ndarray, "W"]
    ends: Int64[np.ndarray, "W"]
    flags: UInt8[np.ndarray, "W"]
    starts: Int64[np.ndarray, "D_plus_one"]

    def text(self, first: int, last: int) -> str:
        """What stands from one word to another, both included, as it was written."""
        return bytes(self.data[self.begins[first] : self.ends[last]]).decode()

    def owners(self, words: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Which text each of these words is in."""
        return np.searchsorted(self.starts, words, side="right").astype(np.int64) - 1

    def characters(self, text: int, places: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Byte places (in `data`) of one text as places in its characters."""
        first, last = self.offsets[text], self.offsets[text + 1]
        leads = (self.data[first:last] & 0xC0) != 0x80
        counts = np.concatenate([[0], np.cumsum(leads)]).astype(np.int64)
        return counts[places - first]


def scan(texts: pa.StringArray) -> Scan:
    """The words of every text."""
    if len(texts) == 0:
        none = np.empty(0, np.int64)
        zero, bare = np.zeros(1, np.int64), np.empty(0, np.uint8)
        return Scan(
            data=bare,
            offsets=zero,
            hashes=none.view(np.uint64),
            begins=none,
            ends=none,
            flags=bare,
            starts=zero,
        )
    _, places, data = texts.buffers()
    offsets = np.frombuffer(places, np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
    # An array of empty texts has no buffer of bytes.
    whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    first = int(offsets[0])
    offsets = offsets - first
    text = whole[first : first + int(offsets[-1])]
    room = len(text) // 2 + len(offsets)
    hashes, begins = np.empty(room, np.uint64), np.empty(room, np.int64)
    ends, flags = np.empty(room, np.int64), np.empty(room, np.uint8)
    starts = np.zeros(len(offsets), np.int64)
    found = _scan(text, offsets, meanings(), hashes, begins, ends, flags, starts)
    return Scan(
        data=text,
        offsets=offsets,
        hashes=hashes[:found].copy(),
        begins=begins[:found].copy(),
        ends=ends[:found].copy(),
        flags=flags[:found].copy(),
        starts=starts,
    )


@functools.cache
def meanings() -> UInt32[np.ndarray, "codes"]:
    """By code point: DROPPED, SPACE, or the lower-case code point, with a bit for letters."""
    codes = np.array([c for c in range(_LAST_CODE) if c not in _SURROGATES], np.uint32)
    data = codes.astype("<u4").tobytes().decode("utf-32-le").encode()
    lengths = 1 + (codes > 0x7F).astype(np.int32) + (codes > 0x7FF) + (codes > 0xFFFF)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(codes), pa.py_buffer(offsets), pa.py_buffer(data))
    lower = pc.call_function(LOWER, [texts])
    strip = pc.ReplaceSubstringOptions(pattern=NOT_WORD, replacement="")
    kept = pc.call_function("replace_substring_regex", [lower], strip)
    blank = pc.MatchSubstringOptions(pattern=WHITE)
    spaces = pc.call_function("match_substring_regex", [kept], blank)
    match = pc.MatchSubstringOptions(pattern=r"^\pL$")
    letters = pc.call_function("match_substring_regex", [lower], match)
    gone = pc.call_function("equal", [kept, pa.scalar("")])
    table = np.zeros(_LAST_CODE, np.uint32)
    # Lower case is one code point for one, so the joined text has one for each of `codes`.
    lowered = "".join(lower.to_pylist()).encode("utf-32-le")
    table[codes] = np.frombuffer(lowered, "<u4")
    table[codes[letters.to_numpy(zero_copy_only=False)]] |= _IS_LETTER
    table[codes[spaces.to_numpy(zero_copy_only=False)]] = SPACE
    table[codes[gone.to_numpy(zero_copy_only=False)]] = DROPPED
    return table


def ngram_hashes(
    hashes: UInt64[np.ndarray, "W"], starts: Int64[np.ndarray, "D_plus_one"], length: int
) -> tuple[UInt64[np.ndarray, "G"], Int64[np.ndarray, "G"]]:
    """Hashes of all n-grams inside texts, and the word at which each begins."""
    room = max(0, len(hashes) - length + 1)
    values, places = np.empty(room, np.uint64), np.empty(room, np.int64)
    found = _ngrams(hashes, starts, length, values, places)
    return values[:found], places[:found]


def same_ngrams(
    one: Scan,
    at: Int64[np.ndarray, "pairs"],
    other: Scan,
    places: Int64[np.ndarray, "pairs"],
    length: int,
) -> Bool[np.ndarray, "pairs"]:
    """Whether the `length` words from `at` in one scan are those from `places` in the other."""
    result = np.empty(len(at), np.bool_)
    left = (one.data, one.begins, one.ends)
    right = (other.data, other.begins, other.ends)
    _compare(*left, at, *right, places, length, meanings(), result)
    return result


@no_type_check
def _next_code(data: Any, place: Any) -> Any:
    """The code point at `place`, and where the next one begins; `data` is valid UTF-8."""
    lead = np.uint32(data[place])
    if lead < 0x80:
        return lead, place + 1
    tail = np.uint32(0x3F)
    second = np.uint32(data[place + 1]) & tail
    if lead < 0xE0:
        return ((lead & np.uint32(0x1F)) << np.uint32(6)) | second, place + 2
    third = np.uint32(data[place + 2]) & tail
    if lead < 0xF0:
        high = (lead & np.uint32(0x0F)) << np.uint32(12)
        return high | (second << np.uint32(6)) | third, place + 3
    fourth = np.uint32(data[place + 3]) & tail
    high = ((lead & np.uint32(0x07)) << np.uint32(18)) | (second << np.uint32(12))
    return high | (third << np.uint32(6)) | fourth, place + 4


_next_code = kernel(_next_code, inline="always")


@kernel
@no_type_check
def _scan(
    data: Any,
    offsets: Any,
    table: Any,
    hashes: Any,
    begins: Any,
    ends: Any,
    flags: Any,
    starts: Any,
) -> Any:
    """Fills the arrays of a `Scan`; returns the number of words."""
    found = 0
    for text in range(len(offsets) - 1):
        place, last = offsets[text], offsets[text + 1]
        inside = False
        lines = 0
        blank = False
        value = np.uint64(0)
        flag = np.uint8(0)
        begin = place
        end = place
        while place <= last:
            here = place
            meaning = np.uint32(1)
            if place < last:
                code, place = _next_code(data, place)
                meaning = table[code]
                if code == 10:
                    lines += 1
                elif meaning != 1:
                    lines = 0
                blank |= lines > 1
            else:
                place += 1
            if meaning == 1:
                if inside:
                    mixed = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
                    hashes[found] = mixed ^ (mixed >> np.uint64(32))
                    begins[found], ends[found], flags[found] = begin, end, flag
                    found += 1
                    inside = False
            elif meaning != 0:
                if not inside:
                    inside = True
                    begin = here
                    value = np.uint64(0xCBF29CE484222325)
                    flag = np.uint8(1) if blank else np.uint8(0)
                    blank = False
                if meaning & np.uint32(0x80000000):
                    flag |= np.uint8(2)
                small = np.uint64(meaning & np.uint32(0x1FFFFF))
                value = (value ^ small) * np.uint64(0x100000001B3)
                value ^= value >> np.uint64(32)
                end = place
        starts[text + 1] = found
    return found


@kernel
@no_type_check
def _same_word(a: Any, a_begin: Any, a_end: Any, b: Any, b_begin: Any, b_end: Any, table: Any):  # noqa: ANN202
    """Whether two words have the same characters once normalized."""
    code_mask = np.uint32(0x1FFFFF)
    while True:
        one = np.uint32(0)
        while a_begin < a_end and one == 0:
            code, a_begin = _next_code(a, a_begin)
            one = table[code] & code_mask
        two = np.uint32(0)
        while b_begin < b_end and two == 0:
            code, b_begin = _next_code(b, b_begin)
            two = table[code] & code_mask
        if one != two:
            return False
        if one == 0:
            return True


@kernel
@no_type_check
def _ngrams(hashes: Any, starts: Any, length: Any, values: Any, places: Any) -> Any:
    """Fills hashes and places of n-grams; returns their number."""
    found = 0
    top = np.uint64(1)
    for _ in range(length):
        top *= _FACTOR
    for text in range(len(starts) - 1):
        first, last = starts[text], starts[text + 1]
        value = np.uint64(0)
        for place in range(first, last):
            value = value * _FACTOR + hashes[place]
            if place - first >= length:
                value -= top * hashes[place - length]
            if place - first >= length - 1:
                values[found], places[found] = value, place - length + 1
                found += 1
    return found


@kernel
@no_type_check
def _compare(
    a: Any,
    a_begins: Any,
    a_ends: Any,
    at: Any,
    b: Any,
    b_begins: Any,
    b_ends: Any,
    places: Any,
    length: Any,
    table: Any,
    result: Any,
) -> None:
    """Fills `result` with whether n-grams have the same words."""
    for pair in range(len(at)):
        same = True
        for word in range(length):
            i, j = at[pair] + word, places[pair] + word
            if not _same_word(a, a_begins[i], a_ends[i], b, b_begins[j], b_ends[j], table):
                same = False
                break
        result[pair] = same


@kernel
@no_type_check
def find_ngrams(
    hashes: Any,
    begins: Any,
    ends: Any,
    data: Any,
    kept: Any,
    starts: Any,
    length: Any,
    whole: Any,
    gram_hashes: Any,
    firsts: Any,
    shift: Any,
    places: Any,
    item_begins: Any,
    item_ends: Any,
    item_data: Any,
    table: Any,
    at: Any,
    grams: Any,
) -> Any:
    """Fills `at` (an index of `kept`) and `grams` with every n-gram that stands in an index.

    `kept` are the words that are looked at, in order, and `starts` says where texts begin in it.
    With `whole` only texts of exactly `length` words count. Where hashes agree, words decide. The
    number found is returned; past the room in `at` it is only counted.
    """
    found = 0
    top = np.uint64(1)
    for _ in range(length):
        top *= _FACTOR
    for text in range(len(starts) - 1):
        first, last = starts[text], starts[text + 1]
        if last - first < length or (whole and last - first != length):
            continue
        value = np.uint64(0)
        for place in range(first, last):
            value = value * _FACTOR + hashes[kept[place]]
            if place - first >= length:
                value -= top * hashes[kept[place - length]]
            if place - first < length - 1:
                continue
            bucket = np.int64(value >> shift)
            for gram in range(firsts[bucket], firsts[bucket + 1]):
                if gram_hashes[gram] != value:
                    continue
                start = place - length + 1
                same = True
                for word in range(length):
                    i, j = kept[start + word], places[gram] + word
                    if not _same_word(
                        data, begins[i], ends[i], item_data, item_begins[j], item_ends[j], table
                    ):
                        same = False
                        break
                if same:
                    if found < len(at):
                        at[found], grams[found] = start, gram
                    found += 1
    return found
