"""One run by several real processes: the same numbers, one record, one checkpoint, one end."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from journey.process import RECIPE, REPOSITORY, SHOAL, environment, last_step, result_of, shoal
from journey.tiny import write_text
from shoal.core.record import read_events, read_metrics, verify_chain

WAIT_S = 400
POOLED = (
    "model.num_experts=4",
    "train.batch_sequences=8",
    "train.num_steps=8",
    "mesh.data=-1",
    "mesh.expert=2",
    "moe.transport=pooled",
    "moe.capacity_sender=4",
    "moe.capacity_receiver=4",
    "eval.every_steps=4",
)


def settings(*changes):
    return [word for change in changes for word in ("--set", change)]


def seen_by(home: Path, text: Path, devices: int):
    seen = environment(home, text=text)
    flags = f"{seen['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return seen | {"XLA_FLAGS": flags}


def start(count, *words, seen, changed=None):
    """Start `shoal train` as processes of one run; `changed` are further words by process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        subprocess.Popen(
            [SHOAL, "train", RECIPE, *words, *(changed or {}).get(index, ()),
             "--coordinator", address, "--num-processes", str(count), "--process-id", str(index)],
            env=seen, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in range(count)
    ]  # fmt: skip


def ended(processes):
    """(status, standard error) of every process."""
    said = [process.communicate(timeout=WAIT_S) for process in processes]
    return [(p.returncode, err) for p, (_, err) in zip(processes, said, strict=True)]


def await_step(run, step, processes):
    """Wait until a step is on record; a process that ends before it is the failure to report."""
    until = time.monotonic() + WAIT_S
    while last_step(run) < step:
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    """The home of the run by one process with four devices."""
    home = tmp_path_factory.mktemp("alone")
    done = shoal("train", RECIPE, *settings(*POOLED), "--json", seen=seen_by(home, text, 4))
    assert result_of(done)["step"] == 8
    return home


def losses(home):
    return [line["loss"] for line in read_metrics(home / "runs/tiny")]


def test_two_processes_are_one_run_with_the_numbers_of_one_process(alone, text, tmp_path):
    seen = seen_by(tmp_path, text, 2)
    for status, said in ended(start(2, *settings(*POOLED), seen=seen)):
        assert status == 0, said
    run = tmp_path / "runs/tiny"
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)
    assert [line["step"] for line in read_metrics(run)] == list(range(1, 9))
    assert verify_chain(run) == []
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds.count("start") == kinds.count("finish") == 1
    # What two processes wrote one process reads, on one device.
    one = environment(tmp_path, text=text)
    digest = result_of(shoal("hash", "tiny", "--json", seen=one))["digest"]
    assert digest == [e for e in read_events(run) if e["kind"] == "checkpoint"][-1]["digest"]
    assert (run / "evals/4.json").is_file()
    assert (run / "samples/4.json").is_file()
    scored = result_of(shoal("eval", "tiny", "--json", seen=one))
    assert scored["step"] == 8
    assert (run / "evals/8.json").is_file()


def test_processes_that_hold_other_configs_all_refuse_and_name_the_field(text, tmp_path):
    seen = seen_by(tmp_path, text, 2)
    other = {1: settings("optimizer.muon_lr=0.02")}
    for status, said in ended(start(2, *settings(*POOLED), seen=seen, changed=other)):
        assert status == 2, said
        assert "optimizer.muon_lr is 0.02 in process 1 and 0.03 in process 0" in said
        assert "Traceback" not in said
    assert not (tmp_path / "runs/tiny/metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP], ids=lambda by: by.name)
def test_when_one_process_is_gone_or_stands_still_the_other_ends(text, tmp_path, by):
    changes = (*POOLED, "train.num_steps=4000", "train.watchdog_s=20")
    gone, other = processes = start(2, *settings(*changes), seen=seen_by(tmp_path, text, 2))[::-1]
    try:
        await_step(tmp_path / "runs/tiny", 2, processes)
        os.kill(gone.pid, by)
        begun = time.monotonic()
        _, said = other.communicate(timeout=WAIT_S)
        assert other.returncode not in (0, None)
        assert time.monotonic() - begun < 120, said
        if by == signal.SIGSTOP:
            assert other.returncode == 124, said
            stacks = "".join(p.read_text() for p in (tmp_path / "runs/tiny").glob("stacks*.txt"))
            assert "loop.py" in stacks
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_four_processes_of_which_one_is_killed_go_on_and_end_with_the_same_bits(text, tmp_path):
    """Which one and when is drawn; the gang is started again as a cluster would."""
    # A process for each device: eight rows, two replicas of two expert shards.
    changes = (*POOLED, "mesh.data=1", "mesh.replica=-1", "train.checkpoint_every_steps=2")
    digests = []
    for home, disturbed in (("straight", False), ("killed", True)):
        seen = seen_by(tmp_path / home, text, 1)
        run = tmp_path / home / "runs/tiny"
        if disturbed:
            processes = start(4, *settings(*changes, "train.watchdog_s=60"), seen=seen)
            await_step(run, 3, processes)
            processes[np.random.default_rng().integers(4)].kill()
            assert all(status != 0 for status, _ in ended(processes))
        for status, said in ended(start(4, *settings(*changes), seen=seen)):
            assert status == 0, said
        events = [e for e in read_events(run) if e["kind"] == "checkpoint"]
        digests.append(events[-1]["digest"])
        assert verify_chain(run) == []
    assert digests[0] == digests[1]
