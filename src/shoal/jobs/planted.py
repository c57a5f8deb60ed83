"""Job `audit --planted`: plants what the stages should find, runs them, and says what they found.

Result: `exact` {"planted", "found", "lost"}; `near`, kind -> {"texts", "pairs", "found", "lost",
"recall"} (`data.planted_near`), with `below_bound`: removals whose keeper holds less of them than
the settings ask; `contamination`: recall and survival by kind (`data.planted_items`), "recall",
"precision". The corpus stands in a folder that is deleted at the end.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.core.progress import Progress, progress_for
from shoal.data import planted_items, planted_near, table
from shoal.data.archive import content_digest
from shoal.data.config import (
    Archive,
    CorpusConfig,
    HeldoutConfig,
    Reader,
    Source,
    TokenizerConfig,
)
from shoal.data.settings import Benchmark, DecontamConfig, NearConfig
from shoal.jobs.corpora import Corpus, CorpusRow, find_corpus, removals
from shoal.jobs.prepare import prepare

EXACT_COPIES = 20


def planted(
    *, families: int = 40, items: int = 10, seed: int = 0, progress: Progress | None = None
) -> dict[str, Any]:
    """Plant, run the stages, and score what they removed.

    Args:
        families: near duplicates of every kind.
        items: benchmark items of every kind.
        seed: of all texts.
        progress: where the work reports; standard error by default.
    """
    with tempfile.TemporaryDirectory() as folder:
        return scores(build(Path(folder), families, items, seed, progress or progress_for()))


@dataclass(frozen=True, kw_only=True)
class Planting:
    """A finished corpus and what was planted in it."""

    corpus: Corpus
    near: Sequence[planted_near.Planted]
    items: planted_items.PlantedItems
    copies: int


def build(root: Path, families: int, items: int, seed: int, progress: Progress) -> Planting:
    """Plants a corpus under `root`, runs its stages, and says where it is."""
    near = planted_near.plant(seed, families=families)
    found = planted_items.plant_items(items, seed)
    alone = [item.text for item in near if item.kind == planted_near.ALONE][:EXACT_COPIES]
    fresh = planted_near.plant(seed + 1, families=1)[0].text
    (root / "items.jsonl").write_text(found.jsonl())
    sources = (
        _source(root, "near", [item.text for item in near]),
        _source(root, "copies", [*alone, fresh]),
        _source(root, "benchmarks", [one.text for one in found.documents]),
    )
    prepared = prepare(_corpus(root, sources), root, progress)
    corpus = find_corpus(str(prepared.corpus.path))
    return Planting(corpus=corpus, near=near, items=found, copies=len(alone))


def scores(planting: Planting) -> dict[str, Any]:
    """What the stages found of it."""
    order = [str(place) for place in range(len(planting.items.documents))]
    marked = _contamination(planting.corpus)
    return {
        "exact": _exact(planting.corpus, planting.copies),
        "near": _near(planting.corpus, planting.near),
        "contamination": planted_items.score(planting.items, marked, order),
    }


def render(result: dict[str, Any]) -> str:
    """Return the scores for a terminal."""
    exact, near, marked = result["exact"], result["near"], result["contamination"]
    lines = [f"exact copies     found {exact['found']} of {exact['planted']}, lost {exact['lost']}"]
    for kind, one in near["kinds"].items():
        found = f"found {one['found']} of {one['pairs']}, " if one["pairs"] else ""
        lines.append(f"near: {kind:14} {found}lost {one['lost']} of {one['texts']}")
    lines.append(f"near: removals below the bound of containment: {near['below_bound']}")
    lines += [
        f"benchmark: {kind:14} right {one['right']} of {one['documents']}"
        for kind, one in marked["kinds"].items()
    ]
    told = f"recall {marked['recall']:.3f}, precision {marked['precision']:.3f}"
    return "\n".join([*lines, f"benchmark: {told}"])


def _source(root: Path, name: str, texts: Iterable[str]) -> Source:
    path = root / f"{name}.jsonl"
    rows = [{"id": str(place), "text": text} for place, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(
        name=name,
        kind="prose",
        archive=Archive(form="file", path=str(path), sha256=content_digest(path)),
        reader=Reader(members=("*",), lines="json", id_field="id"),
        origin="made by Shoal",
        license="CC0-1.0",
        license_evidence="words drawn at random",
    )


def _corpus(root: Path, sources: tuple[Source, ...]) -> CorpusConfig:
    path = root / "items.jsonl"
    benchmark = Benchmark(name=planted_items.BENCHMARK, path=str(path), sha256=content_digest(path))
    return CorpusConfig(
        name="planted",
        sources=sources,
        heldout=HeldoutConfig(budget_bytes=0),
        decontam=DecontamConfig(benchmarks=(benchmark,)),
        tokenizer=TokenizerConfig(vocab_size=512, sample_bytes=200_000),
        unit_tokens=512,
    )


def _exact(corpus: Corpus, planted_copies: int) -> dict[str, int]:
    rows = list(removals(corpus, "duplicates"))
    found = {row["source_id"] for row in rows if row["source"] == "copies"}
    return {"planted": planted_copies, "found": len(found), "lost": len(rows) - len(found)}


def _near(corpus: Corpus, texts: Sequence[planted_near.Planted]) -> dict[str, Any]:
    rows = list(removals(corpus, "near"))
    gone = [int(_id(row)) for row in rows if row["source"] == "near"]
    bound = NearConfig().min_containment
    return {
        "kinds": {
            kind: {**asdict(one), "recall": one.found / one.pairs if one.pairs else None}
            for kind, one in planted_near.score(texts, gone).items()
        },
        "removed_elsewhere": len(rows) - len(gone),
        "below_bound": sum(row["evidence"]["containment"] < bound for row in rows),
    }


def _contamination(corpus: Corpus) -> list[CorpusRow]:
    """Rows as the stage wrote them, of the source that items were planted in."""
    path = corpus.folders["contamination"] / "contamination.parquet"
    rows = table.read(path).to_pylist()
    return [{**row, "source_id": _id(row)} for row in rows if row["source"] == "benchmarks"]


def _id(row: CorpusRow) -> str:
    """The line's own id, which a reader puts behind the place of the line."""
    return row["source_id"].rpartition(":")[2]
