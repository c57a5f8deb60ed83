"""A stream cut into parts: each item in one shard, and finished shards are passed over."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.core import artifact
from shoal.data.shards import shards

SIZES = (5, 3, 9, 1, 1, 30, 2, 7)


@dataclass
class Item:
    number: int
    size: int
    seen: bool = False

    def read(self) -> str:
        self.seen = True
        return f"{self.number} "


def items() -> list[Item]:
    return [Item(number, size) for number, size in enumerate(SIZES)]


def build(root: Path, stream: Iterable[Item], most_bytes: int, fail_at: int = -1):
    """Joins what its shards say; which of them begin and end the stream is a fact."""

    def make(folder: Path) -> Mapping[str, object]:
        def write(inside: Path, taken: Iterable[Item]) -> Mapping[str, object]:
            text = ""
            for item in taken:
                if item.number == fail_at:
                    raise OSError("disk full")
                text += item.read()
            (inside / "text").write_text(text)
            return {"first": taken.first, "last": taken.last}  # type: ignore[attr-defined]

        found = list(shards(folder, "all", stream, write, lambda item: item.size, most_bytes))
        texts = [(shard.path / "text").read_text() for shard in found]
        (folder / "text").write_text("".join(texts))
        return {"texts": texts, "ends": [shard.facts for shard in found]}

    return artifact.build(root, "demo", stage="demo", revision=1, literals={}, inputs={}, make=make)


@pytest.mark.parametrize("most_bytes", [1, 4, 8, 9, 58, 59, 1_000])
def test_every_item_is_in_one_shard_and_shards_reach_their_size(tmp_path, most_bytes):
    made = build(tmp_path, items(), most_bytes)
    assert (made.path / "text").read_text() == "0 1 2 3 4 5 6 7 "
    *full, rest = [[SIZES[int(one)] for one in text.split()] for text in made.facts["texts"]]
    assert all(sum(sizes) >= most_bytes > sum(sizes[:-1]) for sizes in full)
    assert sum(rest) < most_bytes
    ends = [(one["first"], one["last"]) for one in made.facts["ends"]]
    assert ends == [(n == 0, n == len(full)) for n in range(len(full) + 1)]


def test_an_empty_stream_has_one_empty_shard(tmp_path):
    made = build(tmp_path, [], 8)
    assert made.facts == {"texts": [""], "ends": [{"first": True, "last": True}]}


@pytest.mark.parametrize("fail_at", range(len(SIZES)))
def test_a_rerun_looks_at_no_item_of_a_finished_shard(tmp_path, fail_at):
    whole = build(tmp_path / "whole", items(), 8)
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path / "root", items(), 8, fail_at)
    stream = items()
    again = build(tmp_path / "root", iter(stream), 8)
    assert again.manifest["files"] == whole.manifest["files"]
    assert again.facts == whole.facts
    done = [int(one) for text in again.facts["texts"] for one in text.split()]
    first = next(text for text in again.facts["texts"] if str(fail_at) in text.split())
    begins = done.index(int(first.split()[0]))
    assert [item.seen for item in stream] == [n >= begins for n in range(len(SIZES))]


def test_the_size_of_an_item_is_asked_after_it_is_read(tmp_path):
    class Growing(Item):
        def read(self) -> str:
            self.size = 4
            return super().read()

    stream: Iterator[Item] = (Growing(number, 0) for number in range(5))
    made = build(tmp_path, stream, 8)
    assert made.facts["texts"] == ["0 1 ", "2 3 ", "4 "]
