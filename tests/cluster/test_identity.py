"""A process derives its rank from its launcher's environment variables."""

from __future__ import annotations

import pytest

from firetrain.cluster import Identity, identify
from firetrain.errors import UserError


def test_without_a_launcher_there_is_one_rank() -> None:
    assert identify({}) == Identity("none", 0, 1, 0, 1, 0)


def test_torchrun_inside_a_slurm_step_is_torchrun() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
    assert identify({**slurm, **torchrun}) == Identity("torchrun", 5, 8, 1, 4, 1)


def test_srun_s_compressed_task_list_gives_the_count_of_this_node() -> None:
    variables = {
        "SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5", "SLURM_LOCALID": "0", "SLURM_NODEID": "2",
        "SLURM_STEP_TASKS_PER_NODE": "3,1(x2)",
    }  # fmt: skip
    assert identify(variables) == Identity("srun", 4, 5, 0, 1, 2)


def test_mpirun_s_node_is_counted_from_the_ranks_per_node() -> None:
    variables = {
        "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1",
    }  # fmt: skip
    assert identify(variables) == Identity("mpirun", 3, 4, 1, 2, 1)


def test_a_batch_script_outside_any_step_is_no_rank() -> None:
    assert identify({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}).launcher == "none"


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "torchrun says rank 4 of 4"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK is not a number"),
    ],
)
def test_contradictions_are_told_with_their_variables(variables: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        identify(variables)
