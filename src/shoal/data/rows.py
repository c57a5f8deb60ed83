"""Records out of JSON lines and Parquet rows.

A row gives the string at `text_field`, or, where that is a pattern such as `[0-9]*`, each string in
a field of such a name; with a template, the text that the messages there make. Bound of memory: one
line, or `PARQUET_ROWS` rows of the columns that are read.
"""

import io
import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.data.config import Reader
from shoal.data.members import BLOCK_BYTES, Limits, Record, Stream, is_seekable, read_whole
from shoal.data.rollouts import text_of

PARQUET_ROWS = 256


def json_lines(name: str, file: Stream, reader: Reader, limits: Limits) -> Iterator[Record]:
    """The records of every line; a line that is too long or not UTF-8 is one with a problem.

    Raises:
        ValueError: a line is not JSON or has no text.
    """
    number = 0
    while line := file.readline(limits.record_bytes + 1):
        number += 1
        place = f"{name}:{number}"
        if len(line) > limits.record_bytes:
            while line and not line.endswith(b"\n"):
                line = file.readline(BLOCK_BYTES)
            problem = f"the line is longer than {limits.record_bytes} bytes"
            yield Record(source_id=place, data=b"", problem=problem)
            continue
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            yield Record(source_id=place, data=line)  # counted as invalid UTF-8 later
            continue
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"line {number} of {name} is not JSON ({error}); repair it") from error
        yield from _from_row(row, place, reader)


def parquet_rows(name: str, file: Stream, reader: Reader, limits: Limits) -> Iterator[Record]:
    """The records of every row; only the columns that the reader names are read.

    Raises:
        ValueError: there is no such column, or a row has no text.
    """
    inner = file if is_seekable(file) else io.BytesIO(read_whole(file, limits.member_bytes, name))
    with pq.ParquetFile(cast("Any", inner)) as table:
        columns = _columns(name, table.schema_arrow.names, reader)
        number = 0
        for batch in table.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
            for row in _plain_rows(batch):
                number += 1
                for record in _from_row(row, f"{name}:{number}", reader):
                    yield (
                        record
                        if len(record.data) <= limits.record_bytes
                        else _too_long(record, limits)
                    )


def _too_long(record: Record, limits: Limits) -> Record:
    problem = f"the row is longer than {limits.record_bytes} bytes"
    return Record(source_id=record.source_id, data=b"", problem=problem)


def _plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = {name: batch.column(name) for name in batch.schema.names}
    for index in range(batch.num_rows):
        yield {name: column[index].as_py() for name, column in columns.items()}


def _columns(name: str, there: list[str], reader: Reader) -> list[str]:
    texts = [field for field in there if fnmatchcase(field, reader.text_field)]
    if not texts:
        raise ValueError(
            f"{name} has no column {reader.text_field!r} (its columns: {', '.join(there[:20])}); "
            "set text_field"
        )
    further = [reader.id_field, *reader.where[:1]]
    missing = [field for field in further if field and field not in there]
    if missing:
        raise ValueError(f"{name} has no column {missing[0]!r}; its columns: {', '.join(there)}")
    return list(dict.fromkeys([*texts, *filter(None, further)]))


def _from_row(row: Any, place: str, reader: Reader) -> Iterator[Record]:
    if not isinstance(row, dict):
        raise _no_text(place, reader, "no object")
    row = cast("dict[str, Any]", row)
    own = row.get(reader.id_field) if reader.id_field else None
    identity = place if own is None else f"{place}:{own}"
    # Half a surrogate pair is legal in JSON and not in UTF-8: it must reach the check as it is.
    identity = identity.encode("utf-8", "backslashreplace").decode()
    if reader.template:
        if _taken(row, reader):
            try:
                data = _utf8(text_of(row.get(reader.text_field)))
                yield Record(source_id=identity, data=data)
            except ValueError as error:
                yield Record(source_id=identity, data=b"", problem=f"no rollout: {error}")
        return
    several = any(sign in reader.text_field for sign in "*?[")
    fields = [f for f in row if fnmatchcase(f, reader.text_field)] if several else []
    chosen = [f for f in fields if isinstance(row[f], str)] if several else [reader.text_field]
    if not chosen or not isinstance(row.get(chosen[0]), str | bytes):
        raise _no_text(place, reader, ", ".join(map(repr, list(row)[:8])))
    if _taken(row, reader):
        for field in chosen:
            where = f"{identity}:{field}" if several else identity
            yield Record(source_id=where, data=_utf8(row[field]))


def _taken(row: dict[str, Any], reader: Reader) -> bool:
    return not reader.where or row.get(reader.where[0]) == reader.where[1]


def _utf8(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")


def _no_text(place: str, reader: Reader, keys: str) -> ValueError:
    name, _, number = place.rpartition(":")
    return ValueError(
        f"line {number} of {name} has no text at {reader.text_field!r} ({keys}); "
        "every line needs one"
    )
