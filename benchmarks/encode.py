"""Text per CPU second of the fast encoder and of HF tokenizers, with the ids of both compared.

    .venv/bin/python benchmarks/encode.py [--text FOLDER_OR_PARQUET ...] [--tokenizer FILE] ...

Without `--text` the text is the Python files of the running interpreter's library, without
`--tokenizer` a byte-level BPE that is trained on a part of it, as the stage `tokenizer` does. Text
is cut at `--megabytes`. Each encoder runs in a process of its own, one after the other, with the
same batches; CPU seconds are user and system time of all its threads while it encodes, loading left
out. `--threads` is given to both. The fast encoder goes through `data.encode` with its gate, whose
own time is told apart. The last line says whether both gave the same ids, all of them, and the
command fails if they did not. (Not called tokenize.py: beside other scripts a file of that name
hides the module of Python's library.)
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = ("tokenizers", "fastokens")
BATCH = 256


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Text per CPU second of two encoders.")
    parser.add_argument("--text", type=Path, nargs="*", help="folders of text, or Parquet files")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--vocabulary", type=int, default=4_096, help="of a trained tokenizer")
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=CASES, help="one case, in this process, as JSON")
    return parser.parse_args(words)


def texts(args: argparse.Namespace) -> list[str]:
    """The documents, up to the wanted size."""
    found, size = [], 0.0
    for text in _documents(args.text or [Path(sysconfig.get_paths()["stdlib"])]):
        found.append(text)
        size += len(text.encode())
        if size >= args.megabytes * 1e6:
            break
    return found


def _documents(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["text"]):
                    yield from batch["text"].to_pylist()
            continue
        for file in sorted(path.rglob("*")):
            if file.suffix in {".py", ".txt", ".md", ".rst"} and file.is_file():
                try:
                    yield file.read_text("utf-8")
                except UnicodeDecodeError:
                    continue


def train(found: list[str], vocabulary: int, path: Path) -> None:
    """Write a tokenizer that is trained on about two megabytes of the text."""
    from shoal.data.config import TokenizerConfig
    from shoal.data.tokenize import train as trained

    step = max(1, sum(len(text) for text in found) // 2_000_000)
    trained(found[::step], TokenizerConfig(vocab_size=vocabulary)).save(str(path))


def measure(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Encode everything in this process."""
    from shoal.data.encode import Encoder

    found = texts(args)
    encoder = Encoder(args.tokenizer, fast=case == "fastokens")
    before = _cpu()
    gate = encoder.gate("text", found)
    gate_s = _cpu() - before
    if case != gate.encoder:
        raise SystemExit(f"the gate refuses the fast encoder: {gate.reason}; first {gate.first}")
    digest, count, cpu_s, wall_s = hashlib.sha256(), 0, 0.0, 0.0
    for start in range(0, len(found), BATCH):
        before, wall = _cpu(), time.perf_counter()
        ids = encoder.encode_batch(found[start : start + BATCH], "text")
        cpu_s += _cpu() - before
        wall_s += time.perf_counter() - wall
        for one in ids:
            digest.update(len(one).to_bytes(8, "little") + one.tobytes())
            count += len(one)
    return {
        "bytes": sum(len(text.encode()) for text in found),
        "documents": len(found),
        "tokens": count,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "gate_s": gate_s,
        "fallbacks": gate.fallbacks,
        "digest": digest.hexdigest(),
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    threads = str(args.threads)
    said = subprocess.run(
        [
            sys.executable,
            __file__,
            *sys.argv[1:],
            "--tokenizer",
            str(args.tokenizer),
            "--only",
            case,
        ],
        env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(said.stdout.splitlines()[-1])


def main() -> None:
    """Print one line per encoder."""
    args = parse()
    if args.only:
        print(json.dumps(measure(args.only, args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.tokenizer is None:
            args.tokenizer = Path(folder) / "tokenizer.json"
            train(texts(args), args.vocabulary, args.tokenizer)
        found = {case: run(case, args) for case in CASES}
    base = found[CASES[0]]
    held = f"{base['documents']:,} documents, {base['tokens']:,} tokens"
    print(f"{base['bytes'] / 1e6:.1f} MB in {held}, {args.threads} threads")
    print(f"{'':12}" + "".join(f"{word:>12}" for word in ("MB/CPU-s", "CPU s", "wall s", "gate s")))
    for case, one in found.items():
        numbers = (one["bytes"] / 1e6 / one["cpu_s"], one["cpu_s"], one["wall_s"], one["gate_s"])
        print(f"{case:12}" + "".join(f"{number:12.2f}" for number in numbers))
    ratio = base["cpu_s"] / found[CASES[1]]["cpu_s"]
    same = base["digest"] == found[CASES[1]]["digest"]
    print(f"ratio per CPU second {ratio:.1f}x, ids {'identical' if same else 'DIFFERENT'}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
