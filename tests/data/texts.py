"""Training text in memory, as a stage after `heldout` sees it."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from shoal.data.config import Archive, CorpusConfig, Reader, Source
from shoal.data.normalize import document_id
from shoal.data.training import Split


class Texts(Split):
    """A split of given texts, in id order; `source_id` is a text's place in its list."""

    def __init__(
        self,
        sources: Mapping[str, Sequence[str]],
        heldout: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
        rows: int = 7,
    ) -> None:
        self.texts = sources
        self.held = heldout or {}
        self.num_rows = rows

    def batches(self, source: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        texts = self.texts[source]
        made = [
            {
                "id": document_id(text),
                "text": text,
                "source": source,
                "source_id": str(number),
                "bytes": len(text.encode()),
            }
            for number, text in enumerate(texts)
        ]
        made.sort(key=lambda row: row["id"])
        for start in range(0, len(made), self.num_rows):
            whole = pa.Table.from_pylist(made[start : start + self.num_rows])
            yield from whole.select(columns).to_batches()

    def heldout_texts(self, corpus: CorpusConfig) -> dict[str, dict[str, list[str]]]:
        return {name: {d: list(t) for d, t in sets.items()} for name, sets in self.held.items()}


def corpus_of(*names: str) -> CorpusConfig:
    """A corpus of training sources with these names, which nobody reads."""
    sources = tuple(
        Source(
            name=name,
            kind="prose",
            archive=Archive(form="file", sha256="0" * 64, path="nowhere"),
            reader=Reader(members=("*",)),
            origin="a test",
            license="CC0-1.0",
            license_evidence="written here",
        )
        for name in names
    )
    return CorpusConfig(name="small", sources=sources)
