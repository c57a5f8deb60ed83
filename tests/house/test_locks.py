"""The locks: hashed, without an address, in agreement with each other and with pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest

LOCKS = ["requirements.lock", "requirements-dev.lock"]


def _pins(path: Path) -> dict[str, str]:
    """Return name -> everything the lock says about it."""
    entries = re.split(r"\n(?=\S)", path.read_text().strip())
    return {entry.partition("==")[0]: entry for entry in entries}


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash_and_no_address(repository: Path, lock: str):
    assert "://" not in (repository / lock).read_text()
    for name, entry in _pins(repository / lock).items():
        assert re.match(rf"{re.escape(name)}==\S+", entry), entry[:80]
        assert "--hash=sha256:" in entry, name


def test_the_dev_lock_is_the_runtime_lock_and_more(repository: Path):
    runtime, dev = (_pins(repository / lock) for lock in LOCKS)
    assert runtime.items() < dev.items()


def test_the_locks_hold_all_that_the_project_asks_for(repository: Path):
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    runtime, dev = (_pins(repository / lock) for lock in LOCKS)
    asked = project["project"]["dependencies"] + groups["build"]
    assert {_name(r) for r in asked} <= runtime.keys()
    assert {_name(r) for r in groups["dev"]} <= dev.keys()
