"""Programs that stand in for Slurm's on the PATH, where a job runs on this machine alone."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Stands in for srun: two tasks with what Slurm tells them; signals are passed on to each; its
# status is the highest of theirs.
SRUN = """
import json, os, signal, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
with open(os.environ["STUB_LOG"], "a") as log:
    log.write("srun " + json.dumps(sys.argv[1:]) + "\\n")
tasks = []
signal.signal(signal.SIGUSR1, lambda number, _: [task.send_signal(number) for task in tasks])
for rank in range(2):
    told = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": 2,
            "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": 1}
    environment = os.environ | {name: str(value) for name, value in told.items()}
    tasks.append(subprocess.Popen(words, env=environment))
statuses = [task.wait() for task in tasks]
sys.exit(max(128 - status if status < 0 else status for status in statuses))
"""
SCONTROL = 'echo "scontrol $*" >> "$STUB_LOG"\n'
# Stands in for sbatch: the script itself, started as a job.
SBATCH = 'export SLURM_JOB_ID=70123\nexec bash "$1"\n'


def put_programs(folder: Path) -> None:
    """Write the stand-ins for sbatch, srun and scontrol into a folder."""
    folder.mkdir()
    python, bash = f"#!{sys.executable}\n", "#!/bin/bash\n"
    for name, text in {
        "srun": python + SRUN,
        "scontrol": bash + SCONTROL,
        "sbatch": bash + SBATCH,
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def submit(script: Path, programs: Path, seen: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a script as a job; what the stand-ins were asked is logged beside it."""
    there = {"PATH": f"{programs}:{os.environ['PATH']}", "STUB_LOG": str(script.parent / "log")}
    return subprocess.Popen(
        [str(programs / "sbatch"), str(script)],
        env={**seen, **there},
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def asked(script: Path) -> list[str]:
    """Return the lines that the stand-ins have logged."""
    path = script.parent / "log"
    return path.read_text().splitlines() if path.exists() else []
