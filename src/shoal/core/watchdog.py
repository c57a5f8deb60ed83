"""A process that stands still ends, and says where it stood.

A collective that waits for a process that is gone waits forever, silently. Whoever does the work
feeds the watchdog; when nobody has for a while, it writes the stack of every thread and ends the
process with status 124, so that whatever started the process can start it again.
"""

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import final

STALLED = 124
# The thread below needs the interpreter; a second timer, of the system's, ends a process whose
# interpreter is held by what is stuck. It cannot choose its status: 1.
_SECOND_TIMER_S = 10.0


@final
class Watchdog:
    """Ends the process when it is not fed for `limit_s`; a limit of 0 or less switches it off.

    Used as a context, once at a time in a process. Time in which the process is stopped counts.

    Attributes:
        dump: a file that the stacks are appended to, besides standard error.
    """

    def __init__(self, limit_s: float, dump: Path | None = None) -> None:
        self.limit_s = limit_s
        self.dump = dump
        self._until: float | None = None  # None: paused, or over
        self._now_s = limit_s
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self.limit_s > 0:
            self.feed()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rest()
        with self._changed:
            self._over = True
            self._changed.notify()

    def feed(self, limit_s: float | None = None) -> None:
        """Say that something was done just now; the time begins anew.

        Args:
            limit_s: for this time alone, as for a first step that compiles; never less than the
                usual limit.
        """
        if self.limit_s <= 0:
            return
        self._now_s = limit_s = max(self.limit_s, limit_s or 0.0)
        with self._changed:
            self._until = time.monotonic() + limit_s
            self._changed.notify()
        later_s = limit_s + _SECOND_TIMER_S
        faulthandler.dump_traceback_later(later_s, exit=True, file=sys.__stderr__ or 2)

    @contextmanager
    def pause(self) -> Generator[None]:
        """Do not watch what happens inside; the time begins anew after it."""
        self._rest()
        try:
            yield
        finally:
            self.feed()

    def _rest(self) -> None:
        if self.limit_s <= 0:
            return
        faulthandler.cancel_dump_traceback_later()
        with self._changed:
            self._until = None
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._over:
                left = None if self._until is None else self._until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            else:
                return
        self._end()

    def _end(self) -> None:
        who = f"process {os.getpid()} on {socket.gethostname()}"
        what = f"nothing was done for {self._now_s:g} s; where every thread stood:"
        said = f"watchdog: {who}: {what}\n"
        os.write(2, said.encode())
        faulthandler.dump_traceback(2, all_threads=True)
        if self.dump is not None:  # last: the disk may be what stands still
            try:
                with self.dump.open("a") as file:
                    file.write(said)
                    file.flush()
                    faulthandler.dump_traceback(file, all_threads=True)
            except OSError as error:
                os.write(2, f"watchdog: {self.dump} cannot be written ({error})\n".encode())
        os._exit(STALLED)
