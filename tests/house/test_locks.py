"""The locks: hashed, without an address, in agreement with each other and with pyproject.toml."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
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


def test_what_the_code_imports_is_what_the_project_asks_for(repository: Path):
    """Imports by statement, and by `import_module("name")` where that is not of an extra."""
    imported, late = set(), set()
    for path in (repository / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import():
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                case ast.ImportFrom():
                    imported.add(node.module.partition(".")[0])
                case ast.Call(
                    func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]
                ):
                    late.add(name.partition(".")[0])
    owners = packages_distributions()
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    extras = {_name(r) for found in project["optional-dependencies"].values() for r in found}
    imported |= {name for name in late & owners.keys() if owners[name][0] not in extras}
    found = imported - sys.stdlib_module_names - {"shoal"}
    needed = {owners[name][0].replace("_", "-") for name in found}
    assert {_name(requirement) for requirement in project["dependencies"]} == needed
