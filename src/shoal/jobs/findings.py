"""What a verification finds: one line for each check, which holds, fails or could not be made.

A line is {"check", "state", "where", "says"}; one that fails has "expected" and "found" as well,
where there are two values to compare.
"""

import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

HOLDS, FAILS, NOT_CHECKED = "holds", "fails", "not checked"
_SHOWN = 5
_CHARACTERS = 160


class NotCheckedError(Exception):
    """Ends a check that cannot be made; its text says why."""


class Check:
    """One check under way.

    Attributes:
        says: what holds, for the line if nothing fails.
    """

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        self.says = ""
        self.problems: list[dict[str, Any]] = []

    def fails(self, says: str, *, where: str = "", **values: Any) -> None:
        """Note a failure; `values` are `expected` and `found`."""
        self.problems.append({"says": says, "where": where or self.where, **values})

    def equal(self, says: str, expected: Any, found: Any, *, where: str = "") -> bool:
        """Compare two values that must be the same."""
        if expected == found and type(expected) is type(found):
            return True
        self.fails(says, where=where, expected=expected, found=found)
        return False

    def close(
        self,
        says: str,
        expected: float,
        found: float,
        *,
        relative: float,
        absolute: float = 0.0,
        where: str = "",
    ) -> bool:
        """Compare two numbers that rounding may part."""
        if math.isclose(expected, found, rel_tol=relative, abs_tol=absolute):
            return True
        self.fails(says, where=where, expected=expected, found=found)
        return False

    def cannot(self, why: str) -> None:
        """End the check: it cannot be made, unless something failed before."""
        raise NotCheckedError(why)


class Findings:
    """The lines of a verification, in order."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    @contextmanager
    def check(self, name: str, where: str) -> Generator[Check]:
        """Yield a check; what of the record cannot be read makes it fail."""
        made, why = Check(name, where), ""
        try:
            yield made
        except NotCheckedError as reason:
            why = str(reason)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OSError) as error:
            spelled = str(error) if isinstance(error, ValueError | OSError) else repr(error)
            made.fails(f"cannot be read as what it should be: {spelled}")
        if made.problems:
            self._failed(made)
        elif why:
            self.skip(name, why, where=where)
        else:
            self._add(name, HOLDS, where, made.says)

    def skip(self, name: str, why: str, *, where: str = "") -> None:
        """Note a check that is not made."""
        self._add(name, NOT_CHECKED, where, why)

    def counts(self) -> dict[str, int]:
        """How many lines are of each state."""
        return {
            state: sum(line["state"] == state for line in self.lines)
            for state in (HOLDS, FAILS, NOT_CHECKED)
        }

    def _failed(self, made: Check) -> None:
        for problem in made.problems[:_SHOWN]:
            self.lines.append({"check": made.name, "state": FAILS, **problem})
        if (more := len(made.problems) - _SHOWN) > 0:
            self._add(made.name, FAILS, made.where, f"and {more} more of this kind")

    def _add(self, name: str, state: str, where: str, says: str) -> None:
        self.lines.append({"check": name, "state": state, "where": where, "says": says})


def spelled(line: dict[str, Any]) -> str:
    """Return a line for a terminal."""
    text = f"{line['state']:<11}  {line['check']}"
    if line["where"] and line["state"] != HOLDS:
        text += f"  [{line['where']}]"
    if line["says"]:
        text += f": {line['says']}"
    if "expected" in line:
        text += f"; expected {_short(line['expected'])}, found {_short(line['found'])}"
    return text


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + " ..."
