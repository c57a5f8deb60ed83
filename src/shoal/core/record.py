"""The run record: two append-only files that a stranger can check.

`metrics.jsonl`, one line per step: {"step", "attempt", ...values}.
`events.jsonl`, one line per event: {"kind", "time", "attempt", ...fields, "link"}.

A link states the size and SHA-256 of both files before it and names the event link before it:
a chain from the run's first event. Checkpoints store a link too, so that a record which was cut
after a checkpoint no longer fits it (`verify_link`). An event's link also covers its own fields.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from shoal.core.files import canonical_json

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_EVIDENCE_CHARACTERS = 200


class _Log:
    """One append-only file with its running SHA-256; `torn` is what `open` cut off its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = b""
        self.last: dict[str, Any] = {}
        self.highest_attempt = 0
        self._hash = hashlib.sha256()
        self._bytes = 0
        if path.exists():
            for raw, line in _read_lines(path):
                self._take(raw)
                self.last = line
                self.highest_attempt = max(self.highest_attempt, line.get("attempt", 0))

    def open(self) -> None:
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.seek(self._bytes)
                self.torn = file.read()
                file.truncate(self._bytes)
        self._file = self.path.open("ab")

    def append(self, text: str) -> None:
        raw = text.encode() + b"\n"
        self._file.write(raw)
        self._file.flush()
        self._take(raw)

    def _take(self, raw: bytes) -> None:
        self._hash.update(raw)
        self._bytes += len(raw)

    def state(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Record:
    """Appends to one run folder's record; one writer at a time: the caller locks the folder."""

    def __init__(
        self, folder: Path, metrics: _Log, events: _Log, attempt: int, previous: str
    ) -> None:
        self.folder = folder
        self.attempt = attempt
        self._metrics = metrics
        self._events = events
        self._previous = previous

    @classmethod
    def open(cls, folder: Path, *, attempt: int | None = None) -> "Record":
        """Opens or creates the record; a torn last line is cut and told as event `torn`.

        Args:
            folder: the run folder.
            attempt: stands on every line; None means one more than the highest recorded, from 1.

        Raises:
            ValueError: a line other than the last is not JSON, or the last event has no link.
        """
        folder.mkdir(parents=True, exist_ok=True)
        metrics, events = _Log(folder / METRICS), _Log(folder / EVENTS)
        last_link = events.last.get("link")
        if events.last and not _is_link(last_link):
            raise ValueError(f"{events.path}: the last event has no link; restore the file")
        previous = last_link["link"] if last_link else ""
        if attempt is None:
            attempt = max(metrics.highest_attempt, events.highest_attempt) + 1
        metrics.open()
        events.open()
        record = cls(folder, metrics, events, attempt, previous)
        for log in (metrics, events):
            if log.torn:
                text = log.torn[:_EVIDENCE_CHARACTERS].decode(errors="replace")
                record.event("torn", file=log.path.name, bytes=len(log.torn), text=text)
        return record

    def metric(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends one line of numbers and lists of numbers; non-finite ones become strings."""
        assert not {"step", "attempt"} & values.keys(), "step and attempt are the line's own"
        line = {"step": step, "attempt": self.attempt, **_plain_items(values)}
        self._metrics.append(json.dumps(line, allow_nan=False))

    def event(self, kind: str, **fields: object) -> None:
        """Appends one event with its link; what came before is on disk first."""
        assert not {"kind", "time", "attempt", "link"} & fields.keys(), "these are the line's own"
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"kind": kind, "time": now, "attempt": self.attempt, **_plain_items(fields)}
        link = _linked({**self._state(), "event": _sha256(line)})
        self._events.append(json.dumps({**line, "link": link}, allow_nan=False))
        self._events.sync()
        self._previous = link["link"]

    def link(self) -> dict[str, Any]:
        """The link of this moment, for a checkpoint's manifest; both files are on disk after it."""
        return _linked(self._state())

    def _state(self) -> dict[str, Any]:
        self._metrics.sync()
        self._events.sync()
        return {
            "metrics": self._metrics.state(),
            "events": self._events.state(),
            "previous": self._previous,
        }

    def close(self) -> None:
        """Closes both files; nothing is buffered."""
        self._metrics.close()
        self._events.close()

    def __enter__(self) -> "Record":  # noqa: PYI034 -- beartype refuses Self on a method
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Spectator(Record):
    """The record of a process that writes none, because another of its run does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = 0

    def metric(self, step: int, values: Mapping[str, Any]) -> None:
        del step, values

    def event(self, kind: str, **fields: object) -> None:
        del kind, fields

    def link(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """One line per step, ascending; of several attempts at a step, the highest.

    Raises:
        ValueError: a line other than the last is not JSON.
    """
    steps: dict[int, dict[str, Any]] = {}
    if (folder / METRICS).exists():
        for _, line in _read_lines(folder / METRICS):
            known = steps.get(line["step"])
            if known is None or line["attempt"] >= known["attempt"]:
                steps[line["step"]] = line
    return [{key: _numbers(value) for key, value in steps[step].items()} for step in sorted(steps)]


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All events in the order of writing; errors as `read_metrics`."""
    path = folder / EVENTS
    return [line for _, line in _read_lines(path)] if path.exists() else []


def verify_chain(folder: Path) -> list[str]:
    """Recomputes every event's link; the problems found, none when the record is sound."""
    try:
        lines = list(_read_lines(folder / EVENTS))
    except (OSError, ValueError) as error:
        return [f"{EVENTS} cannot be read: {error}"]
    if not lines:
        return [f"{EVENTS} holds no event"]
    problems: list[str] = []
    previous = ""
    prefixes = {name: _Prefixes(folder / name) for name in (METRICS, EVENTS)}
    start = 0
    for number, (raw, line) in enumerate(lines, 1):
        where = f"{EVENTS} line {number} ({line.get('kind')})"
        link = line.pop("link", None)
        if not _is_link(link):
            problems.append(f"{where}: has no link")
        else:
            if link["events"]["bytes"] != start:
                problems.append(f"{where}: a line before it was added or removed")
            if link["previous"] != previous:
                problems.append(f"{where}: does not follow the event before it")
            if link.get("event") != _sha256(line):
                problems.append(f"{where}: was edited")
            problems += _link_problems(where, link, prefixes)
            previous = link["link"]
        start += len(raw)
    return problems


def verify_link(folder: Path, link: Mapping[str, Any]) -> list[str]:
    """Checks a link that stands elsewhere (in a checkpoint) against the record; the problems."""
    if not _is_link(link):
        return ["the link is incomplete"]
    prefixes = {name: _Prefixes(folder / name) for name in (METRICS, EVENTS)}
    return _link_problems("link", link, prefixes)


class _Prefixes:
    """SHA-256 of a file's first bytes, for sizes that ascend, in one pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self._bytes = 0

    def sha256(self, size: int) -> str | None:
        """None where the file is shorter."""
        if not self._path.exists() or size > self._path.stat().st_size:
            return None
        if size < self._bytes:
            self._hash, self._bytes = hashlib.sha256(), 0
        with self._path.open("rb") as file:
            file.seek(self._bytes)
            self._hash.update(file.read(size - self._bytes))
        self._bytes = size
        return self._hash.hexdigest()


def _link_problems(
    where: str, link: Mapping[str, Any], prefixes: dict[str, _Prefixes]
) -> list[str]:
    problems: list[str] = []
    if _linked({k: v for k, v in link.items() if k != "link"})["link"] != link["link"]:
        problems.append(f"{where}: its link was edited")
    for name, key in ((METRICS, "metrics"), (EVENTS, "events")):
        found = prefixes[name].sha256(link[key]["bytes"])
        if found is None:
            problems.append(
                f"{where}: {name} is shorter than the {link[key]['bytes']} bytes it had"
            )
        elif found != link[key]["sha256"]:
            problems.append(f"{where}: {name} was changed before this point")
    return problems


def _is_link(candidate: object) -> bool:
    link = cast("Mapping[str, Any]", candidate)
    try:
        sizes = [link[key]["bytes"] for key in ("metrics", "events")]
        hashes = [link[key]["sha256"] for key in ("metrics", "events")]
        return all(isinstance(size, int) and size >= 0 for size in sizes) and all(
            isinstance(text, str) for text in [*hashes, link["previous"], link["link"]]
        )
    except (TypeError, KeyError):
        return False


def _linked(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "link": _sha256(state)}


def _sha256(value: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The whole lines; a last line that is not whole is left out."""
    with path.open("rb") as file:
        following = file.readline()
        number = 0
        while following:
            raw, following = following, file.readline()
            number += 1
            line = _parsed(raw)
            if line is not None:
                yield raw, line
            elif following:
                raise ValueError(f"{path} line {number} is not a JSON object; restore the file")


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """None where the line is torn: no newline, or no JSON object."""
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    whole = isinstance(line, dict) and raw.endswith(b"\n")
    return cast("dict[str, Any]", line) if whole else None


def _plain_items(values: Mapping[str, object]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: object) -> object:
    """Python numbers, strings and lists; arrays become lists, non-finite floats become strings."""
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        value = to_list()
    if isinstance(value, dict):
        return _plain_items(cast("dict[str, object]", value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def _numbers(value: object) -> object:
    """Undoes what `_plain` does to non-finite floats."""
    if isinstance(value, list):
        return [_numbers(item) for item in cast("list[object]", value)]
    return _NONFINITE.get(value, value) if isinstance(value, str) else value
