"""Progress that a person can watch: moving bars on a terminal, plain lines everywhere else.

Work takes a `Progress` and opens one task per thing that takes time; it never asks where the
output goes. Output goes to standard error, so that standard output stays for results.
"""

import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from io import TextIOBase
from typing import IO, Protocol, cast, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

LINE_EVERY_S = 10.0


@runtime_checkable
class Task(Protocol):
    """One piece of work under way."""

    def advance(self, amount: float = 1) -> None:
        """Adds to what is done, in the task's unit."""
        ...

    def say(self, status: str) -> None:
        """Replaces the short text shown behind the task's name."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Where work reports; every implementation may be used from one thread only."""

    def task(
        self, name: str, total: float | None = None, unit: str = ""
    ) -> AbstractContextManager[Task]:
        """Opens a task as a context manager; `total` is in `unit`, None when unknown."""
        ...

    def note(self, text: str) -> None:
        """Prints one line that stays."""
        ...


class Silent:
    """Reports nothing, for tests and for callers that read the result only."""

    @contextmanager
    def task(self, name: str, total: float | None = None, unit: str = "") -> Generator[Task]:
        del name, total, unit
        yield _Nothing()

    def note(self, text: str) -> None:
        del text


class _Nothing:
    def advance(self, amount: float = 1) -> None:
        del amount

    def say(self, status: str) -> None:
        del status


class Lines:
    """One line when a task starts to matter, every ten seconds while it runs, and at its end."""

    def __init__(self, stream: TextIOBase, every_s: float = LINE_EVERY_S) -> None:
        self.stream = stream
        self.every_s = every_s

    @contextmanager
    def task(self, name: str, total: float | None = None, unit: str = "") -> Generator[Task]:
        task = _LineTask(self, name, total, unit)
        yield task
        task.finish()

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class _LineTask:
    def __init__(self, lines: Lines, name: str, total: float | None, unit: str) -> None:
        self.lines, self.name, self.total, self.unit = lines, name, total, unit
        self.started = self.printed = time.monotonic()
        self.done = 0.0
        self.status = ""

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.printed >= self.lines.every_s:
            self.printed = now
            self.lines.note(self._line())

    def say(self, status: str) -> None:
        self.status = status

    def finish(self) -> None:
        self.lines.note(f"{self._line()} in {time.monotonic() - self.started:.1f} s")

    def _line(self) -> str:
        share = f"/{_amount(self.total, self.unit)}" if self.total else ""
        count = f": {_amount(self.done, self.unit)}{share}" if self.done else ""
        return f"{self.name}{count}{f' ({self.status})' if self.status else ''}"


class Terminal:
    """Moving bars; used as a context manager by whoever owns the terminal."""

    def __init__(self, console: Console) -> None:
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self.open = 0

    @contextmanager
    def task(self, name: str, total: float | None = None, unit: str = "") -> Generator[Task]:
        if self.open == 0:
            self.bars.start()
        self.open += 1
        started = time.monotonic()
        row = self.bars.add_task(name, total=total, status="")
        task = _BarTask(self.bars, row, unit)
        try:
            yield task
        finally:
            self.open -= 1
            self.bars.remove_task(row)
            if self.open == 0:
                self.bars.stop()
        seconds = time.monotonic() - started
        count = f": {_amount(task.done, unit)}" if task.done else ""
        note = f" ({task.status})" if task.status else ""
        self.note(f"{name}{count}{note} in {seconds:.1f} s")

    def note(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False)


class _BarTask:
    def __init__(self, bars: Bars, row: TaskID, unit: str) -> None:
        self.bars, self.row, self.unit = bars, row, unit
        self.done = 0.0
        self.status = ""

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        self.bars.advance(self.row, amount)

    def say(self, status: str) -> None:
        self.status = status
        self.bars.update(self.row, status=status)


def progress_for(stream: TextIOBase | None = None) -> Progress:
    """Bars when the stream (standard error by default) is a terminal, lines otherwise."""
    chosen = cast("TextIOBase", sys.stderr) if stream is None else stream
    console = Console(file=cast("IO[str]", chosen))
    return Terminal(console) if console.is_terminal else Lines(chosen)


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,.0f}{f' {unit}' if unit else ''}"
