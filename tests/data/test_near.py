"""Near duplicates: what is removed is contained in what stays, and the planted ones are found."""

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from shoal.core.artifact import Artifact, build
from shoal.core.progress import Silent
from shoal.data import near as near_module
from shoal.data import signatures, table
from shoal.data.config import CorpusConfig, Source
from shoal.data.dedup import duplicates
from shoal.data.near import near
from shoal.data.planted_near import COPIES, SHARED, plant, score
from shoal.data.settings import MARIN_NEAR, NearConfig

Sources = dict[str, list[str]]
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "text", "source", "source_id")),
        ("bytes", pa.int64()),
    ]
)


@pytest.fixture
def corpus_of(tmp_path: Path, source: Callable[..., Source]) -> Callable[..., CorpusConfig]:
    """A corpus whose sources have these names; their archives are never read."""
    (tmp_path / "none.txt").write_text("nothing")

    def make(*names: str) -> CorpusConfig:
        made = tuple(source(tmp_path / "none.txt", name=name) for name in names)
        return CorpusConfig(name="small", sources=made)

    return make


@pytest.fixture
def stage(tmp_path: Path, corpus_of: Callable[..., CorpusConfig]) -> Callable[..., Artifact]:
    """Runs the stage on texts of sources; a document's source_id is its place in the list."""

    def run(sources: Sources, config: NearConfig | None = None, **options: object) -> Artifact:
        corpus, root = corpus_of(*sources), tmp_path / "root"
        documents = write_documents(root, sources)
        twins = duplicates(root, corpus, documents, Silent())
        options = {"config": config or NearConfig(), **options}
        return near(root, corpus, documents, twins, Silent(), **options)

    return run


def write_documents(root: Path, sources: Sources) -> Artifact:
    """The artifact that `normalize.documents` makes, straight from texts."""

    def make(folder: Path) -> dict[str, object]:
        for name, texts in sources.items():
            rows = [
                {
                    "id": xxhash.xxh3_128_hexdigest(text.encode()),
                    "text": text,
                    "source": name,
                    "source_id": f"{number:05d}",
                    "bytes": len(text.encode()),
                }
                for number, text in enumerate(texts)
            ]
            found = pa.Table.from_pylist(rows, SCHEMA)
            keys = [("id", "ascending"), ("source_id", "ascending")]
            table.write(folder / f"{name}.parquet", found.sort_by(keys))
        sizes = {
            name: {"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)}
            for name, texts in sources.items()
        }
        return {"sources": sizes}

    literals = {"texts": xxhash.xxh3_64_hexdigest(json.dumps(sources).encode())}
    return build(
        root, "documents", stage="texts", revision=1, literals=literals, inputs={}, make=make
    )


def rows_of(artifact: Artifact) -> list[dict]:
    return table.read(artifact.path / near_module.TABLE).to_pylist()


def ngrams(text: str, length: int) -> set[tuple[str, ...]]:
    """Distinct word n-grams, the slow way; ASCII texts only."""
    words = re.sub(r"[^a-z0-9\s]", "", text.lower()).split()
    length = min(length, len(words))
    return {tuple(words[place : place + length]) for place in range(len(words) - length + 1)}


def jaccard(one: str, other: str) -> float:
    a, b = ngrams(one, 5), ngrams(other, 5)
    return len(a & b) / len(a | b)


def naive(sources: Sources, groups: list[list[tuple[str, int]]], share: float) -> dict:
    """(source, place) -> (keeper, containment), by comparing every pair of sets of words."""
    order = list(sources)
    found: dict = {}
    for group in groups:
        key = lambda item: (  # noqa: E731
            -len(sources[item[0]][item[1]].encode()),
            order.index(item[0]),
            xxhash.xxh3_128_hexdigest(sources[item[0]][item[1]].encode()),
        )
        kept: list[tuple[str, int]] = []
        for member in sorted(group, key=key):
            mine = ngrams(sources[member[0]][member[1]], 3)
            held = [(len(mine & ngrams(sources[a][b], 3)) / len(mine), (a, b)) for a, b in kept]
            best = max(held, key=lambda pair: pair[0], default=(0.0, None))
            if best[0] >= share:
                found[member] = best[::-1]
            else:
                kept.append(member)
    return found


def test_planted_near_duplicates_are_found_and_all_else_stays(stage):
    planted = plant(3, families=30)
    sources = {"one": [item.text for item in planted]}
    rows = rows_of(stage(sources))
    gone = {int(row["source_id"]) for row in rows}
    scores = score(planted, gone)
    assert {kind: scores[kind].lost for kind in scores} == dict.fromkeys(scores, 0)
    assert all(scores[kind].texts > 30 for kind in SHARED)

    families: dict[int, list[int]] = {}
    for place, item in enumerate(planted):
        if item.kind in COPIES:
            families.setdefault(item.family, []).append(place)
    found: dict[float, list[bool]] = {0.9: [], 0.8: []}
    for a, b in families.values():
        similarity = jaccard(planted[a].text, planted[b].text)
        for bar in [bar for bar in found if similarity >= bar]:
            found[bar].append(a in gone or b in gone)
    assert min(map(len, found.values())) >= 60
    assert sum(found[0.9]) / len(found[0.9]) >= 0.99
    assert sum(found[0.8]) / len(found[0.8]) >= 0.95


def test_the_evidence_of_every_removal_is_what_a_slow_count_finds(stage):
    planted = plant(4, families=6, num_words=150)
    half = len(planted) // 2
    sources = {"one": [p.text for p in planted[:half]], "two": [p.text for p in planted[half:]]}
    artifact = stage(sources)
    rows = rows_of(artifact)
    assert len(rows) > 20
    kept = {(row["keeper_source"], row["keeper_source_id"]) for row in rows}
    assert kept.isdisjoint((row["source"], row["source_id"]) for row in rows)
    for row in rows:
        text = sources[row["source"]][int(row["source_id"])]
        keeper = sources[row["keeper_source"]][int(row["keeper_source_id"])]
        mine, theirs = ngrams(text, 3), ngrams(keeper, 3)
        assert row["id"] == xxhash.xxh3_128_hexdigest(text.encode())
        assert row["keeper_id"] == xxhash.xxh3_128_hexdigest(keeper.encode())
        assert row["bytes"] == len(text.encode()) <= len(keeper.encode())
        assert row["containment"] == len(mine & theirs) / len(mine) >= 0.75
        assert row["jaccard"] == len(mine & theirs) / len(mine | theirs)
        assert row["novel_words"] == len(ngrams(text, 1) - ngrams(keeper, 1))
        assert row["component_documents"] >= 2
    facts = artifact.facts
    assert facts["sources"] == {
        name: {
            "removed": sum(row["source"] == name for row in rows),
            "removed_bytes": sum(row["bytes"] for row in rows if row["source"] == name),
        }
        for name in sources
    }
    assert facts["rejected"] == facts["candidates"] - facts["components"] - len(rows) > 0


def test_removals_are_those_of_a_naive_search_in_one_component(stage):
    # One band of one row over single words joins whatever shares the word of the smallest hash.
    everything = NearConfig(shingle_length=1, bands=64, rows=1)
    frame = "zeta"
    texts = [f"{frame} {item.text}" for item in plant(5, families=3, num_words=60, rollouts=4)]
    sources = {"one": texts[::2], "two": texts[1::2]}
    artifact = stage(sources, everything)
    assert artifact.facts["largest_component"] == artifact.facts["candidates"] == len(texts)
    group = [(name, place) for name in sources for place in range(len(sources[name]))]
    expected = naive(sources, [group], 0.75)
    said = {
        (row["source"], int(row["source_id"])): (
            (row["keeper_source"], int(row["keeper_source_id"])),
            row["containment"],
        )
        for row in rows_of(artifact)
    }
    assert said == expected
    assert len(said) > 5


def test_equal_sets_keep_the_longer_text_then_the_earlier_source(stage):
    words = " ".join(f"word{n}" for n in range(60))
    sources = {"late": [f"{words}  !", words.upper()], "later": [words.title(), f"{words} ?"]}
    rows = rows_of(stage(sources))
    assert {row["keeper_source_id"] for row in rows} == {"00000"}
    assert {row["keeper_source"] for row in rows} == {"late"}
    assert {row["containment"] for row in rows} == {1.0}
    assert len(rows) == 3
    equal = {"b": [words], "a": [words.upper()]}
    (row,) = rows_of(stage(equal))
    assert (row["source"], row["keeper_source"]) == ("a", "b")


def test_exempt_sources_lose_nothing_and_keep_others_out(stage):
    words = " ".join(f"word{n}" for n in range(60))
    sources = {"plain": [words], "spared": [f"{words} end", f"{words} End."]}
    config = NearConfig(exempt=("spared",))
    (row,) = rows_of(stage(sources, config))
    assert (row["source"], row["keeper_source"]) == ("plain", "spared")
    assert len(rows_of(stage(sources))) == 2
    with pytest.raises(ValueError, match="exempt source 'other' is not in the corpus"):
        stage(sources, NearConfig(exempt=("other",)))


def test_short_empty_and_equal_documents(stage):
    sources = {"one": ["Two words", "two   words!", "...", "!!", "two words more"], "two": ["..."]}
    sources["two"] += ["Two words", "\n- -\n"]
    (row,) = rows_of(stage(sources))
    # The exact copy in `two` is the business of the stage before.
    assert (row["source"], row["keeper_source_id"], row["containment"]) == ("one", "00001", 1.0)


def test_the_marin_preset_finds_copies_by_characters(stage):
    planted = [item for item in plant(6, families=4, num_words=120) if item.kind in COPIES]
    sources = {"one": [item.text for item in planted]}
    scores = score(planted, [int(row["source_id"]) for row in rows_of(stage(sources, MARIN_NEAR))])
    for kind in ("1 % replaced", "truncated", "banner", "case and space"):
        assert scores[kind].found == scores[kind].pairs == 4


def test_the_order_of_rows_and_passes_over_bands_change_nothing(stage, monkeypatch):
    texts = [item.text for item in plant(7, families=4, num_words=100)]
    whole = stage({"one": texts})
    monkeypatch.setattr(signatures, "ROWS_PER_PASS", 1000)
    turned = stage({"one": texts[::-1]})
    assert turned.digest != whole.digest
    drop = ("source_id", "keeper_source_id")
    one, other = (
        [{k: v for k, v in row.items() if k not in drop} for row in rows_of(artifact)]
        for artifact in (whole, turned)
    )
    assert one == other
    assert len(one) > 10


def test_a_crash_resumes_at_the_source_that_has_no_signatures(stage, monkeypatch, tmp_path):
    texts = [item.text for item in plant(8, families=2, num_words=60)]
    sources = {"one": texts[::2], "two": texts[1::2], "three": ["a last document of few words"]}
    clean = stage(sources)
    root = tmp_path / "root"
    for path in [clean.path, *root.glob("small-signatures-*")]:
        path.rename(root / f"away-{path.name.partition('@')[0]}")
    run = signatures.Engine.map
    calls: list[str] = []

    def die_at_the_second(self, path: Path, *arguments, **options):
        calls.append(path.stem)
        if path.stem == "two" and calls.count("two") == 1:
            raise KeyboardInterrupt
        return run(self, path, *arguments, **options)

    monkeypatch.setattr(signatures.Engine, "map", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        stage(sources)
    again = stage(sources)
    assert calls == ["one", "two", "two", "three"]
    assert again.manifest["files"] == clean_files(root)


def clean_files(root: Path) -> dict:
    return json.loads((root / "away-small-near" / "manifest.json").read_text())["files"]


def test_another_bound_reuses_the_signatures(stage, monkeypatch):
    texts = [item.text for item in plant(9, families=2, num_words=60)]
    loose = stage({"one": texts})
    monkeypatch.setattr(signatures.Engine, "map", None)
    strict = stage({"one": texts}, replace(NearConfig(), min_containment=1.0))
    assert 0 < len(rows_of(strict)) < len(rows_of(loose))
    assert {row["containment"] for row in rows_of(strict)} == {1.0}


def test_a_source_that_is_as_it_was_keeps_its_signatures(stage, tmp_path: Path):
    texts = [item.text for item in plant(12, families=1, num_words=60)]
    stage({"one": texts, "two": texts[:3]})
    stage({"one": texts, "two": texts[:4]})
    made = [path.name.partition("@")[0] for path in (tmp_path / "root").glob("small-sig*")]
    assert sorted(made) == ["small-signatures-one", *["small-signatures-two"] * 2]


def test_golden_digests_of_a_small_corpus(stage):
    texts = [item.text for item in plant(10, families=2, num_words=80)]
    artifact = stage({"one": texts[::2], "two": texts[1::2]})
    rows = json.dumps(rows_of(artifact), sort_keys=True).encode()
    bands = {
        path.name.partition("@")[0]: xxhash.xxh3_64_hexdigest(
            json.dumps(table.read(path / signatures.TABLE).to_pylist(), sort_keys=True).encode()
        )
        for path in artifact.path.parent.glob("small-signatures-*")
    }
    assert (xxhash.xxh3_64_hexdigest(rows), bands) == GOLDEN


GOLDEN = (
    "6728881433539366",
    {"small-signatures-one": "0e2c5af17452298e", "small-signatures-two": "f43aa5942a3cda41"},
)


def test_every_pair_of_planted_texts_that_must_stay_is_below_the_bound():
    planted = plant(11, families=8, num_words=200, rollouts=5)
    for kind in SHARED:
        mine = [item for item in planted if item.kind == kind]
        for one, other in itertools.permutations(mine, 2):
            grams = ngrams(one.text, 3)
            assert len(grams & ngrams(other.text, 3)) / len(grams) < 0.75
