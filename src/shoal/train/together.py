"""What the loop and the checkpoints need of the other processes of a run.

`jobs.processes` has the processes themselves; here is only what they must be able to do, and one
process alone, for which all of it is nothing.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

# Reading a checkpoint of terabytes takes hours; a process that is gone is noticed by other means.
PATIENCE_S = 24 * 3600.0


@runtime_checkable
class Together(Protocol):
    """The processes of one run; every method is called by all of them, in the same order."""

    @property
    def leader(self) -> bool:
        """Whether this is the one process that writes the record and prints."""
        ...

    def barrier(self, name: str, timeout_s: float = ...) -> None:
        """Wait until all processes are here."""
        ...

    def from_leader(self, make: Callable[[], Any], timeout_s: float = ...) -> Any:
        """Return what the leader makes, in JSON types; what it raises is raised in all."""
        ...

    def gather(self, value: Any, timeout_s: float = ...) -> list[Any]:
        """Return every process's JSON value, in the order of the processes."""
        ...

    def share(self, items: list[str]) -> list[str]:
        """Return this process's part of the items; the parts of all processes are all of them."""
        ...

    def stops(self, asked: bool, step: int, what: str = "stop") -> bool:
        """Whether all processes stop after this step, some having been asked to.

        Args:
            what: they do instead of stopping; a name serves once.
        """
        ...


class _Alone:
    leader = True

    def barrier(self, name: str, timeout_s: float = 0.0) -> None:
        del name, timeout_s

    def from_leader(self, make: Callable[[], Any], timeout_s: float = 0.0) -> Any:
        del timeout_s
        return make()

    def gather(self, value: Any, timeout_s: float = 0.0) -> list[Any]:
        del timeout_s
        return [value]

    def share(self, items: list[str]) -> list[str]:
        return items

    def stops(self, asked: bool, step: int, what: str = "stop") -> bool:
        del step, what
        return asked


ALONE: Together = _Alone()


def begin_together(jitted: Any, together: Together, name: str) -> Callable[..., Any]:
    """Return the jitted function, whose first call compiles, waits for all, and only then runs.

    One process may read a program from the cache while the others compile it for minutes, and a
    CPU's collectives give up on a late process after 30 s.
    """
    met = False

    def call(*given: Any) -> Any:
        nonlocal met
        if not met:
            jitted.lower(*given).compile()
            together.barrier(f"compiled {name}", PATIENCE_S)
            met = True
        return jitted(*given)

    return call


def agree(together: Together, problem: str | None) -> None:
    """Raise in every process what any of them found.

    Raises:
        ValueError: a process has a problem; the first of them is told.
    """
    found = [text for text in together.gather(problem, PATIENCE_S) if text]
    if found:
        raise ValueError(found[0])
