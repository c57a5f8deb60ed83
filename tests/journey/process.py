"""Run `shoal` as a user does, each time in a process of its own, and stop it as life does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = f"{Path(__file__).with_name('tiny.py')}:tiny"
SHOAL = str(Path(sys.executable).with_name("shoal"))

# Sends the process a signal once the loop has recorded a step.
_STOPPED = """
import os, sys
from shoal.train import loop
at, number, log = int(sys.argv[1]), int(sys.argv[2]), loop._log
def log_and_stop(record, settings, step, *rest):
    log(record, settings, step, *rest)
    if step == at:
        os.kill(os.getpid(), number)
loop._log = log_and_stop
from shoal.cli import main
sys.exit(main(sys.argv[3:]))
"""


def environment(home: Path, *, text: Path | None = None, quick: bool = True) -> dict[str, str]:
    """Return what the process sees: no fake devices, and the tests' own compilation cache.

    Args:
        text: the folder of the tiny recipe.
        quick: leave out LLVM's optimizations, which halves the time to compile.
    """
    home.mkdir(parents=True, exist_ok=True)
    kept = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    kept.mkdir(parents=True, exist_ok=True)
    if not (home / "xla-cache").exists():
        (home / "xla-cache").symlink_to(kept)
    seen = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    seen.update(
        SHOAL_HOME=str(home),
        JAX_PLATFORMS="cpu",
        XLA_FLAGS="--xla_backend_optimization_level=0" if quick else "",
        PYTHONWARNINGS="",
    )
    return seen | ({"TINY_TEXT": str(text)} if text else {})


def shoal(
    *words: object,
    seen: dict[str, str],
    stop_at: int = 0,
    by: signal.Signals = signal.SIGINT,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one verb to its end.

    Args:
        seen: the environment.
        stop_at: the training step after whose record the process gets the signal `by`.
        folder: where it stands; the checkout by default.
    """
    stopped = [sys.executable, "-c", _STOPPED, str(stop_at), str(int(by))]
    return subprocess.run(
        [*(stopped if stop_at else [SHOAL]), *map(str, words)],
        env=seen,
        cwd=folder or REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def killed_when(
    moment: Callable[[], bool], *words: object, seen: dict[str, str], log: Path | None = None
) -> bool:
    """Run one verb and kill it at a moment; False if it ended before.

    Args:
        moment: asked fifty times a second.
        log: where its standard error goes, for whoever looks at a failure.
    """
    with (log or Path(os.devnull)).open("a") as file:
        command = [SHOAL, *map(str, words)]
        process = subprocess.Popen(command, env=seen, cwd=REPOSITORY, stdout=file, stderr=file)
        while process.poll() is None and not moment():
            time.sleep(0.02)
        process.kill()
        return process.wait() == -signal.SIGKILL


def at_step(run: Path, step: int, then_s: float = 0.0) -> Callable[[], bool]:
    """Return a moment: so long after a run has a step on record."""
    reached: list[float] = []

    def moment() -> bool:
        if not reached and last_step(run) >= step:
            reached.append(time.monotonic())
        return bool(reached) and time.monotonic() - reached[0] >= then_s

    return moment


def last_step(run: Path) -> int:
    """Return the step of the newest whole line of a run's metrics; 0 without any."""
    path = run / "metrics.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return json.loads(whole.rpartition(b"\n")[2])["step"] if whole else 0


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the object that `--json` prints on the last line."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def refusal_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of error with which a process refused."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert done.stderr.splitlines()[-1] == lines[0], done.stderr
    return lines[0]
