"""Text to token ids: a fast encoder where it has been shown to give the reference's ids.

The `tokenizers` library decides what the ids of a text are. fastokens gives the same ids for a
small part of the time, or is meant to: before a source is encoded, a sample of its documents and
`ADVERSARIAL` strings go through both. One difference, or one error, and the source is encoded by
the reference. So the encoder decides how long it takes and never what comes out.

Facts, per source (`Encoder.facts`):
  encoder        `fastokens` or `tokenizers`
  sampled        documents that both encoded, `sampled_bytes` of text
  mismatches     documents and adversarial strings whose ids differ
  first          the beginning of the first of these, empty if there is none
  fallbacks      documents that the fast encoder refused later; the reference encoded them
  reason         why the reference is used, empty if it is not

The id of a document is a hash of its text and tables are in id order, so the first documents of a
source are a sample of it that no order of the archive decides.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt32
from tokenizers import Tokenizer

SAMPLE_DOCUMENTS = 256
SAMPLE_BYTES = 1_000_000
BATCH_DOCUMENTS = 256
BATCH_CHARACTERS = 4_000_000
FIRST_CHARACTERS = 80

# What encoders have been found to disagree on: special text, odd white space, long runs, scripts.
ADVERSARIAL = (
    "",
    " ",
    "\0",
    "a\0b\x01\x7f\x80",
    "<|endoftext|>",
    "before<|endoftext|>after <|endoftext|>\n",
    "<|im_start|>user\n<|im_end|>",
    " " * 20_000,
    "x" + "\t " * 5_000 + "\n" * 3_000 + "y",
    "\r\n\r\n \r \u2028\u2029\u0085\u00a0\u3000\u200b\ufeffx",
    "z" * 20_000,
    "!?" * 10_000,
    "1234567890" * 500 + " ٣٤٥ ५६ Ⅳ½²",
    "I'll don't I'LL DON'T we've 'tis 's",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1eb\U0001f1f7",
    "e\u0301 \u00e9 \ufb01 \u212b \u0130\u0131 \u1e9e",
    "\ufffd\ue000\U0010ffff\U000e0041",
    "日本語テキスト、中文。한국어 텍스트 العربية हिन्दी ไทย עברית",
    "def f(x):\n\treturn {'a': x**2}  # done\n\n\n",
)


@dataclass(kw_only=True)
class Gate:
    """What the comparison on one source found."""

    encoder: str = "tokenizers"
    sampled: int = 0
    sampled_bytes: int = 0
    mismatches: int = 0
    first: str = ""
    fallbacks: int = 0
    reason: str = ""


class Encoder:
    """Encodes the text of sources, each with the encoder that its gate allows."""

    def __init__(self, path: Path, *, fast: bool = True) -> None:
        """Reads a `tokenizer.json`; without `fast` everything is encoded by the reference."""
        self.reference = Tokenizer.from_file(str(path))
        self.fast: Any = None
        self.reason = "not asked for"
        if fast:
            self.fast, self.reason = _fast(path)
        self.gates: dict[str, Gate] = {}

    def gate(self, source: str, texts: Iterable[str]) -> Gate:
        """Compares both encoders on the first of a source's texts, and says which is used.

        Args:
            source: its name; a second call with it replaces what the first one found.
            texts: in id order; no more than the sample is read of them.
        """
        gate = Gate(reason=self.reason)
        self.gates[source] = gate
        if self.fast is None:
            return gate
        for text in ADVERSARIAL:
            self._compare(gate, text)
        for text in texts:
            gate.sampled += 1
            gate.sampled_bytes += len(text.encode())
            self._compare(gate, text)
            if gate.sampled >= SAMPLE_DOCUMENTS or gate.sampled_bytes >= SAMPLE_BYTES:
                break
        if gate.mismatches:
            gate.reason = f"{gate.mismatches} texts of the sample have other ids"
        else:
            gate.encoder = "fastokens"
        return gate

    def facts(self) -> dict[str, dict[str, Any]]:
        """Source -> what the gate found; for the artifact's facts, after all is encoded."""
        return {source: asdict(gate) for source, gate in sorted(self.gates.items())}

    def encode_batch(
        self, texts: Sequence[str], source: str = ""
    ) -> list[UInt32[np.ndarray, " ids"]]:
        """The ids of each text; a source without a gate is encoded by the reference."""
        return [
            ids[start:stop]
            for ids, ends in self._flat(texts, source)
            for start, stop in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def encode_stream(
        self, texts: Sequence[str], eos: int, dtype: np.dtype[Any], source: str = ""
    ) -> Shaped[np.ndarray, " ids"]:
        """The ids of all texts in a row, `eos` behind each, as `dtype`: a piece of a cell."""
        pieces = [np.insert(ids, ends, eos) for ids, ends in self._flat(texts, source)]
        return np.concatenate([np.zeros(0, np.uint32), *pieces]).astype(dtype)

    def _flat(
        self, texts: Sequence[str], source: str
    ) -> Iterator[tuple[UInt32[np.ndarray, " ids"], list[int]]]:
        """The ids of some texts at a time, and where each of these texts ends."""
        gate = self.gates.get(source)
        fast = gate is not None and gate.encoder == "fastokens"
        for group in _groups(texts):
            found = _flat_fast(self.fast, group) if fast else None
            if found is None and fast and gate is not None:
                gate.fallbacks += len(group)
            yield _flat_reference(self.reference, group) if found is None else found

    def _compare(self, gate: Gate, text: str) -> None:
        expected, _ = _flat_reference(self.reference, [text])
        found = _flat_fast(self.fast, [text])
        if found is None or not np.array_equal(found[0], expected):
            gate.first = gate.first or (repr(text[:FIRST_CHARACTERS]))
            gate.mismatches += 1


def _fast(path: Path) -> tuple[Any, str]:
    """The fast encoder, or why there is none."""
    try:
        import fastokens

        return fastokens.Tokenizer.from_file(str(path)), ""
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        return None, f"fastokens cannot read this tokenizer: {type(error).__name__}: {error}"


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts in order, so many at a time that their ids stay in bounds."""
    group: list[str] = []
    characters = 0
    for text in texts:
        if group and (len(group) == BATCH_DOCUMENTS or characters + len(text) > BATCH_CHARACTERS):
            yield group
            group, characters = [], 0
        group.append(text)
        characters += len(text)
    if group:
        yield group


def _flat_fast(
    encoder: Any, texts: list[str]
) -> tuple[UInt32[np.ndarray, " ids"], list[int]] | None:
    """None where the encoder refuses: its regular expressions have limits that text can reach."""
    try:
        # No added token may match: end of text is an id that no text encodes to.
        ids, offsets = encoder.encode_batch_flat(texts, split_special_tokens=True)
    except (OSError, RuntimeError, ValueError):
        return None
    ends = np.frombuffer(offsets, "<u8").astype(np.int64)[1:].tolist()
    return np.frombuffer(ids, "<u4").astype(np.uint32), ends


def _flat_reference(
    encoder: Tokenizer, texts: list[str]
) -> tuple[UInt32[np.ndarray, " ids"], list[int]]:
    found = encoder.encode_batch_fast(texts, add_special_tokens=False)
    ids = [np.asarray(one.ids, np.uint32) for one in found]
    ends = np.cumsum([len(one) for one in ids]).tolist()
    return np.concatenate([np.zeros(0, np.uint32), *ids]), ends
