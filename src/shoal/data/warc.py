"""Web archives: the text of HTTP responses, by their content type and charset.

Record ids are the WARC record ids. A response that is not a 200 of HTML or plain text, is packed in
a way that is not read, or is too long keeps its place with a problem; requests, metadata and the
like are no records.
"""

from collections.abc import Iterator
from typing import Any, cast

from shoal.data.markup import decoded, html_text
from shoal.data.members import Limits, Record, Stream

HTML = ("text/html", "application/xhtml+xml")
PLAIN = "text/plain"


def responses(name: str, file: Stream, limits: Limits) -> Iterator[Record]:
    """The responses of one WARC file, packed or not.

    Raises:
        ValueError: it is no WARC file.
    """
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    try:
        for number, record in enumerate(ArchiveIterator(cast("Any", file)), start=1):
            if record.rec_type == "response":
                place = record.rec_headers.get_header("WARC-Record-ID") or f"{name}:{number}"
                yield _response(place, record, limits)
    except ArchiveLoadFailed as error:
        raise ValueError(f"{name} is no WARC file ({error}); get it again") from error


def _response(place: str, record: Any, limits: Limits) -> Record:
    headers = record.http_headers
    if headers is None:
        return Record(source_id=place, data=b"", problem="no HTTP response")
    status = headers.get_statuscode()
    if status != "200":
        return Record(source_id=place, data=b"", problem=f"status {status}")
    kind, _, further = (headers.get_header("Content-Type") or "").partition(";")
    kind = kind.strip().lower()
    if kind not in (*HTML, PLAIN):
        return Record(source_id=place, data=b"", problem=f"content type {kind or 'not stated'}")
    packing = (headers.get_header("Content-Encoding") or "identity").strip().lower()
    if packing not in ("identity", "gzip", "deflate"):
        return Record(source_id=place, data=b"", problem=f"content encoding {packing}")
    data = record.content_stream().read(limits.record_bytes + 1)
    if len(data) > limits.record_bytes:
        problem = f"the response is longer than {limits.record_bytes} bytes"
        return Record(source_id=place, data=b"", problem=problem)
    _, _, charset = further.partition("charset=")
    text = decoded(data, charset.partition(";")[0].strip(" \"'"), markup=kind != PLAIN)
    if text is None:
        return Record(source_id=place, data=data)  # counted as invalid UTF-8 later
    return Record(source_id=place, data=(text if kind == PLAIN else html_text(text)).encode())
