"""Loss and bits per byte by domain, beside what xz and zstd make of the same bytes.

Every token of every document is predicted exactly once, from the tokens of its own document
within one window. Bits per byte are total nats / ln 2 / UTF-8 bytes of the raw text: bytes are
never counted through the tokenizer, where a piece of a character would count three.

`evaluate` gives one SET of `evals/STEP.json`:
{"domains": {NAME: {"loss", "bpb", "tokens", "bytes", "documents", "xz_bpb", "zstd_bpb", "kind",
"code"}}, "macro": {"loss", "bpb", "xz_bpb", "zstd_bpb"}}; macro = unweighted mean over domains.
"""

from __future__ import annotations

import lzma
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from jaxtyping import Float32, Float64, Int32

LIMIT_BYTES = 200_000
MACRO_KEYS = ("loss", "bpb", "xz_bpb", "zstd_bpb")

Encode = Callable[[list[str]], Sequence[Sequence[int]]]
Score = Callable[
    [Int32[np.ndarray, "R S"], Int32[np.ndarray, "R S"], Int32[np.ndarray, "R S"]],
    Float32[np.ndarray, "R S"],
]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Documents laid out for scoring, S targets a row.

    Attributes:
        inputs: the token before each target; EOS before a document's first.
        targets: the tokens to score; EOS where padded.
        segments: 0, 1, 2, ... along a row, one per stretch of a document; padding is a segment.
        weights: 1 for a token, 0 for padding.
        documents: index of the document a target belongs to; -1 for padding.
    """

    inputs: Int32[np.ndarray, "R S"]
    targets: Int32[np.ndarray, "R S"]
    segments: Int32[np.ndarray, "R S"]
    weights: Float32[np.ndarray, "R S"]
    documents: Int32[np.ndarray, "R S"]


def pack(documents: Sequence[Sequence[int]], *, eos: int, sequence_tokens: int) -> Windows:
    """Cuts documents from their start into stretches of at most S tokens and fills rows with these.

    A stretch sees nothing but itself and the one token before it, so a document's score does not
    depend on its neighbors. Stretches are placed longest first, each where the least room is left.
    """
    stretches = [
        (index, start, min(sequence_tokens, len(document) - start))
        for index, document in enumerate(documents)
        for start in range(0, len(document), sequence_tokens)
    ]
    stretches.sort(key=lambda stretch: (-stretch[2], stretch[0], stretch[1]))
    places, num_rows = _best_fit([length for _, _, length in stretches], sequence_tokens)

    shape = (num_rows, sequence_tokens)
    inputs = np.full(shape, eos, np.int32)
    targets = np.full(shape, eos, np.int32)
    segments = np.zeros(shape, np.int32)
    owners = np.full(shape, -1, np.int32)
    num_segments = [0] * num_rows
    for (index, start, length), (row, column) in zip(stretches, places, strict=True):
        document = documents[index]
        span = slice(column, column + length)
        targets[row, span] = document[start : start + length]
        inputs[row, column] = document[start - 1] if start else eos
        inputs[row, column + 1 : column + length] = document[start : start + length - 1]
        owners[row, span] = index
        # The rest of the row is padding until the next stretch takes its part.
        segments[row, span] = num_segments[row]
        segments[row, column + length :] = num_segments[row] + 1
        num_segments[row] += 1
    return Windows(
        inputs=inputs,
        targets=targets,
        segments=segments,
        weights=(owners >= 0).astype(np.float32),
        documents=owners,
    )


def _best_fit(lengths: Sequence[int], room: int) -> tuple[list[tuple[int, int]], int]:
    """(row, column) for each length, and how many rows that takes."""
    rooms: list[tuple[int, int]] = []
    places: list[tuple[int, int]] = []
    num_rows = 0
    for length in lengths:
        found = bisect_left(rooms, (length, -1))
        if found < len(rooms):
            left, row = rooms.pop(found)
        else:
            left, row = room, num_rows
            num_rows += 1
        places.append((row, room - left))
        if left > length:
            insort(rooms, (left - length, row))
    return places, num_rows


def limit_bytes(texts: Sequence[str], limit: int = LIMIT_BYTES) -> list[str]:
    """The first documents whose stream, joined by newlines, is at most `limit` bytes of UTF-8.

    A first document that is longer by itself is cut at its last line end within the limit, or at
    its last whole character if it has none.
    """
    kept: list[str] = []
    used = -1
    for text in texts:
        used += 1 + len(text.encode())
        if used > limit:
            break
        kept.append(text)
    if texts and not kept:
        head = texts[0].encode()[:limit].decode(errors="ignore")
        kept.append(head[: head.rfind("\n") + 1] or head)
    return kept


def compressors(texts: Sequence[str]) -> dict[str, float]:
    """Bits per byte of `xz -9e` and `zstd -19` on one stream: the documents joined by newlines.

    Takes what `limit_bytes` leaves; the containers' headers and checksums count, as in the files
    that the two commands write.
    """
    stream = "\n".join(limit_bytes(texts)).encode()
    if not stream:
        raise ValueError("no text to compress; give at least one document with text")
    xz = lzma.compress(stream, preset=9 | lzma.PRESET_EXTREME)
    zstd = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(stream)
    return {
        "xz_bpb": 8 * len(xz) / len(stream),
        "zstd_bpb": 8 * len(zstd) / len(stream),
    }


def evaluate(
    texts_by_domain: Mapping[str, Sequence[str]],
    encode: Encode,
    score: Score,
    *,
    eos: int,
    sequence_tokens: int,
    rows: int,
    kinds: Mapping[str, str] | None = None,
    code: Collection[str] = (),
    compressed: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Scores every domain, in the order given, on what `limit_bytes` leaves of it.

    Args:
        texts_by_domain: raw documents.
        encode: texts to token ids, without EOS.
        score: nats of every target; always called with `rows` rows, so it compiles once.
        eos: the id before a document's first token.
        sequence_tokens: targets per row.
        rows: rows per call of `score`.
        kinds: kind per domain, for the record; "" where missing.
        code: names of the domains that hold code: shown, not gated.
        compressed: `compressors` per domain from an earlier call; missing ones are computed.

    Returns:
        One SET of `evals/STEP.json`, as the module says.

    Raises:
        ValueError: there is no domain, a domain is empty, or a score is not finite.
    """
    if not texts_by_domain:
        raise ValueError("there is no domain to evaluate; give at least one with documents")
    kept = {name: limit_bytes(texts) for name, texts in texts_by_domain.items()}
    encoded = {name: encode(texts) for name, texts in kept.items()}
    for name, documents in encoded.items():
        if not any(documents):
            raise ValueError(
                f"evaluation domain '{name}' has no text; add documents or leave it out"
            )
    nats = score_documents(
        [document for documents in encoded.values() for document in documents],
        score,
        eos=eos,
        sequence_tokens=sequence_tokens,
        rows=rows,
    )
    domains: dict[str, dict[str, Any]] = {}
    start = 0
    for name, documents in encoded.items():
        total = float(nats[start : start + len(documents)].sum())
        start += len(documents)
        domains[name] = {
            **_result(name, total, kept[name], sum(map(len, documents))),
            **((compressed or {}).get(name) or compressors(kept[name])),
            "kind": (kinds or {}).get(name, ""),
            "code": name in code,
        }
    return {"domains": domains, "macro": _macro(list(domains.values()))}


def _macro(domains: list[dict[str, Any]]) -> dict[str, float]:
    return {key: math.fsum(found[key] for found in domains) / len(domains) for key in MACRO_KEYS}


def _result(name: str, nats: float, texts: list[str], num_tokens: int) -> dict[str, Any]:
    if not math.isfinite(nats):
        raise ValueError(f"the loss on domain '{name}' is {nats}; the parameters are not sound")
    num_bytes = sum(len(text.encode()) for text in texts)
    return {
        "loss": nats / num_tokens,
        "bpb": nats / math.log(2) / num_bytes,
        "tokens": num_tokens,
        "bytes": num_bytes,
        "documents": len(texts),
    }


def score_documents(
    documents: Sequence[Sequence[int]],
    score: Score,
    *,
    eos: int,
    sequence_tokens: int,
    rows: int,
) -> Float64[np.ndarray, " documents"]:
    """Total nats of each document, summed in float64; the last call is filled up with padding."""
    windows = pack(documents, eos=eos, sequence_tokens=sequence_tokens)
    totals = np.zeros(len(documents))
    for first in range(0, len(windows.inputs), rows):
        batch = slice(first, first + rows)
        owners = windows.documents[batch]
        missing = ((0, rows - len(owners)), (0, 0))
        nats = score(
            np.pad(windows.inputs[batch], missing, constant_values=eos),
            np.pad(windows.targets[batch], missing, constant_values=eos),
            np.pad(windows.segments[batch], missing),
        )
        assert nats.shape == (rows, sequence_tokens), f"score gave shape {nats.shape}"
        real = windows.weights[batch] > 0
        values = np.asarray(nats, np.float64)[: len(owners)][real]
        totals += np.bincount(owners[real], weights=values, minlength=len(documents))
    return totals
