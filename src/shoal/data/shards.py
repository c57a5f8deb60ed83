"""Shards: consecutive pieces of a stream, each a part of the artifact that is being made.

What a stage does with a stream of documents it does shard by shard, so that a killed one goes on at
the shard that it was at. A shard ends with the item that brings it to its size; where it ends is
kept with it, and the items of a finished shard are passed over, not looked at.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core.parts import Part, part

SHARD_BYTES = 32 * 2**20


class Taken[T]:
    """The items of one shard, to be iterated to the end once.

    Attributes:
        first: the stream begins with it.
        count: items so far.
        last: the stream ended in this shard; known once it is iterated.
        ended: it is iterated.
    """

    def __init__(
        self, stream: Iterator[T], size: Callable[[T], int], most_bytes: int, *, first: bool
    ) -> None:
        self._stream, self._size, self._left = stream, size, most_bytes
        self.first = first
        self.count = 0
        self.last = self.ended = False

    def __iter__(self) -> Iterator[T]:
        while self._left > 0:
            item = next(self._stream, None)
            if item is None:
                self.last = True
                break
            self.count += 1
            yield item
            self._left -= self._size(item)
        self.ended = True


def table_bytes(table: Any) -> int:
    """Of an Arrow batch or table."""
    return table.nbytes


def shards[T](
    folder: Path,
    name: str,
    items: Iterable[T],
    make: Callable[[Path, Taken[T]], Mapping[str, Any]],
    size: Callable[[T], int] = table_bytes,
    most_bytes: int = 0,
) -> Iterator[Part]:
    """Finds or makes the shards of a stream, in its order; there is at least one.

    Args:
        folder: as for `part`.
        name: of the stream, the same for the same items only.
        items: none of them None. Those of finished shards are taken from the stream and left.
        make: iterates what it is given to the end, writes files and returns facts.
        size: of an item in bytes, asked once the item has been worked through.
        most_bytes: what a shard may reach; `SHARD_BYTES` when 0.
    """
    stream = iter(items)

    def taken(inside: Path, number: int) -> dict[str, Any]:
        mine = Taken(stream, size, most_bytes or SHARD_BYTES, first=number == 0)
        facts = make(inside, mine)
        assert mine.ended, "a shard is iterated to its end"
        return {"items": mine.count, "last": mine.last, "facts": dict(facts)}

    for number in itertools.count():
        found = part(folder, f"{name}+{number:04d}", partial(taken, number=number))
        if found.reused:
            for _ in itertools.islice(stream, found.facts["items"]):
                pass
        yield Part(path=found.path, facts=found.facts["facts"], reused=found.reused)
        if found.facts["last"]:
            return
