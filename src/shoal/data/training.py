"""The text that is trained on: documents less what the stages took out, in id order.

A document goes if it is a duplicate, contained in another, held out, or all benchmark text; of one
that holds some benchmark text that is cut, and what is left is the text everywhere after it, with
the id of the document it was.
"""

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa

from shoal.core.artifact import Artifact
from shoal.data import table
from shoal.data.config import CorpusConfig
from shoal.data.heldout import SETS, Unique
from shoal.data.heldout import TABLE as HELDOUT
from shoal.data.spans import CONTAMINATION, CUT, apply_spans

type _Spans = dict[str, list[tuple[int, int]]]


class Split:
    """Joins the documents with the tables that drop some of them, or cut them.

    Args:
        unique: documents without duplicates.
        heldout: of which none is trained on.
        contamination: what is cut from the rest, once that is known.
    """

    def __init__(
        self, unique: Unique, heldout: Artifact, contamination: Artifact | None = None
    ) -> None:
        self.unique = unique
        self._heldout = heldout
        self.rows = table.read(heldout.path / HELDOUT).to_pylist()
        self.not_trained = {row["id"] for row in self.rows}
        self._cuts: dict[str, _Spans] = {}
        self._gone: set[tuple[str, str]] = set()
        if contamination:
            self._cuts, self._gone = _found(contamination)

    def without(self, contamination: Artifact) -> "Split":
        """The same text, less what this table cuts."""
        return Split(self.unique, self._heldout, contamination)

    def batches(self, source: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """A source's training documents, a bounded number at a time."""
        cuts = self._cuts.get(source, {})
        needed = {*columns, "id", "source_id", *(["text"] if cuts and "bytes" in columns else [])}
        for batch in self.unique.batches(source, sorted(needed)):
            keep = [
                identity not in self.not_trained and (source, place) not in self._gone
                for identity, place in zip(
                    batch["id"].to_pylist(), batch["source_id"].to_pylist(), strict=True
                )
            ]
            left = batch.filter(pa.array(keep, pa.bool_()))
            yield (_cut(left, cuts) if cuts else left).select(columns)

    def sizes(self, source: str) -> dict[str, int]:
        """Id -> bytes of a source's training documents, in id order."""
        return {
            identity: size
            for batch in self.batches(source, ["id", "bytes"])
            for identity, size in zip(
                batch["id"].to_pylist(), batch["bytes"].to_pylist(), strict=True
            )
        }

    def heldout_texts(self, corpus: CorpusConfig) -> dict[str, dict[str, list[str]]]:
        """Set -> domain -> texts in id order; a domain of which nothing is left is not there."""
        kept = {(row["source"], row["id"]): row for row in self.rows if row["kept"]}
        texts: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in SETS}
        for source in corpus.read:
            for batch in self.unique.batches(source.name, ["id", "text"]):
                for identity, text in zip(
                    batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True
                ):
                    row = kept.get((source.name, identity))
                    if row:
                        texts[row["set"]][row["domain"]].append(text)
        return {name: dict(domains) for name, domains in texts.items() if domains}


def _found(contamination: Artifact) -> tuple[dict[str, _Spans], set[tuple[str, str]]]:
    """Source -> document -> what is cut from it, and the documents that go."""
    cuts: dict[str, _Spans] = defaultdict(lambda: defaultdict(list))
    gone: set[tuple[str, str]] = set()
    columns = ["source", "source_id", "start", "stop", "action"]
    for batch in table.batches(contamination.path / CONTAMINATION, columns):
        for row in batch.to_pylist():
            if row["action"] == CUT:
                cuts[row["source"]][row["source_id"]].append((row["start"], row["stop"]))
            else:
                gone.add((row["source"], row["source_id"]))
    return {source: dict(spans) for source, spans in cuts.items()}, gone


def _cut(batch: pa.RecordBatch, cuts: _Spans) -> pa.RecordBatch:
    places = batch["source_id"].to_pylist()
    if "text" not in batch.schema.names or not any(place in cuts for place in places):
        return batch
    texts = [
        apply_spans(text, cuts[place]) if place in cuts else text
        for place, text in zip(places, batch["text"].to_pylist(), strict=True)
    ]
    batch = batch.set_column(batch.schema.get_field_index("text"), "text", pa.array(texts))
    if "bytes" in batch.schema.names:
        sizes = pa.array([len(text.encode()) for text in texts], pa.int64())
        batch = batch.set_column(batch.schema.get_field_index("bytes"), "bytes", sizes)
    return batch
