"""Where a process stands among those of its run, decided from flags and environment alone.

Nothing here connects to anything or looks at a device, so each kind of cluster is a test.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

COORDINATOR = "SHOAL_COORDINATOR"
NUM_PROCESSES = "SHOAL_NUM_PROCESSES"
PROCESS_ID = "SHOAL_PROCESS_ID"
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
# Ports that clusters leave to programs; which one follows from the job, so that all agree.
_FIRST_PORT, _PORTS = 65535 - 4096 + 1, 4096


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process stands among the processes of its run.

    Attributes:
        coordinator: HOST:PORT of process 0; None for one process alone.
        devices: indices of this machine's accelerators that are this process's; None for all.
        origin: how that was recognized, as a line to print.
    """

    index: int
    count: int
    coordinator: str | None
    devices: tuple[int, ...] | None
    origin: str


def recognize(
    environment: Mapping[str, str],
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Place:
    """Decide what this process is: by flags, Shoal's own variables, Slurm, Open MPI, or alone.

    Raises:
        ValueError: some of the three flags are missing, or they contradict each other or the
            cluster; the cluster does not say enough.
    """
    cluster = _slurm(environment) or _open_mpi(environment)
    given = {
        "--coordinator": coordinator,
        "--num-processes": num_processes,
        "--process-id": process_id,
    }
    there = [f"{flag} {value}" for flag, value in given.items() if value is not None]
    if coordinator is not None and num_processes is not None and process_id is not None:
        return _explicit(coordinator, num_processes, process_id, "the flags", cluster)
    if there:
        missing = [flag for flag, value in given.items() if value is None]
        raise ValueError(
            f"{', '.join(there)} without {', '.join(missing)}: give all three; or none on Slurm,"
            " under Open MPI and in what `shoal launch` writes"
        )
    if NUM_PROCESSES in environment:
        return _of_variables(environment, cluster)
    if cluster and cluster.count > 1 and not cluster.coordinator:
        raise ValueError(
            f"Open MPI runs {cluster.count} processes and does not say where process 0 is:"
            f" use `mpirun -x {COORDINATOR}=HOST:PORT`, the host of process 0 and a free port"
        )
    if cluster:
        return cluster
    if "JOB_COMPLETION_INDEX" in environment:
        raise ValueError(
            f"this is pod {environment['JOB_COMPLETION_INDEX']} of an indexed Kubernetes Job, which"
            f" does not say how many there are: set {NUM_PROCESSES} (1 if it is alone) and"
            f" {COORDINATOR}=HOST:PORT of pod 0 in the Job, as `shoal launch jobset` does"
        )
    alone = "SLURM_JOB_ID" in environment and "SLURM_STEP_NODELIST" not in environment
    why = "on Slurm, but not started by srun" if alone else "no cluster and no flags"
    return _alone(why)


def _alone(why: str) -> Place:
    origin = f"one process ({why})"
    return Place(index=0, count=1, coordinator=None, devices=None, origin=origin)


def _explicit(coordinator: str, count: int, index: int, how: str, cluster: Place | None) -> Place:
    if count < 1:
        raise ValueError(f"{how} say {count} processes; there must be at least 1")
    if not 0 <= index < count:
        raise ValueError(f"{how} say process {index} of {count}; use 0 to {count - 1}")
    _check_address(coordinator, how)
    known = cluster if cluster and cluster.count > 1 else None
    if known and (known.count, known.index) != (count, index):
        raise ValueError(
            f"{how} say process {index} of {count}, and the cluster says otherwise"
            f" ({known.origin}): leave one of them out"
        )
    if count == 1:
        return _alone(f"{how} say so")
    return _several(index, count, coordinator, known.devices if known else None, how)


def _several(
    index: int, count: int, coordinator: str, devices: tuple[int, ...] | None, how: str
) -> Place:
    origin = f"process {index} of {count}, coordinator {coordinator} ({how})"
    return Place(index=index, count=count, coordinator=coordinator, devices=devices, origin=origin)


def _check_address(coordinator: str, how: str) -> None:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", coordinator)
    if not match or not 0 < int(match[2]) < 65536:
        raise ValueError(f"{how}: coordinator {coordinator!r} is not HOST:PORT, as node1:29500 is")


def _of_variables(environment: Mapping[str, str], cluster: Place | None) -> Place:
    """Return the place that Shoal's own variables give; a Job's pod need not set its index."""
    how = f"{NUM_PROCESSES} and its like"
    count = _whole(environment, NUM_PROCESSES)
    if count == 1:
        return _alone(f"{NUM_PROCESSES}=1")
    if COORDINATOR not in environment:
        raise ValueError(f"{NUM_PROCESSES}={count} without {COORDINATOR}: set it to HOST:PORT")
    for name in (PROCESS_ID, "JOB_COMPLETION_INDEX"):
        if name in environment:
            index = _whole(environment, name)
            return _explicit(environment[COORDINATOR], count, index, how, cluster)
    raise ValueError(f"{NUM_PROCESSES}={count} without {PROCESS_ID}: set it, from 0 on")


def _whole(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environment.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d{1,9}", value):
        raise ValueError(f"{name}={value!r} in the environment is not a whole number")
    return int(value)


def _slurm(environment: Mapping[str, str]) -> Place | None:
    """Return the place in a Slurm step; its first node coordinates, at a port of the job's."""
    if not all(name in environment for name in _SLURM):
        return None
    job, count, index, local = (_whole(environment, _SLURM[n]) for n in (0, 2, 3, 4))
    if count == 1:
        return _alone(f"one task on Slurm, job {job}")
    nodes = environment["SLURM_STEP_NODELIST"]
    first = re.match(r"([^,\[]+)(?:\[([^],-]+))?", nodes)
    if not first:
        raise ValueError(f"SLURM_STEP_NODELIST={nodes!r} names no node")
    port = environment.get("JAX_COORDINATOR_PORT") or str(job % _PORTS + _FIRST_PORT)
    at = environment.get(COORDINATOR) or f"{first[1]}{first[2] or ''}:{port}"
    how = f"Slurm, job {job}"
    _check_address(at, how)
    here = -(-count // _whole(environment, "SLURM_STEP_NUM_NODES", 1))
    return _several(index, count, at, _share(environment, local, here), how)


def _open_mpi(environment: Mapping[str, str]) -> Place | None:
    """Return the place under mpirun; before Open MPI 5 it says where it runs itself."""
    if not all(name in environment for name in _MPI):
        return None
    count, index, local = (_whole(environment, name) for name in _MPI)
    if count == 1:
        return _alone("one process under Open MPI")
    at = environment.get(COORDINATOR)
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.match(r"(\d+)\.\d+;tcp(?:6)?://(\[[^],]+|[^,:]+)", uri)
    if not at and found:
        host = f"{found[2]}]" if found[2].startswith("[") else found[2]
        at = f"{host}:{int(found[1]) // 4096 % _PORTS + _FIRST_PORT}"
    if at:
        _check_address(at, "Open MPI")
    here = _whole(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    return _several(index, count, at or "", _share(environment, local, here), "Open MPI")


def _share(environment: Mapping[str, str], local: int, here: int) -> tuple[int, ...] | None:
    """Return which of a machine's accelerators are one process's, where several run on it.

    One process takes all that it sees. Several take one each, or equal shares of the devices that
    CUDA_VISIBLE_DEVICES lists; if that lists a single one, the cluster has shared them out already.
    """
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if here == 1 or len(visible) == 1:
        return None
    each = max(1, len(visible) // here)
    return tuple(range(local * each, (local + 1) * each))
