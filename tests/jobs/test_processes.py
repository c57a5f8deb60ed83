"""Real processes on this machine, connected by jax.distributed over 127.0.0.1, gloo between them.

Each test runs one small program in every process; what only fake clusters need is in test_place.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.jobs.processes import Processes, _await_coordinator, _disagreement, start_processes

TIMEOUT_S = 240  # on a busy machine the start alone has taken twenty

START = """
import os, signal, sys, time
import shoal.jobs.processes as module
from shoal.jobs.processes import start_processes
module.END_S = 10
processes = start_processes(*sys.argv[1:2], *map(int, sys.argv[2:4]), heartbeat_s=int(sys.argv[4]))
me = processes.index
"""
# What `shoal` does with a user's error.
REFUSE = """
except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
"""


@dataclass
class Done:
    """How one process ended."""

    status: int
    out: str
    err: str
    seconds: float


def together(
    program: str, count: int = 2, heartbeat_s: int = 100, then_kill: int | None = None
) -> list[Done]:
    """Run a program in several processes of two devices each, to the end of all of them.

    Args:
        then_kill: the process that is killed once another has ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    seen = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONUNBUFFERED": "1",
    }
    began = time.monotonic()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", START + program, address, str(count), str(i), str(heartbeat_s)],
            env=seen,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    try:
        while then_kill is not None and not any(p.poll() is not None for p in started):
            assert time.monotonic() - began < TIMEOUT_S
            time.sleep(0.1)
        seconds = time.monotonic() - began
        if then_kill is not None:
            started[then_kill].kill()
        said = [process.communicate(timeout=TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [
        # gloo says on standard output whom it has connected.
        Done(process.returncode, re.sub(r"\[Gloo\].*\n", "", out), err, seconds)
        for process, (out, err) in zip(started, said, strict=True)
    ]


TALK = """
from shoal.train.config import TrainConfig
config = TrainConfig(num_steps=3, batch_sequences=4, sequence_tokens=8)
processes.agree(config)          # no device has been used, no mesh is there
heard = processes.broadcast_json({"from": me, "tuple": (1, 2)})
made = processes.from_leader(lambda: [me, "made"])
gathered = processes.gather({"of": me})
mine = processes.share(["a", "b", "c"])
processes.barrier("here")
processes.barrier("here")
stops = [processes.stops(asked=False, step=step) for step in range(1, 4)]

import jax, numpy as np
from jax.experimental import multihost_utils
saves = []
total = multihost_utils.process_allgather(np.float32(me + 1)).sum()
for step in range(4, 12):
    multihost_utils.process_allgather(np.float32(step))   # a step, that needs every process
    saves.append(processes.stops(me == 0 and step > 3, step, f"save-{sum(saves)}"))
    if processes.stops(asked=(me, step) == (1, 6), step=step):
        break
processes.agree(config)
processes.barrier("end")
print(processes.leader, heard, made, any(stops), len(jax.devices()), jax.local_device_count())
print(float(total), "stopped after", step, gathered, mine, [*map(int, saves)])
"""


def test_processes_agree_talk_wait_and_stop_together():
    done = together(TALK)
    for index, one in enumerate(done):
        assert one.status == 0, one.err
        first, second = one.out.splitlines()
        heard = "{'from': 0, 'tuple': [1, 2]} [0, 'made']"
        assert first == f"{index == 0} {heard} False 4 2"
        told = f"[{{'of': 0}}, {{'of': 1}}] {['b'] if index else ['a', 'c']}"
        assert second == f"3.0 stopped after 7 {told} [0, 1, 0, 1]"


DISAGREE = """
from shoal.train.config import TrainConfig
config = TrainConfig(num_steps=3, batch_sequences=4 * (1 + me), sequence_tokens=8, seed=me)
try:
    processes.agree(config)
"""
THEN = """
except ValueError as error:
    print(error)

def make():
    raise ValueError("the corpus is damaged")
try:
    processes.from_leader(make)
"""
LAST = """
except ValueError as error:
    print(error)

wait = lambda: processes.barrier("here", 1.0)
if me == 1:
    time.sleep(3)
    processes._calls += 1
    wait = lambda: processes.broadcast_json(None, 0.5)
try:
    wait()
except RuntimeError as error:
    print(error)
"""


def test_what_one_refuses_all_refuse_and_waits_for_what_does_not_come_have_an_end():
    first, second = together(DISAGREE + THEN + LAST)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    for one in (first, second):
        disagreement, refused, waited, *_ = one.out.splitlines()
        assert disagreement.startswith("process 1 holds another config than process 0: ")
        assert "batch_sequences is 8 in process 1 and 4 in process 0" in disagreement
        assert "seed is 1 in process 1 and 0 in process 0" in disagreement
        leader = one is first
        assert refused == ("" if leader else "process 0: ") + "the corpus is damaged"
        where = "1 s at 'shoal/4/here' for others" if leader else "0.5 s for 'shoal/5/leader'"
        assert waited.startswith(f"process {int(not leader)} waited {where}: ")


@pytest.mark.slow
def test_four_processes_name_the_one_that_differs_and_exit_2():
    program = DISAGREE.replace("4 * (1 + me)", "4").replace("seed=me", "seed=7 * (me == 2)")
    for one in together(program + REFUSE, count=4):
        assert one.status == 2, one.err
        error = one.err.splitlines()[-1]
        assert error.startswith("error: process 2 holds another config than process 0: seed is 7")


# One process stops taking part after some collectives; the other waits in one, and is watched.
LOST = """
from pathlib import Path
import jax, numpy as np
from jax.experimental import multihost_utils
from shoal.core.watchdog import Watchdog

def waits_in_a_collective(dog):
    for step in range(1, 1000):
        multihost_utils.process_allgather(np.float32(step))
        dog.feed()
        if me == 1 and step == 3:
            os.kill(os.getpid(), signal.{how})

limit = {limit} if me == 0 else 0
multihost_utils.process_allgather(np.float32(0))
with Watchdog(limit, Path({dump!r})) as dog:
    waits_in_a_collective(dog)
"""


@pytest.mark.parametrize("how", [pytest.param("SIGKILL", marks=pytest.mark.slow), "SIGSTOP"])
def test_the_watchdog_ends_a_process_whose_other_is_gone_or_stands_still(tmp_path: Path, how: str):
    dump = tmp_path / "stacks.txt"
    program = LOST.format(how=how, limit=4.0, dump=str(dump))
    waiting, lost = together(program, then_kill=1 if how == "SIGSTOP" else None)
    assert lost.status == -signal.SIGKILL
    if how == "SIGKILL" and "Gloo" in waiting.err:  # the transport noticed before, and said so
        assert waiting.status not in (0, 2)
        return
    assert waiting.status == 124, waiting.err
    assert waiting.seconds < TIMEOUT_S / 2
    assert "in waits_in_a_collective" in waiting.err
    assert "in waits_in_a_collective" in dump.read_text()


@pytest.mark.slow
def test_without_a_watchdog_a_lost_process_is_noticed_by_its_heartbeat():
    program = LOST.format(how="SIGSTOP", limit=0, dump="")
    waiting, lost = together(program, heartbeat_s=10, then_kill=1)
    assert lost.status == -signal.SIGKILL
    assert waiting.status not in (0, 2)
    assert "another task died" in waiting.err or "heartbeat" in waiting.err


ALONE_FAILS = """
from jax.experimental import multihost_utils
import numpy as np
try:
    if me == 1:
        raise ValueError("only mine")
    multihost_utils.process_allgather(np.float32(0))
"""


@pytest.mark.slow
def test_one_that_fails_alone_says_so_and_takes_the_other_along():
    program = ALONE_FAILS + REFUSE
    began = time.monotonic()
    first, second = together(program)
    assert time.monotonic() - began < TIMEOUT_S / 2
    assert "error: only mine" in second.err
    assert first.status != 0
    assert second.status != 0


# The kernel's own word: a handler that C code has set is not seen from Python.
CAUGHT = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(bool(int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1))
"""


@pytest.mark.slow
def test_sigterm_stays_the_programs_own():
    for one in together(CAUGHT):
        assert (one.status, one.out) == (0, "False\n"), one.err


def test_one_process_agrees_with_itself_and_needs_no_coordinator():
    alone = start_processes(environment={})
    assert (alone.index, alone.count, alone.leader) == (0, 1, True)
    alone.agree(object())
    alone.barrier("here")
    assert alone.broadcast_json((1, 2)) == [1, 2]
    assert alone.gather((1, 2)) == [[1, 2]]
    assert alone.share(["a", "b"]) == ["a", "b"]
    assert not alone.stops(asked=False, step=1)
    assert alone.stops(asked=True, step=1)
    with pytest.raises(ValueError, match=r"^no$"):
        alone.from_leader(_refuse)


def _refuse() -> None:
    raise ValueError("no")


def test_a_coordinator_that_is_not_there_is_said_in_a_sentence():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"no coordinator at {address} within 0.5 s"):
            _await_coordinator(address, within_s=0.5)


def test_many_differences_are_counted_not_listed():
    first = {f"a{n}": n for n in range(9)}
    second = {f"a{n}": -n for n in range(8)} | {"b": "x" * 200}
    said = _disagreement(first, second, list(range(1, 13)))
    assert said.startswith("processes 1, 2, 3, 4, 5, 6, 7, 8 and 4 more hold another config")
    assert "a1 is -1 in process 1 and 1 in process 0" in said
    assert "and 5 more" in said
    other = _disagreement({"a": None}, {"a": None, "b": "x" * 200}, [1])
    assert f'b is "{"x" * 76}... in process 1 and absent in process 0; start' in other


def test_processes_say_where_their_place_came_from():
    assert Processes(1, 2, "process 1 of 2").origin == "process 1 of 2"
