"""Cells: into which stream of the token store each training document goes.

A corpus has one cell per training source, or one per topic and level of quality that holds text,
named `t07-q3`. Only the name of a cell decides the order of its units (house wall 6).
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from shoal.core.artifact import Artifact
from shoal.data import table
from shoal.data.config import CorpusConfig


@runtime_checkable
class Cells(Protocol):
    """What the stage `tokens` asks."""

    def of(self, source: str, ids: Sequence[str]) -> list[str]:
        """The cell of each of a source's documents.

        Raises:
            ValueError: a document has none; the artifacts do not belong together.
        """
        ...


class SourceCells:
    """A source's documents are its cell."""

    def of(self, source: str, ids: Sequence[str]) -> list[str]:
        """The source's name, for all."""
        return [source] * len(ids)


class TopicCells:
    """Topic and level of quality of every document, out of the tables of both stages."""

    def __init__(self, corpus: CorpusConfig, topics: Artifact, quality: Artifact) -> None:
        topic = _column(topics, "topics.parquet", "topic")
        level = _column(quality, "quality.parquet", "level")
        self._cells = {
            source.name: _joined(topics, topic[source.name], quality, level[source.name])
            for source in corpus.training
        }

    def of(self, source: str, ids: Sequence[str]) -> list[str]:
        """`tTT-qL` for each."""
        known, cells = self._cells[source]
        wanted = np.asarray(ids, known.dtype)
        places = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
        missing = ~np.isin(wanted, known)
        if missing.any():
            raise ValueError(
                f"source {source}: document {wanted[missing][0]} has no topic or no level; delete "
                "the corpus' topics and quality artifacts to make them again"
            )
        return cells[places].tolist()


def cell_name(topic: int, level: int) -> str:
    """The name of a topic's level; the best level is the highest."""
    return f"t{topic:02d}-q{level}"


type _Column = tuple[np.ndarray, np.ndarray]


def _column(artifact: Artifact, name: str, column: str) -> dict[str, _Column]:
    """Source -> (ids in ascending order, the column's value of each)."""
    found = table.read(artifact.path / name, ["id", "source", column])
    ids = np.asarray(found["id"].to_pylist(), "U32")
    values = found[column].to_numpy()
    sources = np.asarray(found["source"].to_pylist())
    columns: dict[str, _Column] = {}
    for source in np.unique(sources).tolist():
        mine = sources == source
        order = np.argsort(ids[mine])
        columns[source] = ids[mine][order], values[mine][order]
    return columns


def _joined(topics: Artifact, topic: _Column, quality: Artifact, level: _Column) -> _Column:
    if not np.array_equal(topic[0], level[0]):
        raise ValueError(
            f"{topics.path} and {quality.path} do not hold the same documents; delete both to "
            "make them again"
        )
    names = [cell_name(int(one), int(two)) for one, two in zip(topic[1], level[1], strict=True)]
    return topic[0], np.asarray(names)
