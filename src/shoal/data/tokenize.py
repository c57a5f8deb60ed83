"""Stages `tokenizer` and `tokens`: byte-level BPE from training text, and the token store.

Stage `tokenizer` writes `tokenizer.json`, which the `tokenizers` library reads. Facts: vocab_size,
used_ids (fewer where the text was too little), sample_bytes per source. It sees training text only:
of every source whole documents in the order of a keyed hash, up to its share of the sample. Shares
follow the sources' weights; what a small source leaves of its share goes to the others.

Stage `tokens` writes the token store:
  cells/CELL.bin  little-endian unsigned integers, every document followed by EOS, source by source
                  and in id order (`data.cells` says which cell a document goes to)
  store.json      {"dtype", "eos", "vocab_size", "unit_tokens", "cells": {CELL: {"tokens",
                  "documents", "units", "tail_tokens"}}}; the tail is what is left below a unit
Facts: the same, and per source its training documents, their bytes and tokens (EOS included), and
which encoder made them (`data.encode`).

A killed stage goes on at the shard of the source that it was at.

End of text has id 0 and is no token of the encoder: text that holds the literal `<|endoftext|>` is
encoded as ordinary characters, so id 0 in a store always ends a document.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import xxhash
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shoal.core.artifact import Artifact, build
from shoal.core.config import plain
from shoal.core.files import write_atomic
from shoal.core.parts import Part
from shoal.core.progress import Progress, Task
from shoal.data.cells import Cells
from shoal.data.config import CorpusConfig, TokenizerConfig
from shoal.data.encode import Encoder
from shoal.data.shards import Taken, shards
from shoal.data.training import Split

REVISION = 1
TOKENS_REVISION = 2
EOS = "<|endoftext|>"
EOS_ID = 0
TOKENIZER = "tokenizer.json"
STORE = "store.json"
TOKENS = "tokens.bin"


def tokenizer_artifact(
    root: Path, corpus: CorpusConfig, split: Split, inputs: dict[str, str], progress: Progress
) -> Artifact:
    """Finds or makes the corpus' tokenizer."""
    config = corpus.tokenizer

    def make(folder: Path) -> dict[str, Any]:
        sizes = {source.name: split.sizes(source.name) for source in corpus.training}
        weights = {source.name: source.tokenizer_weight for source in corpus.training}
        totals = {name: sum(found.values()) for name, found in sizes.items()}
        shares = share_out(totals, weights, config.sample_bytes)
        picked = {name: _sample(found, shares[name], config.key) for name, found in sizes.items()}
        total = sum(sizes[name][one] for name in picked for one in picked[name])
        with progress.task("train tokenizer", total, "bytes") as task:
            texts = [text for name in picked for text in _texts(split, name, picked[name])]
            tokenizer = train(texts, config)
            task.advance(total)
        write_atomic(folder / TOKENIZER, tokenizer.to_str(pretty=True))
        return {
            "vocab_size": config.vocab_size,
            "used_ids": tokenizer.get_vocab_size(),
            "sample_bytes": {
                name: sum(sizes[name][one] for one in found) for name, found in picked.items()
            },
        }

    literals = {
        "tokenizer": plain(config),
        "weights": [[source.name, source.tokenizer_weight] for source in corpus.training],
    }
    return build(
        root,
        f"{corpus.name}-tokenizer",
        stage="tokenizer",
        revision=REVISION,
        literals=literals,
        inputs=inputs,
        make=make,
    )


def share_out(totals: dict[str, int], weights: dict[str, float], budget: int) -> dict[str, int]:
    """Bytes per source: in proportion to weights, and never more than the source has."""
    shares: dict[str, int] = {}
    open_names = sorted(totals)
    while open_names:
        mass = sum(weights[name] for name in open_names)
        left = budget - sum(shares.values())
        fair = {name: int(left * weights[name] / mass) if mass else 0 for name in open_names}
        full = [name for name in open_names if totals[name] <= fair[name]]
        shares |= {name: totals[name] for name in full} or fair
        open_names = [name for name in open_names if name not in shares]
    return shares


def train(texts: list[str], config: TokenizerConfig) -> Tokenizer:
    """Byte-level BPE with every byte and EOS (id 0) in its vocabulary.

    Text that repeats itself can run out of pairs to merge; the highest ids are then never used.
    """
    blank = Tokenizer(models.BPE())
    blank.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    blank.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    blank.train_from_iterator(texts, trainer)
    tree = json.loads(blank.to_str())
    # Left in the vocabulary and taken from the added tokens, EOS is an id that no text encodes to.
    tree["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(tree))
    assert tokenizer.get_vocab_size() <= config.vocab_size, "the trainer stops there"
    assert tokenizer.token_to_id(EOS) == EOS_ID, "special tokens come first"
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a `tokenizer.json` of the stage."""
    return Tokenizer.from_file(str(path))


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Little-endian uint16 where it holds every id, else uint32."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def tokens(
    root: Path,
    corpus: CorpusConfig,
    split: Split,
    tokenizer: Artifact,
    cells: Cells,
    inputs: dict[str, str],
    progress: Progress,
) -> Artifact:
    """Finds or makes the token store.

    Raises:
        ValueError: no cell fills one unit.
    """

    def make(folder: Path) -> dict[str, Any]:
        encoder = Encoder(tokenizer.path / TOKENIZER)
        vocab = corpus.tokenizer.vocab_size
        (folder / "cells").mkdir()
        total = sum(sum(split.sizes(source.name).values()) for source in corpus.training)
        sources: dict[str, dict[str, int]] = {}
        with (
            progress.task("tokenize", total, "bytes") as task,
            closing(_Streams(folder / "cells", token_dtype(vocab))) as streams,
        ):
            for source in corpus.training:
                task.say(source.name)
                encoded = _encoded(folder, split, source.name, encoder, cells, vocab)
                sources[source.name] = _write(encoded, streams, task)
            task.say("")
        store = {
            "dtype": token_dtype(vocab).name,
            "eos": EOS_ID,
            "vocab_size": vocab,
            "unit_tokens": corpus.unit_tokens,
            "cells": streams.cells(corpus.unit_tokens),
        }
        _check_units(store["cells"], corpus)
        write_atomic(folder / STORE, json.dumps(store, indent=1) + "\n")
        return {**store, "sources": sources, "encoders": encoder.facts()}

    return build(
        root,
        f"{corpus.name}-tokens",
        stage="tokens",
        revision=TOKENS_REVISION,
        literals={
            "unit_tokens": corpus.unit_tokens,
            "cells": corpus.cells.by,
            "sources": [source.name for source in corpus.training],
        },
        inputs={**inputs, "tokenizer": tokenizer.digest},
        make=make,
    )


def _sample(sizes: dict[str, int], budget: int, key: int) -> set[str]:
    order = sorted(sizes, key=lambda one: (xxhash.xxh3_64_intdigest(one.encode(), seed=key), one))
    picked: set[str] = set()
    total = 0
    for one in order:
        total += sizes[one]
        if total > budget and picked:
            break
        picked.add(one)
    return picked


def _texts(split: Split, source: str, picked: set[str]) -> Iterator[str]:
    for batch in split.batches(source, ["id", "text"]):
        columns = zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        yield from (text for identity, text in columns if identity in picked)


class _Streams:
    """The files of all cells, open while they are written; a cell is there once it has text."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self._folder, self._dtype = folder, dtype
        self._open = ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._counts: dict[str, list[int]] = {}

    def close(self) -> None:
        """Close all files."""
        self._open.close()

    def append(self, cell: str, data: bytes, documents: int) -> int:
        """Append documents, each with its end; returns how many tokens that are."""
        if cell not in self._files:
            path = self._folder / f"{cell}.bin"
            self._files[cell] = self._open.enter_context(path.open("wb"))
            self._counts[cell] = [0, 0]
        self._files[cell].write(data)
        tokens = len(data) // self._dtype.itemsize
        self._counts[cell][0] += tokens
        self._counts[cell][1] += documents
        return tokens

    def cells(self, unit_tokens: int) -> dict[str, dict[str, int]]:
        """What `store.json` says of each cell, by name."""
        return {
            cell: {
                "tokens": tokens,
                "documents": documents,
                "units": tokens // unit_tokens,
                "tail_tokens": tokens % unit_tokens,
            }
            for cell, (tokens, documents) in sorted(self._counts.items())
        }


def _encoded(
    folder: Path, split: Split, source: str, encoder: Encoder, cells: Cells, vocab_size: int
) -> Iterator[Part]:
    """The shards of a source: `TOKENS` is cell after cell, as long as the facts say."""
    firsts = (text for b in split.batches(source, ["text"]) for text in b["text"].to_pylist())
    gate = encoder.gate(source, firsts)

    def make(inside: Path, batches: Taken[pa.RecordBatch]) -> dict[str, Any]:
        before = gate.fallbacks
        found: dict[str, list[bytes]] = defaultdict(list)
        size = 0
        for batch in batches:
            for start in range(0, batch.num_rows, 256):
                part = batch.slice(start, 256)
                texts, ids = part["text"].to_pylist(), part["id"].to_pylist()
                encoded = encoder.encode_batch(texts, source)
                for cell, one in zip(cells.of(source, ids), encoded, strict=True):
                    found[cell].append(np.append(one, EOS_ID).astype(dtype).tobytes())
                size += sum(part["bytes"].to_pylist())
        with (inside / TOKENS).open("wb") as file:
            lengths = {cell: sum(map(file.write, data)) for cell, data in sorted(found.items())}
        return {
            "cells": {cell: [length, len(found[cell])] for cell, length in lengths.items()},
            "bytes": size,
            "fallbacks": gate.fallbacks - before,
        }

    dtype = token_dtype(vocab_size)
    for shard in shards(folder, source, split.batches(source, ["id", "text", "bytes"]), make):
        if shard.reused:
            gate.fallbacks += shard.facts["fallbacks"]
        yield shard


def _write(encoded: Iterable[Part], streams: _Streams, task: Task) -> dict[str, int]:
    count = {"documents": 0, "bytes": 0, "tokens": 0}
    for shard in encoded:
        with (shard.path / TOKENS).open("rb") as file:
            for cell, (length, documents) in shard.facts["cells"].items():
                count["tokens"] += streams.append(cell, file.read(length), documents)
                count["documents"] += documents
        count["bytes"] += shard.facts["bytes"]
        task.advance(shard.facts["bytes"])
    return count


def _check_units(cells: dict[str, dict[str, int]], corpus: CorpusConfig) -> None:
    if not any(cell["units"] for cell in cells.values()):
        most = max(cells, key=lambda name: cells[name]["tokens"])
        raise ValueError(
            f"the largest cell {most} has {cells[most]['tokens']} tokens, less than one unit of "
            f"{corpus.unit_tokens}; give more text or a smaller unit_tokens"
        )
