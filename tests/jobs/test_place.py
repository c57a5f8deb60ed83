import os

import pytest
from jax._src.clusters.ompi_cluster import OmpiCluster
from jax._src.clusters.slurm_cluster import SlurmCluster

from shoal.jobs.place import recognize

SLURM = {
    "SLURM_JOB_ID": "70123",
    "SLURM_STEP_NODELIST": "node[003-006]",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
ORTE = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2"}
OURS = {"SHOAL_COORDINATOR": "run-0-0.run:29500", "SHOAL_NUM_PROCESSES": "4"}


def test_without_cluster_and_flags_it_is_one_process():
    place = recognize({"HOME": "/home/me"})
    assert (place.index, place.count, place.coordinator) == (0, 1, None)
    assert place.origin == "one process (no cluster and no flags)"


def test_slurm_gives_each_task_its_place_and_its_own_device():
    place = recognize(SLURM)
    assert (place.index, place.count, place.devices) == (5, 16, (1,))
    assert place.coordinator == f"node003:{70123 % 4096 + 61440}"
    assert place.origin == f"process 5 of 16, coordinator {place.coordinator} (Slurm, job 70123)"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-0015],host2", "node001"),
        ("node[001,007-015],host2", "node001"),
        ("gpu-a-[9-12]", "gpu-a-9"),
    ],
)
def test_the_coordinator_on_slurm_is_the_one_that_jax_finds(monkeypatch, nodes, first):
    seen = SLURM | {"SLURM_STEP_NODELIST": nodes}
    for name, value in seen.items():
        monkeypatch.setenv(name, value)
    assert SlurmCluster.is_env_present()
    found = SlurmCluster.get_coordinator_address(None, None)
    assert recognize(seen).coordinator == found
    assert found.startswith(f"{first}:")
    assert SlurmCluster.get_process_count() == recognize(seen).count
    assert SlurmCluster.get_process_id() == recognize(seen).index


def test_a_port_can_be_chosen_on_slurm():
    assert recognize(SLURM | {"JAX_COORDINATOR_PORT": "4711"}).coordinator == "node003:4711"


def test_a_slurm_allocation_of_one_task_is_one_process():
    place = recognize(SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})
    assert (place.count, place.coordinator, place.devices) == (1, None, None)
    assert "one task on Slurm" in place.origin


def test_what_srun_did_not_start_is_one_process_whatever_was_allocated():
    batch = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}
    place = recognize(batch)
    assert place.count == 1
    assert "not started by srun" in place.origin


@pytest.mark.parametrize(
    ("nodes", "visible", "devices"),
    [
        ("16", "", None),  # a task for each node takes all of it
        ("4", "3", None),  # the cluster has given each task one already
        ("4", "0,1,2,3", (1,)),
        ("4", "0,1,2,3,4,5,6,7", (2, 3)),
    ],
)
def test_several_tasks_on_a_node_share_its_devices(nodes, visible, devices):
    seen = SLURM | {"SLURM_STEP_NUM_NODES": nodes, "CUDA_VISIBLE_DEVICES": visible}
    assert recognize(seen).devices == devices


def test_open_mpi_before_5_says_where_it_runs_as_jax_reads_it(monkeypatch):
    for name, value in (MPI | ORTE).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMPI_VERSION", "4.1.6")
    place = recognize(MPI | ORTE)
    assert (place.index, place.count, place.devices) == (3, 8, (3,))
    assert place.coordinator == OmpiCluster.get_coordinator_address(None, None)
    six = {"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b:ac5d,2620:10d::2]:43370"}
    monkeypatch.setenv(*next(iter(six.items())))
    port = OmpiCluster.get_coordinator_address(None, None).rpartition(":")[2]
    assert recognize(MPI | six).coordinator == f"[fe80::b9b:ac5d]:{port}"


def test_open_mpi_5_needs_to_be_told_where_process_0_is():
    with pytest.raises(ValueError, match=r"mpirun -x SHOAL_COORDINATOR=HOST:PORT"):
        recognize(MPI)
    place = recognize(MPI | {"SHOAL_COORDINATOR": "node1:29500"})
    assert (place.index, place.coordinator) == (3, "node1:29500")


def test_a_pod_of_what_launch_writes_knows_its_place():
    place = recognize(POD | OURS)
    assert (place.index, place.count, place.coordinator) == (2, 4, "run-0-0.run:29500")
    assert place.devices is None
    assert recognize(POD | OURS | {"SHOAL_PROCESS_ID": "1"}).index == 1
    assert recognize(POD | {"SHOAL_NUM_PROCESSES": "1"}).count == 1


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (POD, "set SHOAL_NUM_PROCESSES"),
        (POD | {"SHOAL_NUM_PROCESSES": "4"}, "without SHOAL_COORDINATOR"),
        (OURS, "without SHOAL_PROCESS_ID"),
        (POD | OURS | {"SHOAL_NUM_PROCESSES": "two"}, "SHOAL_NUM_PROCESSES='two'"),
        (POD | OURS | {"JOB_COMPLETION_INDEX": "4"}, "process 4 of 4; use 0 to 3"),
        (POD | OURS | {"SHOAL_COORDINATOR": "node1"}, "'node1' is not HOST:PORT"),
        (SLURM | {"SLURM_PROCID": "?"}, r"SLURM_PROCID='\?'"),
        (SLURM | {"SLURM_STEP_NODELIST": "[]"}, "names no node"),
    ],
)
def test_a_cluster_that_says_too_little_is_refused(seen, said):
    with pytest.raises(ValueError, match=said):
        recognize(seen)


def test_three_flags_are_a_place():
    place = recognize({}, "10.0.0.7:1234", 3, 2)
    assert (place.index, place.count, place.coordinator) == (2, 3, "10.0.0.7:1234")
    assert place.origin == "process 2 of 3, coordinator 10.0.0.7:1234 (the flags)"
    assert recognize({}, "[::1]:1234", 2, 0).coordinator == "[::1]:1234"
    assert recognize({}, "10.0.0.7:1234", 1, 0).count == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("a:1", None, None), "--coordinator a:1 without --num-processes, --process-id"),
        ((None, 2, 0), "--num-processes 2, --process-id 0 without --coordinator"),
        ((None, None, 0), "--process-id 0 without"),
        (("a:1", 2, 2), "process 2 of 2; use 0 to 1"),
        (("a:1", 2, -1), "process -1 of 2"),
        (("a:1", 0, 0), "0 processes"),
        (("a", 2, 0), "'a' is not HOST:PORT"),
        (("a:0", 2, 0), "is not HOST:PORT"),
        (("a:70000", 2, 0), "is not HOST:PORT"),
        (("a b:1", 2, 0), "is not HOST:PORT"),
    ],
)
def test_partial_or_impossible_flags_are_refused(flags, said):
    with pytest.raises(ValueError, match=said):
        recognize({}, *flags)


def test_flags_and_cluster_must_not_contradict_each_other():
    with pytest.raises(ValueError, match="the cluster says otherwise"):
        recognize(SLURM, "a:1", 2, 0)
    assert recognize(SLURM, "a:1", 16, 5).devices == (1,)
    assert recognize(MPI, "a:1", 8, 3).coordinator == "a:1"
    alone = SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    assert recognize(alone, "a:1", 2, 1).index == 1  # by hand, in a shell on one node


def test_this_test_runs_as_one_process():
    assert recognize(os.environ).count == 1
