"""Job `label`: ask a judge for the quality of a sample of a corpus' training documents.

Result: `labels` (the file), `judged`, `rejected`, `controls`, `levels` (how many documents in
each), `separation` (the chance that a document scores above a damaged one: 1 is perfect, 0.5 is a
guess), `separation_by_damage`, and `first_rejected`.
"""

import heapq
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import xxhash

from shoal.core.files import home
from shoal.core.progress import progress_for
from shoal.data import table
from shoal.data.agreement import separation
from shoal.data.damage import DAMAGES, damaged
from shoal.data.judge import NUM_LEVELS, Endpoint, Item, Label, judge_of, label
from shoal.data.rubric import Form
from shoal.jobs.corpora import ORDER, Corpus, find_corpus, removals

CONTROL_SHARE = 0.15
SAMPLE_SEED = 7


def label_corpus(
    corpus: str,
    *,
    endpoint: str = "",
    model: str = "",
    count: int = 400,
    form: Form = "rating",
    gguf: Path | None = None,
    timeout_s: float = 120.0,
    out: Path | None = None,
) -> dict[str, Any]:
    """Label `count` documents and, beside them, damaged ones; a stopped run goes on.

    Args:
        corpus: a path, NAME@HASH12 or NAME.
        endpoint: a URL; that of a chat endpoint ends in `/v1`.
        model: as the endpoint calls it.
        count: of documents, the same number of every source as far as it has them.
        form: `rating` for a model that follows instructions, `yes-no` for a small one in llama.cpp.
        gguf: a model file to serve here instead of `endpoint` (extra `judge`), with `yes-no`.
        out: the labels; SHOAL_HOME/labels/NAME@HASH12-MODEL.jsonl by default.

    Raises:
        ValueError: there is no such corpus, the endpoint is gone or refuses.
    """
    if bool(endpoint) == bool(gguf):
        raise ValueError(f"endpoint={endpoint!r}, gguf={gguf}: give one of them")
    if count < 1:
        raise ValueError(f"count={count}: label at least one document")
    found = find_corpus(corpus)
    name = model or (gguf.stem if gguf else "default")
    clean = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    path = out or home() / "labels" / f"{found.ref}-{clean}.jsonl"
    with _server(gguf, endpoint) as url:
        judge = judge_of(form, Endpoint(url=url, model=name, timeout_s=timeout_s))
        day = datetime.now(UTC).date().isoformat()
        labels = label(list(_items(found, count)), judge, path, day, progress_for())
    return {"labels": str(path), **facts(labels)}


def facts(labels: list[Label]) -> dict[str, Any]:
    """What the labels of a file say of their judge."""
    judged = [one for one in labels if not one.rejected]
    rejected = [one for one in labels if one.rejected]
    good = [one.score for one in judged if not one.control]
    bad = {damage: [one.score for one in judged if one.control == damage] for damage in DAMAGES}
    return {
        "judged": len(good),
        "rejected": len(rejected),
        "controls": sum(len(scores) for scores in bad.values()),
        "levels": [
            sum(one.level == level and not one.control for one in judged)
            for level in range(1, NUM_LEVELS + 1)
        ],
        "separation": separation(good, [score for scores in bad.values() for score in scores]),
        "separation_by_damage": {name: separation(good, scores) for name, scores in bad.items()},
        "first_rejected": [{"id": one.id, "reason": one.rejected} for one in rejected[:5]],
    }


def _items(corpus: Corpus, count: int) -> Iterator[Item]:
    """The sample with its controls: every so many documents, one of them also damaged."""
    # Held-out documents are named by their id alone.
    gone = {
        (row["source"], row["source_id"] or row["id"])
        for stage in ORDER
        for row in removals(corpus, stage)
    }
    damages = cycle(DAMAGES)
    due = 0.0
    for identity, text in _sample(corpus, count, gone):
        yield Item(id=identity, text=text)
        due += CONTROL_SHARE
        if due >= 1:
            due -= 1
            damage = next(damages)
            yield Item(id=identity, text=damaged(text, damage, identity), control=damage)


def _sample(corpus: Corpus, count: int, gone: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Id and text of documents, one source after the other in turn, in the order of a hash."""
    each = -(-count // len(corpus.training))
    chosen = {source: _smallest(corpus, source, count, gone) for source in corpus.training}
    # Small sources leave room to the others.
    while sum(min(each, len(ids)) for ids in chosen.values()) < count and each < count:
        each += 1
    columns = []
    for source, ids in chosen.items():
        wanted = set(ids[:each])
        texts: dict[str, str] = {}
        for batch in table.batches(corpus.documents(source), ["id", "text"]):
            rows = zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
            texts |= {identity: text for identity, text in rows if identity in wanted}
        columns.append([(identity, texts[identity]) for identity in ids[:each]])
    turns = (column[n] for n in range(each) for column in columns if n < len(column))
    yield from islice(turns, count)


def _smallest(corpus: Corpus, source: str, count: int, gone: set[tuple[str, str]]) -> list[str]:
    ids = {
        identity
        for batch in table.batches(corpus.documents(source), ["id", "source_id"])
        for identity, place in zip(
            batch["id"].to_pylist(), batch["source_id"].to_pylist(), strict=True
        )
        if (source, place) not in gone and (source, identity) not in gone
    }
    keyed = ((xxhash.xxh3_64_intdigest(one.encode(), seed=SAMPLE_SEED), one) for one in ids)
    return [one for _, one in heapq.nsmallest(count, keyed)]


def _server(gguf: Path | None, endpoint: str) -> AbstractContextManager[str]:
    if gguf is None:
        return nullcontext(endpoint)
    from shoal.data.llama import serve

    return serve(gguf)
