import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.core.watchdog import STALLED, Watchdog

LIMIT_S = 0.5
SLACK_S = 20.0  # starting an interpreter on a busy machine

PROGRAM = """
import ctypes, sys, time
from pathlib import Path
from shoal.core import watchdog
from shoal.core.watchdog import Watchdog

watchdog._SECOND_TIMER_S = 2.0

def works_and_then_waits_for_nobody(dog):
    for _ in range(5):
        time.sleep({limit} / 2)
        dog.feed()
    {wait}

with Watchdog({limit}, Path(sys.argv[1])) as dog:
    works_and_then_waits_for_nobody(dog)
"""


def run(wait: str, dump: Path, limit: float = LIMIT_S) -> tuple[subprocess.CompletedProcess, float]:
    began = time.monotonic()
    program = PROGRAM.format(limit=limit, wait=wait)
    command = [sys.executable, "-c", program, str(dump)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done, time.monotonic() - began


def test_a_process_that_stands_still_ends_with_124_and_says_where_it_stood(tmp_path: Path):
    done, seconds = run("time.sleep(600)", tmp_path / "stacks.txt")
    assert done.returncode == STALLED == 124
    assert seconds < 3.5 * LIMIT_S + SLACK_S
    for said in (done.stderr, (tmp_path / "stacks.txt").read_text()):
        assert "nothing was done for 0.5 s" in said
        assert "in works_and_then_waits_for_nobody" in said


def test_a_lock_held_for_ever_is_a_standstill(tmp_path: Path):
    done, _ = run("__import__('threading').Event().wait()", tmp_path / "stacks.txt")
    assert done.returncode == STALLED


def test_what_holds_the_interpreter_is_ended_by_the_second_timer(tmp_path: Path):
    done, seconds = run("ctypes.PyDLL(None).sleep(600)", tmp_path / "stacks.txt")
    assert done.returncode not in (0, -signal.SIGTERM)
    assert seconds < 3.5 * LIMIT_S + 2 + SLACK_S
    assert "in works_and_then_waits_for_nobody" in done.stderr


def test_a_dump_that_cannot_be_written_does_not_keep_it_from_ending(tmp_path: Path):
    done, _ = run("time.sleep(600)", tmp_path / "missing" / "stacks.txt")
    assert done.returncode == STALLED
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("limit", "wait"),
    [
        (0.0, "time.sleep(0.5)"),
        (-1.0, "time.sleep(0.5)"),
        (0.3, "\n    with dog.pause(): time.sleep(1)\n    time.sleep(0.1)"),
        (0.3, "\n    dog.__exit__(None, None, None); time.sleep(1)"),
    ],
)
def test_nothing_happens_when_it_is_off_or_paused_or_over(tmp_path: Path, limit: float, wait: str):
    done, _ = run(wait, tmp_path / "stacks.txt", limit) if limit > 0 else run_off(wait, limit)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not (tmp_path / "stacks.txt").exists()


def run_off(wait: str, limit: float) -> tuple[subprocess.CompletedProcess, float]:
    program = (
        "import time; from shoal.core.watchdog import Watchdog\n"
        f"with Watchdog({limit}) as dog:\n    dog.feed()\n    {wait}\n"
        "    with dog.pause(): pass\n"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False), 0.0


def test_one_that_is_off_starts_no_thread():
    with Watchdog(0) as dog:
        dog.feed()
        assert not dog._thread.is_alive()
