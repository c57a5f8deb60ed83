"""MinHash signatures in bands: documents with an equal band are candidates for near duplicates.

What is hashed are runs of `shingle_length` words or characters. Words are those of `data.ngrams`.
Characters are those of the text in lower case, without what is neither letter, mark, digit nor
space, and with every run of white space as one space (`MARIN_NEAR`). Letters of all scripts count.
Only the first `max_characters` code points of a text are read. A text of fewer words (characters)
than a run is one run of all that it has; a text of none has no bands, and is nobody's candidate.

A run's 64-bit hash is mixed and cut to 32 bits; the signature is the minimum over the runs of
`a * hash + b` (32 bits, `a` odd) for bands x rows pairs (a, b) drawn from the seed. A band is the
64-bit hash of its number and of its rows. Two texts share one of B bands of R rows with probability
1 - (1 - J^R)^B, J being the Jaccard similarity of their sets of runs.
"""

import functools
from typing import Any, no_type_check

import numpy as np
import pyarrow as pa
from jaxtyping import Int64, UInt8, UInt32

from shoal.data.kernel import kernel
from shoal.data.scan import meanings
from shoal.data.settings import NearConfig

BANDS_TYPE = pa.list_(pa.uint64())
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_WEYL = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def bands_of(texts: pa.Array, config: NearConfig) -> pa.ListArray:
    """The bands of every text, as lists of `config.bands` numbers, or empty ones."""
    data, offsets = text_bytes(texts)
    factors, addends = _family(config.seed, config.bands * config.rows)
    bands = np.empty((len(texts), config.bands), np.uint64)
    full = np.zeros(len(texts), np.uint8)
    _sign(
        data,
        offsets,
        meanings(),
        config.shingles == "words",
        config.shingle_length,
        config.max_characters,
        factors,
        addends,
        bands,
        full,
    )
    counts = np.concatenate([[0], np.cumsum(full.astype(np.int64) * config.bands)])
    flat = pa.array(bands[full.astype(bool)].ravel())
    return pa.ListArray.from_arrays(pa.array(counts.astype(np.int32)), flat)


def text_bytes(
    texts: pa.Array,
) -> tuple[UInt8[np.ndarray, "bytes"], Int64[np.ndarray, "texts_plus_one"]]:
    """The UTF-8 of an array of strings, and where in it each begins; nothing is copied."""
    if len(texts) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, places, data = texts.buffers()
    offsets = np.frombuffer(places, width)[texts.offset :][: len(texts) + 1].astype(np.int64)
    # An array of empty texts has no buffer of bytes.
    whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return whole, offsets


@functools.cache
def _family(seed: int, size: int) -> tuple[UInt32[np.ndarray, "size"], UInt32[np.ndarray, "size"]]:
    """Factors (odd) and addends of the hash functions, from the splitmix64 sequence of the seed."""
    drawn = [_splitmix((seed + (n + 1) * _WEYL) & _MASK) for n in range(size)]
    factors = np.array([(value >> 32) | 1 for value in drawn], np.uint32)
    return factors, np.array([value & 0xFFFFFFFF for value in drawn], np.uint32)


def _splitmix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


@kernel
@no_type_check
def _mix(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
@no_type_check
def _lower(minima: Any, factors: Any, addends: Any, run: Any) -> None:
    """Puts one run into a signature."""
    small = np.uint32(_mix(run) >> np.uint64(32))
    for i in range(len(minima)):
        value = np.uint32(np.uint32(factors[i] * small) + addends[i])
        minima[i] = min(minima[i], value)


@kernel
@no_type_check
def _units(data: Any, place: Any, last: Any, table: Any, words: Any, limit: Any, units: Any) -> Any:
    """Fills `units` with hashes of a text's words, or of its characters; returns their number."""
    found = 0
    value = np.uint64(0)
    inside = False
    count = 0
    while place < last and count < limit:
        code = np.uint32(data[place])
        size = 1
        if code >= 0x80:
            size = 2 if code < 0xE0 else (3 if code < 0xF0 else 4)
            code &= np.uint32(0xFF >> (size + 1))
            for n in range(1, size):
                tail = np.uint32(data[place + n]) & np.uint32(0x3F)
                code = np.uint32(code << np.uint32(6)) | tail
        place += size
        count += 1
        meaning = table[code]
        if meaning == 0:
            continue
        if meaning == 1:
            if inside:
                units[found] = _mix(value) if words else np.uint64(1)
                found += 1
                inside = False
            continue
        small = np.uint64(meaning & np.uint32(0x1FFFFF))
        if words:
            value = ((value if inside else np.uint64(7)) ^ small) * np.uint64(0x100000001B3)
        else:
            units[found] = small
            found += 1
        inside = True
    if words and inside:
        units[found] = _mix(value)
        found += 1
    elif not words and found and not inside:
        # No space at the end, as there is none at the beginning.
        found -= 1
    return found


@kernel
@no_type_check
def _sign(
    data: Any,
    offsets: Any,
    table: Any,
    words: Any,
    length: Any,
    limit: Any,
    factors: Any,
    addends: Any,
    bands: Any,
    full: Any,
) -> None:
    """Fills the bands of every text, and `full` with whether it has any."""
    top = np.uint64(1)
    for _ in range(length):
        top *= _FACTOR
    longest = 0
    for text in range(len(offsets) - 1):
        longest = max(longest, offsets[text + 1] - offsets[text])
    units = np.empty(longest + 1, np.uint64)
    minima = np.empty(len(factors), np.uint32)
    rows = len(factors) // bands.shape[1]
    for text in range(len(offsets) - 1):
        count = _units(data, offsets[text], offsets[text + 1], table, words, limit, units)
        if count == 0:
            continue
        full[text] = 1
        minima[:] = np.uint32(0xFFFFFFFF)
        value = np.uint64(0)
        for place in range(count):
            value = value * _FACTOR + units[place]
            if place >= length:
                value -= top * units[place - length]
            if place >= length - 1 or (place == count - 1):
                _lower(minima, factors, addends, value)
        for band in range(bands.shape[1]):
            key = np.uint64(band + 1)
            for row in range(rows):
                key = _mix(key ^ np.uint64(minima[band * rows + row])) + _FACTOR
            bands[text, band] = key
