import json
import subprocess
import types
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.cli import main
from shoal.core.artifact import build
from shoal.core.files import link
from shoal.core.parts import part
from shoal.jobs import doctor as checkup

CPU = '[{"platform": "cpu", "kind": "cpu", "id": 0}]'


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A sound machine, answering what the test puts in this table."""
    table: dict[str, Any] = {
        "probe": subprocess.CompletedProcess([], 0, f"noise\n{CPU}\n", ""),
        "pip": subprocess.CompletedProcess([], 0, "", ""),
        "available": 16_000_000_000,
        "gpu tool": None,
        "free": 50_000_000_000,
    }

    def ask(command: list[str], timeout_s: float) -> Any:
        return table["pip" if "pip" in command else "probe"]

    def memory() -> Any:
        return types.SimpleNamespace(total=32_000_000_000, available=table["available"])

    monkeypatch.setattr(checkup, "_ask", ask)
    monkeypatch.setattr(checkup, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(psutil, "virtual_memory", memory)
    monkeypatch.setattr(checkup.shutil, "which", lambda name: table["gpu tool"])
    usage = lambda path: types.SimpleNamespace(free=table["free"])  # noqa: E731
    monkeypatch.setattr(checkup.shutil, "disk_usage", usage)
    return table


def _missing(facts: dict[str, Any], needed: bool) -> str:
    return " | ".join(
        f"{m['what']}: {m['remedy']}" for m in facts["missing"] if m["needed"] is needed
    )


def test_a_sound_machine_is_ready():
    facts = checkup.doctor()
    assert facts["ok"]
    assert facts["missing"] == []
    assert facts["devices"] == json.loads(CPU)
    assert facts["packages"]["jax"]
    assert "shoal" not in facts["packages"]
    assert facts["cores"] >= 1
    assert facts["home"]["writable"]


def test_a_home_that_is_a_file_is_needed_and_named(tmp_path, monkeypatch, capsys):
    taken = tmp_path / "taken"
    taken.write_text("x")
    monkeypatch.setenv("SHOAL_HOME", str(taken))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert str(taken) in said
    assert "SHOAL_HOME" in said
    assert "not ready" in said


def test_no_device_is_needed_and_says_why(machine):
    machine["probe"] = subprocess.CompletedProcess(
        [], 1, "", "Traceback\nRuntimeError: no plugin\n"
    )
    facts = checkup.doctor()
    assert not facts["ok"]
    assert "RuntimeError: no plugin" in _missing(facts, needed=True)


def test_an_index_that_does_not_answer_is_a_note(machine, capsys):
    machine["pip"] = subprocess.CompletedProcess([], 1, "", "")
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"]
    assert not facts["index_reachable"]
    assert "--text" in _missing(facts, needed=False)


def test_a_gpu_that_jax_does_not_use_is_a_note(machine):
    machine["gpu tool"] = "nvidia-smi"
    facts = checkup.doctor()
    assert facts["ok"]
    assert "EXTRA=cuda" in _missing(facts, needed=False)


def test_little_memory_and_a_full_disk_are_needed(machine):
    machine["available"] = 1_000_000_000
    machine["free"] = 100_000_000
    facts = checkup.doctor()
    said = _missing(facts, needed=True)
    assert "1.0 GB of memory" in said
    assert "0.1 GB of disk" in said
    described = checkup.render(facts)
    assert described.count("\nmissing ") == 2


def test_what_a_preparation_that_ended_early_keeps_is_a_note(tmp_path, monkeypatch):
    def make(folder: Path) -> dict[str, Any]:
        made = part(folder, "one", lambda inside: {"n": (inside / "f").write_bytes(b"x" * 10**8)})
        part(folder, "two", lambda inside: link(made.path / "f", inside / "f") or {})
        raise OSError("stopped")

    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    root = tmp_path / "corpora"
    with pytest.raises(OSError, match="stopped"):
        build(root, "mine", stage="s", revision=1, literals={}, inputs={}, make=make)
    facts = checkup.doctor()
    assert facts["ok"]
    note = _missing(facts, needed=False)
    assert "unfinished artifacts hold 0.1 GB of disk" in note
    assert ".mine@" in note
    assert "shoal prepare" in note
    build(root, "mine", stage="s", revision=2, literals={}, inputs={}, make=lambda _: {})
    assert checkup.doctor()["missing"] == []


def test_a_control_group_limits_memory_and_cores(monkeypatch, tmp_path):
    group = tmp_path / "cgroup"
    monkeypatch.setattr(checkup, "_cgroup", lambda name: (group / name).read_text().strip())
    group.mkdir()
    for name, text in [
        ("memory.max", "6000000000\n"),
        ("memory.current", "1000000000\n"),
        ("cpu.max", "50000 100000\n"),
    ]:
        (group / name).write_text(text)
    facts = checkup.doctor()
    assert facts["memory"]["limit_bytes"] == 6_000_000_000
    assert facts["memory"]["available_bytes"] == 5_000_000_000
    assert facts["cores"] == 0.5
    assert "limited to 6.0 GB" in checkup.render(facts)


def test_a_package_that_is_not_installed_is_needed(monkeypatch):
    monkeypatch.setattr(
        checkup.importlib.metadata, "requires", lambda name: ["jax>=0.1", "shoal-absent>=2"]
    )
    facts = checkup.doctor()
    assert "package shoal-absent: run `make setup`" in _missing(facts, needed=True)
    assert list(facts["packages"]) == ["jax"]


def test_a_command_that_hangs_is_given_up(monkeypatch):
    monkeypatch.undo()
    said = checkup._ask(["sleep", "30"], 0.1)
    assert said.returncode == 124
    assert "no answer within 0.1 s" in said.stderr
