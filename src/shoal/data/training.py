"""The text that is trained on: documents that are neither duplicates nor held out, in id order."""

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa

from shoal.core.artifact import Artifact
from shoal.data import table
from shoal.data.config import CorpusConfig
from shoal.data.heldout import SETS, Unique
from shoal.data.heldout import TABLE as HELDOUT


class Split:
    """Joins the documents with the two attribute tables that drop some of them."""

    def __init__(self, documents: Artifact, duplicates: Artifact, heldout: Artifact) -> None:
        self.unique = Unique(documents, duplicates)
        self.rows = table.read(heldout.path / HELDOUT).to_pylist()
        self.not_trained = {row["id"] for row in self.rows}

    def batches(self, source: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """A source's training documents, a bounded number at a time; `columns` includes `id`."""
        for batch in self.unique.batches(source, columns):
            keep = [identity not in self.not_trained for identity in batch["id"].to_pylist()]
            yield batch.filter(pa.array(keep, pa.bool_()))

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
        for source in corpus.sources:
            for batch in self.unique.batches(source.name, ["id", "text"]):
                for identity, text in zip(
                    batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True
                ):
                    row = kept.get((source.name, identity))
                    if row:
                        texts[row["set"]][row["domain"]].append(text)
        return {name: dict(domains) for name, domains in texts.items() if domains}
