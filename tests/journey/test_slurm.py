"""A Slurm job from file to end: the written script, two real processes, stand-ins for Slurm."""

import signal
import socket
import time
from pathlib import Path

import pytest

from journey.process import RECIPE, SHOAL, environment, last_step
from journey.tiny import TEXT, write_text
from plan.stand_ins import asked, put_programs, submit
from shoal.core.record import read_events
from shoal.jobs.launch import launch

NUM_STEPS = 60
WAIT_S = 500


@pytest.mark.slow
def test_a_job_saves_before_its_time_is_up_and_goes_on_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = write_text(tmp_path / "text")
    seen = environment(tmp_path / "home", text=text)
    monkeypatch.setenv(TEXT, str(text))
    script = tmp_path / "tiny.sbatch"
    changes = [
        f"train.num_steps={NUM_STEPS}",
        "train.batch_sequences=4",
        "train.checkpoint_every_steps=0",
        "train.checkpoint_every_s=100000",
    ]
    made = launch(
        "slurm", RECIPE, changes, nodes=1, gpus_per_node=2, home=seen["SHOAL_HOME"], out=script
    )
    assert made["mesh"]["data"] == 2
    programs, run = tmp_path / "bin", tmp_path / "home" / "runs" / "tiny"
    put_programs(programs)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen |= {"SHOAL": SHOAL, "JAX_COORDINATOR_PORT": str(port)}

    first = submit(script, programs, seen)
    until = time.monotonic() + WAIT_S
    while last_step(run) < 2 and first.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    first.send_signal(signal.SIGUSR1)  # as Slurm does, some minutes before the time limit
    out, err = first.communicate(timeout=WAIT_S)
    assert first.returncode == 0, out + err
    assert asked(script)[-1] == "scontrol requeue 70123"
    assert "status 130; goes on from its newest checkpoint" in err
    saved = [event["step"] for event in read_events(run) if event["kind"] == "checkpoint"]
    assert len(saved) == 1
    assert 2 <= saved[0] < NUM_STEPS

    second = submit(script, programs, seen | {"SLURM_RESTART_COUNT": "1"})
    out, err = second.communicate(timeout=WAIT_S)
    assert second.returncode == 0, out + err
    assert out.endswith("job 70123: done\n")
    kinds = {event["kind"]: event for event in read_events(run)}
    assert kinds["resume"]["step"] == saved[0]
    assert kinds["finish"]["step"] == NUM_STEPS == last_step(run)
