"""Stage `corpus`: what a stranger reads, and the goldens that catch a silent change of output."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.artifact import load
from shoal.core.files import canonical_json
from shoal.core.progress import Silent
from shoal.data import table
from shoal.data.config import CorpusConfig
from shoal.jobs.prepare import Prepared, prepare

# The digest of a stage is made of its inputs, and `content` of what it wrote. When a content
# changes its stage's REVISION must rise, which changes the digest beside it.
GOLDEN = Path(__file__).parent / "golden.json"


def _content(folder: Path) -> str:
    """One hash of what an artifact says, whatever the versions that wrote its files."""
    said: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".parquet":
            rows = table.read(path).to_pylist()
            said[path.name] = json.loads(json.dumps(rows, default=lambda raw: raw.hex()))
        elif path.suffix == ".bin":
            said[path.name] = np.fromfile(path, "<u2").tolist()
        elif path.name == "tokenizer.json":
            model = json.loads(path.read_text())["model"]
            said[path.name] = [model["vocab"], model["merges"]]
        elif path.name == "store.json":
            said[path.name] = json.loads(path.read_text())
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:16]


def _digests(prepared: Prepared) -> dict[str, dict[str, str]]:
    root = prepared.corpus.path.parent
    return {
        path.name.partition("@")[0]: {
            "digest": load(path).digest[:16],
            "content": _content(path),
        }
        for path in sorted(root.iterdir())
    }


def test_the_outputs_of_a_tiny_corpus_are_the_known_ones(tmp_path: Path, tiny: CorpusConfig):
    found = _digests(prepare(tiny, tmp_path / "home", Silent()))
    (tmp_path / "golden.json").write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())


def test_every_source_has_a_card_and_counts_that_add_up(tmp_path: Path, tiny: CorpusConfig):
    facts = prepare(tiny, tmp_path / "home", Silent()).facts
    assert facts["corpus"].startswith("tiny@")
    assert facts["unit_tokens"] == 256
    assert facts["tokenizer"]["vocab_size"] == 400
    assert 1 < facts["tokenizer"]["bytes_per_token"] < 10
    assert [stage["stage"] for stage in facts["stages"]] == [
        *["source"] * 3,
        "documents",
        "duplicates",
        "near",
        "heldout",
        "benchmarks",
        "contamination",
        "tokenizer",
        "tokens",
    ]
    by_name = {source["name"]: source for source in facts["sources"]}
    for source in facts["sources"]:
        dropped = source["duplicates"] + source["near_duplicates"] + source["overlap_dropped"]
        dropped += source["contaminated_dropped"]
        left = source["heldout_documents"] + source["training_documents"]
        assert source["documents"] == dropped + left
        assert source["revision"].startswith("sha256:")
        assert source["license"] == "CC0-1.0"
        assert source["retrieved"]
    assert by_name["alpha"]["rejected"] == by_name["alpha"]["empty"] == 1
    assert by_name["beta"]["duplicates"] == 2
    assert by_name["gamma"]["usage"] == "evaluation"
    assert by_name["gamma"]["domain"] == "letters"
    assert by_name["gamma"]["tokens"] == by_name["gamma"]["training_documents"] == 0
    assert by_name["gamma"]["overlap_dropped"] == 2


def test_the_corpus_digest_changes_with_what_decides_it_only(tmp_path: Path, tiny: CorpusConfig):
    home = tmp_path / "home"
    digest = prepare(tiny, home, Silent()).corpus.digest
    renamed = prepare(replace(tiny, name="other"), home, Silent())
    assert renamed.corpus.digest == digest
    cards = tuple(replace(source, origin="x", license="MIT") for source in tiny.sources)
    assert prepare(replace(tiny, sources=cards), home, Silent()).corpus.digest == digest
    for changed in (
        replace(tiny, unit_tokens=128),
        replace(tiny, heldout=replace(tiny.heldout, key=1)),
        replace(tiny, tokenizer=replace(tiny.tokenizer, vocab_size=401)),
        replace(tiny, max_document_bytes=100_000),
        replace(tiny, sources=tiny.sources[:2]),
    ):
        assert prepare(changed, home, Silent()).corpus.digest != digest
