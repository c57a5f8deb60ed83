"""What is planted in a corpus is found, its audit adds up, and each removal is explained."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.core.progress import Silent
from shoal.data.planted_items import DECOYS, PLANTED
from shoal.data.planted_near import COPIES, SHARED
from shoal.jobs.audit import facts
from shoal.jobs.corpora import removals
from shoal.jobs.explain import explain
from shoal.jobs.planted import Planting, build, render, scores


@pytest.fixture(scope="module")
def planting(tmp_path_factory: pytest.TempPathFactory) -> Planting:
    """A small planted corpus; not to be changed."""
    return build(tmp_path_factory.mktemp("planted"), 8, 2, 0, Silent())


def test_what_is_planted_is_found_and_what_only_looks_like_it_stays(planting: Planting):
    found = json.loads(json.dumps(scores(planting)))
    assert found["exact"] == {"planted": 8, "found": 8, "lost": 0}
    near = found["near"]["kinds"]
    assert all(near[kind]["lost"] == 0 for kind in near)
    assert all(near[kind]["recall"] == 1 for kind in COPIES if kind != "8 % replaced")
    assert all(near[kind]["recall"] is None for kind in SHARED)
    assert found["near"]["below_bound"] == 0
    marked = found["contamination"]
    assert (marked["recall"], marked["precision"]) == (1, 1)
    for kind in (*PLANTED, *DECOYS):
        assert marked["kinds"][kind]["right"] == marked["kinds"][kind]["documents"] > 0
    assert "recall 1.000, precision 1.000" in render(found)


def test_a_corpus_from_the_stages_themselves_adds_up_and_every_removal_is_explained(
    planting: Planting,
):
    corpus = planting.corpus
    found = facts(corpus)
    assert found["problems"] == []
    assert [row["stage"] for row in found["flow"]] == [
        "documents",
        "duplicates",
        "near",
        "heldout",
        "contamination",
    ]
    for one in found["removals"]:
        for sample in one["samples"]:
            told = explain(str(corpus.path), f"{sample['source']}/{sample['source_id']}")
            (document,) = told["documents"]
            assert document["in_training"] == (one["outcome"] == "cut")
            assert any(stage["outcome"] == one["outcome"] for stage in document["stages"])


def test_the_scores_fall_when_a_stage_misses_something(planting: Planting, tmp_path: Path):
    import shutil
    from dataclasses import replace

    corpus = planting.corpus
    folders = {name: tmp_path / name for name in ("near", "duplicates", "contamination")}
    for name, folder in folders.items():
        shutil.copytree(corpus.folders[name], folder)
        path = folder / f"{name}.parquet"
        rows = pq.read_table(path)
        pq.write_table(rows.slice(1), path)
    spoiled = replace(planting, corpus=replace(corpus, folders={**corpus.folders, **folders}))
    assert len(list(removals(spoiled.corpus, "near"))) > 0
    before, after = scores(planting), scores(spoiled)
    assert after["exact"]["found"] == 7
    counted = [sum(one["found"] for one in s["near"]["kinds"].values()) for s in (before, after)]
    assert counted[1] == counted[0] - 1
    assert after["contamination"]["recall"] < 1
