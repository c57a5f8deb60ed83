"""Fuzzy deduplication against datatrove: text per CPU-second, and what each finds.

    .venv/bin/python benchmarks/dedup.py FOLDER [--megabytes N] [--planted N]
    .venv/bin/python benchmarks/dedup.py FOLDER --scale 50 100 200 400

Documents are words of the standard library's sources in random order, about ten kilobytes each,
and planted among them are pairs of an original and a changed copy (see `shoal.data.planted_near`).
Both tools read the same documents, one after the other, in a process of their own; datatrove
0.10.1 in an environment of its own, which is made under FOLDER with pip the first time. Printed
are CPU-seconds (user and system, all threads and children), MB of text per CPU-second, peak memory,
and recall: the share of planted pairs of which one document is removed, by their true Jaccard
similarity of word 5-grams. `signatures` is the first stage alone, `whole` everything up to the list
of removed documents, start-up and compiled code from disk included.

datatrove runs as its documentation shows it: 14 bands of 8 64-bit hashes, word 5-grams, English.
Shoal runs its defaults: 32 bands of 4, and containment checked before anything is removed.
`--scale` measures Shoal alone at several sizes: seconds per MB should not grow, nor memory by more
than the signatures' few hundred bytes a document.
"""

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any

DATATROVE = ("datatrove[io]==0.10.1", "xxhash<4", "spacy", "regex", "tokenizers")
WORDS_OF_A_DOCUMENT = 1400
BARS = (0.9, 0.8, 0.7)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fuzzy deduplication against datatrove.")
    parser.add_argument("folder", type=Path, help="for inputs, outputs and datatrove's environment")
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--planted", type=int, default=40, help="pairs of each kind")
    parser.add_argument("--scale", type=int, nargs="+", default=[], help="megabytes; Shoal alone")
    parser.add_argument("--only", choices=("shoal", "datatrove"), help="in this process, as JSON")
    return parser.parse_args(words)


def make_inputs(folder: Path, megabytes: int, planted: int) -> list[dict[str, Any]]:
    """Write documents for both tools; return the planted pairs with their similarity."""
    import numpy as np
    import pyarrow as pa
    import xxhash

    from shoal.data import table
    from shoal.data.planted_near import COPIES, changed, prose

    library = Path(sysconfig.get_paths()["stdlib"])
    text = " ".join(path.read_text(errors="ignore") for path in sorted(library.glob("*.py")))
    words = np.array([word for word in text.split() if word.isalpha()])
    drawn, numbers = random.Random(0), np.random.default_rng(0)
    texts, pairs, size = [], [], 0
    while size < megabytes * 10**6 or len(pairs) < planted * len(COPIES):
        mine = words[numbers.integers(0, len(words), WORDS_OF_A_DOCUMENT)].tolist()
        texts.append(prose(mine))
        size += len(texts[-1])
        if len(pairs) < planted * len(COPIES):
            kind = COPIES[len(pairs) % len(COPIES)]
            texts.append(changed(kind, mine, drawn))
            size += len(texts[-1])
            one, other = (_runs(text) for text in texts[-2:])
            similarity = len(one & other) / len(one | other)
            pairs.append({"ids": (len(texts) - 2, len(texts) - 1), "jaccard": similarity})
    (folder / "jsonl").mkdir(parents=True, exist_ok=True)
    rows = [(xxhash.xxh3_128_hexdigest(t.encode()), t, str(n)) for n, t in enumerate(texts)]
    with (folder / "jsonl" / "all.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": n, "text": t}) + "\n" for _, t, n in rows)
    ids, texts, places = map(list, zip(*sorted(rows), strict=True))
    sizes = [len(text.encode()) for text in texts]
    columns = {"id": ids, "text": texts, "source": ["all"] * len(ids), "source_id": places}
    table.write(folder / "all.parquet", pa.table({**columns, "bytes": sizes}))
    (folder / "sizes.json").write_text(json.dumps([len(ids), sum(sizes)]))
    return pairs


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[place : place + 5]) for place in range(len(words) - 4)}


def cpu_s() -> float:
    """Return the CPU-seconds of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def peak_gb() -> float:
    """Return the most memory that this program has held.

    `ru_maxrss` counts what the parent held when it started this process.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e9


def shoal(folder: Path) -> dict[str, Any]:
    """Run the stage; return CPU-seconds after the first stage, and what was removed."""
    import shutil
    import tempfile

    from shoal.core.artifact import build
    from shoal.core.progress import Silent
    from shoal.data import near, signatures, table
    from shoal.data.config import Archive, CorpusConfig, Reader, Source
    from shoal.data.dedup import duplicates
    from shoal.data.engine import Engine
    from shoal.data.settings import NearConfig

    count, size = json.loads((folder / "sizes.json").read_text())
    source = Source(
        name="all",
        kind="prose",
        archive=Archive(form="file", sha256="0" * 64, path="none"),
        reader=Reader(members=("*",)),
        origin="the standard library",
        license="PSF-2.0",
        license_evidence="its documentation",
    )
    corpus, config = CorpusConfig(name="bench", sources=(source,)), NearConfig()

    def make(into: Path) -> dict[str, Any]:
        shutil.copy(folder / "all.parquet", into / "all.parquet")
        return {"sources": {"all": {"documents": count, "bytes": size}}}

    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        documents = build(
            root, "documents", stage="bench", revision=1, literals={}, inputs={}, make=make
        )
        twins = duplicates(root, corpus, documents, Silent())
        signatures.signatures(root, corpus, documents, Silent(), config, Engine())
        first = cpu_s()
        made = near.near(root, corpus, documents, twins, Silent(), config=config)
        rows = table.read(made.path / near.TABLE, ["source_id"])
        removed = [int(place) for place in rows["source_id"].to_pylist()]
    return {"signatures_s": first, "removed": removed}


def datatrove(folder: Path) -> dict[str, Any]:
    """Run the four steps of its documentation; return the same."""
    # In datatrove's environment only.
    from datatrove.executor.local import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline.dedup import minhash  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-not-found]
    from datatrove.pipeline.writers import JsonlWriter  # type: ignore[import-not-found]
    from datatrove.utils.hashing import HashConfig  # type: ignore[import-not-found]
    from datatrove.utils.typeshelper import Languages  # type: ignore[import-not-found]

    out = folder / "datatrove" / str(time.time_ns())
    config = minhash.MinhashConfig(
        hash_config=HashConfig(precision=64), n_grams=5, num_buckets=14, hashes_per_bucket=8
    )
    signed, buckets, clusters, gone = (str(out / name) for name in ("a", "b", "c", "d"))
    reader = JsonlReader(str(folder / "jsonl"))

    def run(steps: list[Any], tasks: int = 1) -> None:
        LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=None).run()

    run([reader, minhash.MinhashDedupSignature(signed, config, language=Languages.english)])
    first = cpu_s()
    run([minhash.MinhashDedupBuckets(signed, buckets, config=config)], tasks=config.num_buckets)
    run([minhash.MinhashDedupCluster(buckets, clusters, config=config)])
    writer = JsonlWriter(gone, compression=None)
    run([reader, minhash.MinhashDedupFilter(clusters, exclusion_writer=writer)])
    lines = [line for path in Path(gone).glob("*") for line in path.read_text().splitlines()]
    return {"signatures_s": first, "removed": [int(json.loads(line)["id"]) for line in lines]}


def environment(folder: Path) -> Path:
    """Find or make datatrove's environment; return its interpreter."""
    place = folder / "venv"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--only-binary=:all:", *DATATROVE], check=True)
    return python


def measured(command: list[str]) -> dict[str, Any]:
    """Run a command that prints JSON last; add its CPU-seconds and peak memory."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, complaint = process.communicate()
    if process.returncode:
        raise SystemExit(complaint[-3000:])
    return json.loads(said.splitlines()[-1])


def line(name: str, found: dict[str, Any], megabytes: float, pairs: list[dict[str, Any]]) -> str:
    """Return one row of the table."""
    speeds = [megabytes / found[key] for key in ("signatures_s", "whole_s")]
    gone = set(found["removed"])
    recalls = []
    for low in BARS:
        mine = [pair for pair in pairs if low <= pair["jaccard"]]
        hits = sum(not gone.isdisjoint(pair["ids"]) for pair in mine)
        recalls.append(f"{hits:5}/{len(mine):<4}")
    planted = {number for pair in pairs for number in pair["ids"]}
    numbers = f"{found['whole_s']:9.1f}{speeds[0]:12.2f}{speeds[1]:9.2f}{found['peak_gb']:9.2f}"
    return f"{name:10}{numbers}  {' '.join(recalls)}{len(gone):9}{len(gone - planted):7}"


def main() -> None:
    """Print the table and the ratios."""
    args = parse()
    folder = args.folder.absolute()
    if args.only:
        found = {"shoal": shoal, "datatrove": datatrove}[args.only](folder)
        print(json.dumps({**found, "whole_s": cpu_s(), "peak_gb": peak_gb()}))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tools = {"shoal": sys.executable}
    if not args.scale:
        tools["datatrove"] = str(environment(folder))
    bars = " ".join(f"J>={bar}".center(10) for bar in BARS)
    print(f"{'':10}{'CPU s':>9}{'sign. MB/s':>12}{'MB/s':>9}{'peak GB':>9}  {bars} removed others")
    for megabytes in args.scale or [args.megabytes]:
        inputs = folder / f"{megabytes}"
        pairs = make_inputs(inputs, megabytes, args.planted)
        size = json.loads((inputs / "sizes.json").read_text())[1] / 1e6
        results = {}
        for name, python in tools.items():
            results[name] = measured([python, __file__, str(inputs), "--only", name])
            label = f"{size:.0f} MB" if args.scale else name
            print(line(label, results[name], size, pairs), flush=True)
        if not args.scale:
            keys = ("signatures_s", "whole_s")
            ratios = [results["datatrove"][key] / results["shoal"][key] for key in keys]
            print(f"ratio: signatures {ratios[0]:.1f}x, whole {ratios[1]:.1f}x per CPU-second")


if __name__ == "__main__":
    main()
