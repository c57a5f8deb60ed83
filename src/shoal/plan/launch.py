"""The files that clusters are given: a Slurm script, a JobSet, a SkyPilot task. Plain text only.

All three restart the whole gang from its newest checkpoint, and stop restarting at wrong input
(exit status 2 of `shoal train`) where the cluster can tell. docs/clusters.md has the reasons.
"""

import json
import re
import shlex
from dataclasses import dataclass

MARK = "Written by `shoal launch"
PORT = 29500
# How long before the time limit a checkpoint is asked for, and how long one is waited for.
SAVE_S = 300
_MOUNT = "/shoal-home"
_TEXTS = (
    "recipe", "run", "name", "image", "home", "gpu", "partition", "account", "forecast",
)  # fmt: skip
_LABEL = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
_TIME = r"\d+(:\d{2}){0,2}|\d+-\d+(:\d{2}){0,2}"
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is to run, and on what.

    Attributes:
        home: of Slurm, a folder that all nodes share, or empty for SHOAL_HOME where the script is
            submitted; of the others, the name of a volume that all nodes may write to.
        forecast: the seal that the run's record begins with, as the nodes find it.
        restarts: after how many failures in all to give up.
        gpu: the accelerator's name in SkyPilot.
    """

    recipe: str
    run: str
    overrides: tuple[str, ...] = ()
    nodes: int
    gpus_per_node: int
    name: str
    time: str = ""
    partition: str = ""
    account: str = ""
    image: str = ""
    home: str = ""
    gpu: str = ""
    forecast: str = ""
    restarts: int = 100

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.restarts < 0:
            raise ValueError(f"restarts={self.restarts} must be 0 or more")
        texts = {name: getattr(self, name) for name in _TEXTS}
        for name, text in [*texts.items(), *(("--set", one) for one in self.overrides)]:
            if not text.isprintable() or text.startswith("-"):
                raise ValueError(f"{name} {text!r} starts with '-' or is not one printable line")
        _match(self.name, _LABEL, "name", "up to 40 of a-z, 0-9 and -, as my-run")
        _match(self.time, _TIME, "time", "a time limit of Slurm's, as 24:00:00 or 2-12")
        for name in ("partition", "account", "gpu"):
            _match(texts[name], _PLAIN, name, "a plain name")

    @property
    def words(self) -> list[str]:
        """The training command after the program's name."""
        chosen = [word for one in self.overrides for word in ("--set", one)]
        sealed = ["--forecast", self.forecast] if self.forecast else []
        return ["train", self.recipe, "--run", self.run, *sealed, *chosen]


def _match(text: str, pattern: str, name: str, right: str) -> None:
    if text and not re.fullmatch(pattern, text):
        raise ValueError(f"{name} {text!r} is not {right}")


def slurm(job: Launch) -> str:
    """Return a script for sbatch: one process for each GPU, as the public run had it."""
    directives = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": job.gpus_per_node,
        "gpus-per-node": job.gpus_per_node,
        "time": job.time or "24:00:00",
        "partition": job.partition,
        "account": job.account,
        "signal": f"B:USR1@{SAVE_S}",
        "open-mode": "append",
        "output": "%x-%j.log",
    }
    given = [f"#SBATCH --{name}={value}" for name, value in directives.items() if value]
    home = shlex.quote(job.home) if job.home else '"${SHOAL_HOME:-$PWD/shoal-home}"'
    program, container = '"${SHOAL:-.venv/bin/shoal}"', ""
    if job.image:
        program = "shoal"
        container = (
            f"  --container-image={shlex.quote(job.image)} \\\n"
            '  --container-mounts="$SHOAL_HOME:$SHOAL_HOME,$PWD:$PWD"'
            ' --container-workdir="$PWD" \\\n'
        )
    return _SLURM.format(
        mark=MARK,
        directives="\n".join(given),
        home=home,
        container=container,
        command=f"{program} {shlex.join(job.words)}",
        restarts=job.restarts,
    )


_SLURM = """\
#!/bin/bash
# {mark} slurm`. Submit it with `sbatch` in the checkout's folder.
{directives}
#SBATCH --exclusive
#SBATCH --requeue

# Every node must see this folder: checkpoints, corpus and record are in it.
export SHOAL_HOME={home}
# Warnings of NCCL's are the least that a long run should log.
export NCCL_DEBUG="${{NCCL_DEBUG:-WARN}}"
# The rest of a GPU's memory is for NCCL's and CUDA's own buffers.
export XLA_PYTHON_CLIENT_MEM_FRACTION="${{XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}}"
# Only the site knows its network: if NCCL picks the wrong one, say which.
# export NCCL_SOCKET_IFNAME=... NCCL_IB_HCA=...

# Slurm sends USR1 to this shell some minutes before the time limit, and srun passes it on to each
# process: all of them finish the same step, save it and end.
step=
stopping=
passed_on=
pass_on() {{
  # Once: a second signal would end the processes at once, without saving.
  if [ -n "$step" ] && [ -z "$passed_on" ]; then
    passed_on=yes
    kill -USR1 "$step"
  fi
}}
trap 'stopping=yes; pass_on' USR1

srun --kill-on-bad-exit=1 --gpu-bind=none --cpu-bind=none \\
{container}  {command} &
step=$!
if [ -n "$stopping" ]; then pass_on; fi

# A signal ends `wait`, not srun: wait again. What was waited for already answers 127.
status=0
while kill -0 "$step" 2>/dev/null; do
  wait "$step"
  status=$?
done
wait "$step" 2>/dev/null
again=$?
if [ "$again" -ne 127 ]; then status=$again; fi

if [ "$status" -eq 0 ]; then
  echo "job $SLURM_JOB_ID: done"
  exit 0
fi
if [ "$status" -eq 2 ]; then
  echo "job $SLURM_JOB_ID: wrong input, which another attempt would not mend" >&2
  exit 2
fi
if [ -z "$stopping" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ]; then
  echo "job $SLURM_JOB_ID: status $status, and {restarts} restarts were enough" >&2
  exit "$status"
fi
echo "job $SLURM_JOB_ID: status $status; goes on from its newest checkpoint" >&2
scontrol requeue "$SLURM_JOB_ID"
"""


def jobset(job: Launch) -> str:
    """Return a JobSet: an indexed Job of one pod, and one process, for each node.

    Raises:
        ValueError: there is no image, or an option that only Slurm has.
    """
    _only_slurm(job)
    if not job.image:
        raise ValueError("a JobSet needs --image, one that has the command `shoal`")
    home = job.home or "shoal-home"
    _match(home, r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", "home", "the name of a PersistentVolumeClaim")
    return _JOBSET.format(
        mark=MARK,
        name=_quoted(job.name),
        restarts=job.restarts,
        nodes=job.nodes,
        grace_s=SAVE_S,
        image=_quoted(job.image),
        # Kubernetes would put a variable in the place of $(NAME).
        command=_quoted(["shoal", *(word.replace("$(", "$$(") for word in job.words)]),
        mount=_MOUNT,
        coordinator=_quoted(f"{job.name}-train-0-0.{job.name}:{PORT}"),
        port=PORT,
        gpus=job.gpus_per_node,
        home=_quoted(home),
        index="metadata.annotations['batch.kubernetes.io/job-completion-index']",
    )


_JOBSET = """\
# {mark} jobset`. Submit it with `kubectl apply -f`.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  # JobSet makes the headless service through which pods find the coordinator by name.
  network:
    enableDNSHostnames: true
    subdomain: {name}
  failurePolicy:
    maxRestarts: {restarts}
    # All pods of an attempt are gone before the next one starts: they share the run's folder.
    restartStrategy: BlockingRecreate
    rules:
      - name: wrongInput
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: train
      replicas: 1
      template:
        spec:
          completionMode: Indexed
          completions: {nodes}
          parallelism: {nodes}
          backoffLimit: 0  # one pod's end is the end of all: JobSet restarts the gang
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: train
                  operator: In
                  values: [2]
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: {grace_s}  # to finish the step and save it
              containers:
                - name: train
                  image: {image}
                  command: {command}
                  ports:
                    - containerPort: {port}
                  env:
                    - name: SHOAL_HOME
                      value: {mount}
                    - name: SHOAL_COORDINATOR
                      value: {coordinator}
                    - name: SHOAL_NUM_PROCESSES
                      value: "{nodes}"
                    - name: SHOAL_PROCESS_ID
                      valueFrom:
                        fieldRef:
                          fieldPath: {index}
                    # Warnings of NCCL's are the least that a long run should log.
                    - name: NCCL_DEBUG
                      value: WARN
                    # One process launches on several GPUs: as a group, so that none waits.
                    - name: NCCL_LAUNCH_MODE
                      value: GROUP
                    # The rest of a GPU's memory is for NCCL's and CUDA's own buffers.
                    - name: XLA_PYTHON_CLIENT_MEM_FRACTION
                      value: "0.9"
                  resources:
                    limits:
                      nvidia.com/gpu: {gpus}
                  volumeMounts:
                    - name: shoal-home
                      mountPath: {mount}
                    - name: shared-memory
                      mountPath: /dev/shm
              volumes:
                # Every node writes to it: its access mode must be ReadWriteMany.
                - name: shoal-home
                  persistentVolumeClaim:
                    claimName: {home}
                # A container's own is 64 MB, too little for NCCL.
                - name: shared-memory
                  emptyDir:
                    medium: Memory
"""


def skypilot(job: Launch) -> str:
    """Return a SkyPilot task for `sky jobs launch`: one process for each node.

    Raises:
        ValueError: no accelerator is named, or an option that only Slurm has.
    """
    _only_slurm(job)
    if not job.gpu:
        raise ValueError("SkyPilot needs --gpu NAME, as `sky show-gpus` spells it, such as H100")
    image = f"  image_id: {_quoted(f'docker:{job.image}')}\n" if job.image else ""
    is_path = job.home.startswith("/")
    volumes = "" if is_path else f"volumes:\n  {_MOUNT}: {_quoted(job.home or 'shoal-home')}\n"
    return _SKYPILOT.format(
        mark=MARK,
        name=_quoted(job.name),
        nodes=job.nodes,
        accelerators=_quoted(f"{job.gpu}:{job.gpus_per_node}"),
        image=image,
        restarts=job.restarts,
        home=_quoted(job.home if is_path else _MOUNT),
        volumes=volumes,
        command=shlex.join(job.words),
        port=PORT,
    )


_SKYPILOT = """\
# {mark} skypilot`. Submit it with `sky jobs launch` in the checkout's folder.
name: {name}
num_nodes: {nodes}
workdir: .
resources:
  accelerators: {accelerators}
{image}  job_recovery:
    # Lost machines are replaced however often; this many failures of the program are mended too.
    max_restarts_on_errors: {restarts}
envs:
  SHOAL_HOME: {home}
  # Warnings of NCCL's are the least that a long run should log.
  NCCL_DEBUG: WARN
  # One process launches on several GPUs: as a group, so that none waits.
  NCCL_LAUNCH_MODE: GROUP
  # The rest of a GPU's memory is for NCCL's and CUDA's own buffers.
  XLA_PYTHON_CLIENT_MEM_FRACTION: "0.9"
# Every node writes to SHOAL_HOME, and finds it again after a recovery.
{volumes}setup: |
  make setup EXTRA=cuda
run: |
  first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  exec .venv/bin/shoal {command} \\
    --coordinator "${{first}}:{port}" \\
    --num-processes "$SKYPILOT_NUM_NODES" --process-id "$SKYPILOT_NODE_RANK"
"""


def _only_slurm(job: Launch) -> None:
    given = [name for name in ("time", "partition", "account") if getattr(job, name)]
    if given:
        raise ValueError(f"--{given[0]} is Slurm's; leave it out")


def _quoted(value: str | list[str]) -> str:
    # YAML reads JSON's strings, so long as nothing in them needs \\u, which is refused before.
    return json.dumps(value, ensure_ascii=False)
