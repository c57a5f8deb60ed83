"""The generated files: scripts are run with stand-ins for Slurm, YAML is held to its schema."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from plan.schemas import JOBSET, SKYPILOT, problems
from plan.stand_ins import asked, put_programs, submit
from shoal.jobs.place import recognize
from shoal.plan.launch import Launch, jobset, skypilot, slurm

# Stands in for `shoal`: logs what it was given; waits for a signal if told to; ends as told to.
SHOAL = """
import json, os, signal, sys, time
log = open(os.environ["STUB_LOG"], "a")
def say(*what):
    log.write(" ".join(map(str, what)) + "\\n")
    log.flush()
rank = os.environ["SLURM_PROCID"]
def save(number, frame):
    time.sleep(0.5)
    say("saved", rank)
    sys.exit(130)
signal.signal(signal.SIGUSR1, save)
say("shoal", rank, json.dumps(sys.argv[1:]), os.environ["SHOAL_HOME"], os.environ["NCCL_DEBUG"])
time.sleep(60 if os.environ["STUB_STATUS"] == "wait" else 0)
sys.exit(int(os.environ["STUB_STATUS"]))
"""


def job(**more: Any) -> Launch:
    return Launch(
        **{"recipe": "d512", "run": "first", "nodes": 1, "gpus_per_node": 2, "name": "first"} | more
    )


@pytest.fixture
def cluster(tmp_path: Path):
    """Put stand-ins on the PATH; gives a function that starts a script as a job."""
    programs = tmp_path / "bin"
    put_programs(programs)
    shoal = programs / "my shoal"
    shoal.write_text(f"#!{sys.executable}\n{SHOAL}")
    shoal.chmod(0o755)

    def start(text: str, status: int | str = 0, **seen: str) -> subprocess.Popen[str]:
        script = tmp_path / "job.sbatch"
        script.write_text(text)
        told = {"SHOAL": str(shoal), "STUB_STATUS": str(status)} | seen
        return submit(script, programs, os.environ | told)

    return start


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def log_of(folder: Path) -> list[str]:
    return asked(folder / "job.sbatch")


def test_the_script_is_bash_and_says_what_it_asks_slurm_for(tmp_path: Path):
    text = slurm(job(time="2-12", partition="gpu", account="lab"))
    script = tmp_path / "job"
    script.write_text(text)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", text, re.MULTILINE))
    assert directives == {
        "job-name": "first", "nodes": "1", "ntasks-per-node": "2", "gpus-per-node": "2",
        "time": "2-12", "partition": "gpu", "account": "lab", "signal": "B:USR1@300",
        "open-mode": "append", "output": "%x-%j.log", "exclusive": "", "requeue": "",
    }  # fmt: skip
    # Slurm stops reading them at the first line that is a command.
    commands = re.search(r"^[^#\n]", text, re.MULTILINE)
    assert commands
    assert "#SBATCH" not in text[commands.start() :]


def test_each_task_gets_the_command_and_the_job_ends_when_it_is_done(cluster, tmp_path: Path):
    status, said = ended(cluster(slurm(job(overrides=("train.seed=1", "name=a b")))))
    assert (status, said) == (0, "job 70123: done\n")
    first, *tasks = log_of(tmp_path)
    assert '"--kill-on-bad-exit=1", "--gpu-bind=none", "--cpu-bind=none"' in first
    words = '["train", "d512", "--run", "first", "--set", "train.seed=1", "--set", "name=a b"]'
    there = f"{words} {os.environ['SHOAL_HOME']} WARN"
    assert sorted(tasks) == [f"shoal 0 {there}", f"shoal 1 {there}"]


def test_before_the_time_limit_every_task_saves_and_the_job_is_queued_again(
    cluster, tmp_path: Path
):
    process = cluster(slurm(job()), "wait")
    until = time.monotonic() + 60
    while sum(line.startswith("shoal") for line in log_of(tmp_path)) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    status, said = ended(process)
    assert status == 0
    assert said == "job 70123: status 130; goes on from its newest checkpoint\n"
    assert sorted(log_of(tmp_path)[-3:-1]) == ["saved 0", "saved 1"]
    assert log_of(tmp_path)[-1] == "scontrol requeue 70123"


@pytest.mark.parametrize("status", [1, 124, 134, 137])
def test_a_failure_is_tried_again_until_it_is_too_often(cluster, tmp_path: Path, status: int):
    found, said = ended(cluster(slurm(job(restarts=3)), status, SLURM_RESTART_COUNT="2"))
    assert found == 0
    assert f"status {status}; goes on" in said
    assert log_of(tmp_path)[-1] == "scontrol requeue 70123"
    (tmp_path / "log").unlink()
    found, said = ended(cluster(slurm(job(restarts=3)), status, SLURM_RESTART_COUNT="3"))
    assert found == status
    assert "3 restarts were enough" in said
    assert "scontrol" not in " ".join(log_of(tmp_path))


def test_wrong_input_is_not_tried_again(cluster, tmp_path: Path):
    status, said = ended(cluster(slurm(job()), 2))
    assert status == 2
    assert "wrong input" in said
    assert "scontrol" not in " ".join(log_of(tmp_path))


def test_what_is_quoted_for_a_shell_stays_one_word_and_runs_nothing(cluster, tmp_path: Path):
    nasty = "name='\"; touch stolen; $(touch stolen) `touch stolen` \\ $HOME"
    assert ended(cluster(slurm(job(recipe="my 'recipe'.py:it", overrides=(nasty,)))))[0] == 0
    assert not list(tmp_path.rglob("stolen"))
    logged = re.search(r"^shoal 0 (\[.*\])", "\n".join(log_of(tmp_path)), re.MULTILINE)
    assert logged
    assert json.loads(logged[1]) == ["train", "my 'recipe'.py:it", "--run", "first", "--set", nasty]
    text = slurm(job(image="it's", home="/a b")).replace("\\\n", " ")
    assert "--container-image='it'\"'\"'s'" in text
    assert "export SHOAL_HOME='/a b'\n" in text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"recipe": "d512\ntouch"}, "recipe 'd512\\\\ntouch' starts with '-' or is not one"),
        ({"recipe": "--help"}, "starts with '-'"),
        ({"overrides": ("a=\x1b[2J",)}, "not one printable line"),
        ({"run": "a\0"}, "not one printable line"),
        ({"name": "My_Run"}, "name 'My_Run' is not up to 40 of"),
        ({"name": "a" * 41}, "is not up to 40 of"),
        ({"time": "24:00:00 --wrap=x"}, "is not a time limit"),
        ({"partition": "a b"}, "partition 'a b' is not a plain name"),
        ({"nodes": 0}, "nodes=0 must be at least 1"),
        ({"gpus_per_node": -1}, "gpus_per_node=-1 must be"),
        ({"restarts": -1}, "restarts=-1 must be"),
    ],
)
def test_what_would_break_a_file_is_refused(more, said):
    with pytest.raises(ValueError, match=said):
        job(**more)


def test_the_jobset_keeps_to_its_schema():
    found = yaml.safe_load(jobset(job(nodes=4, gpus_per_node=8, image="reg/shoal:1", home="pvc")))
    assert problems(found, JOBSET) == []
    for name in ("true", "123", "1e3", "null"):  # words of YAML's own stay names
        other = yaml.safe_load(jobset(job(image="i", name=name)))
        assert problems(other, JOBSET) == []
        assert other["metadata"]["name"] == name


def test_the_pods_of_a_jobset_find_each_other_and_their_place():
    found = yaml.safe_load(jobset(job(nodes=4, gpus_per_node=8, image="reg/shoal:1", home="pvc")))
    spec = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (4, 4, 0)
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "pvc"}
    env = {item["name"]: item.get("value") for item in container["env"]}
    index = container["env"][3]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    # <jobset>-<replicated job>-<job index>-<pod index>.<subdomain>, as JobSet names its pods
    names = (found["metadata"]["name"], spec["completions"], found["spec"]["network"]["subdomain"])
    assert names == ("first", 4, "first")
    place = recognize(env | {"SHOAL_PROCESS_ID": "3"})
    assert (place.index, place.count, place.coordinator) == (3, 4, "first-train-0-0.first:29500")
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"shoal-home": env["SHOAL_HOME"], "shared-memory": "/dev/shm"}
    assert container["command"] == ["shoal", "train", "d512", "--run", "first"]


def test_wrong_input_fails_a_jobset_and_all_else_restarts_it():
    found = yaml.safe_load(jobset(job(image="i", restarts=7)))["spec"]
    assert found["failurePolicy"]["maxRestarts"] == 7
    assert found["failurePolicy"]["rules"][0]["action"] == "FailJobSet"
    policy = found["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]
    assert policy["rules"][0]["onExitCodes"]["values"] == [2]


def test_what_is_quoted_for_kubernetes_stays_as_it_was():
    nasty = "name=é \"'\\ #: $(SHOAL_HOME) \U0001f41f"
    found = yaml.safe_load(jobset(job(image="i", overrides=(nasty,))))
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    # Kubernetes puts variables for $(NAME), and reads $$ as $.
    assert pod["containers"][0]["command"][-1].replace("$$(", "$(") == nasty
    assert "$$(SHOAL_HOME)" in pod["containers"][0]["command"][-1]


def test_the_skypilot_task_keeps_to_its_schema():
    for more in ({}, {"image": "reg/shoal:1"}, {"home": "/shared/home"}, {"home": "volume"}):
        found = yaml.safe_load(skypilot(job(nodes=4, gpus_per_node=8, gpu="H100", **more)))
        assert problems(found, SKYPILOT) == []
        assert found["resources"]["accelerators"] == "H100:8"
        home = found["envs"]["SHOAL_HOME"]
        assert home == (more["home"] if "/" in more.get("home", "") else "/shoal-home")
        assert ("volumes" in found) == (home == "/shoal-home")


def test_every_node_of_a_skypilot_task_knows_its_place(tmp_path: Path):
    found = yaml.safe_load(skypilot(job(nodes=2, gpu="H100", overrides=("name=a 'b'",))))
    program = tmp_path / ".venv" / "bin" / "shoal"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    told = {"SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6", "SKYPILOT_NUM_NODES": "2"}
    said = subprocess.run(
        ["bash", "-c", found["run"]],
        env=os.environ | told | {"SKYPILOT_NODE_RANK": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == [
        "train", "d512", "--run", "first", "--set", "name=a 'b'",
        "--coordinator", "10.0.0.5:29500", "--num-processes", "2", "--process-id", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "more", "said"),
    [
        (jobset, {}, "needs --image"),
        (jobset, {"image": "i", "time": "1:00"}, "--time is Slurm's"),
        (jobset, {"image": "i", "home": "/a/path"}, "name of a PersistentVolumeClaim"),
        (skypilot, {}, "needs --gpu"),
        (skypilot, {"gpu": "H100", "partition": "p"}, "--partition is Slurm's"),
    ],
)
def test_an_option_that_is_missing_or_anothers_is_said(write, more, said):
    with pytest.raises(ValueError, match=said):
        write(job(**more))
