"""The identity of this process among the ranks, from the environment variables of its launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from firetrain.errors import UserError

# launcher -> its variables for rank, world size, local rank, local world size and node; the first launcher found is used.
# Under torchrun inside srun, Slurm's variables are set too, so more specific launchers come first
_VARIABLES = {
    "firetrain": (
        "FIRETRAIN_RANK",
        "FIRETRAIN_WORLD_SIZE",
        "FIRETRAIN_LOCAL_RANK",
        "FIRETRAIN_LOCAL_WORLD_SIZE",
        "FIRETRAIN_NODE",
    ),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_NODE_RANK",
    ),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"),
}


@dataclass(frozen=True)
class Identity:
    """The identity of a process: rank and world size, globally and within its node, and its launcher.

    >>> Identity("srun", rank=5, world_size=8, local_rank=1, local_world_size=4, node=1).is_first
    False
    """

    launcher: str = "none"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0. Rank 0 prints, and writes the records."""
        return self.rank == 0


def identify(environment: Mapping[str, str] | None = None) -> Identity:
    """The identity of this process from its launcher's variables; without a launcher, that of the only process of a world.

    UserError if a launcher's variables are incomplete or contradict each other.

    >>> identify({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Identity(launcher='torchrun', rank=1, world_size=2, local_rank=1, local_world_size=2, node=0)
    >>> identify({}).world_size
    1
    """
    variables = os.environ if environment is None else environment
    for launcher, names in _VARIABLES.items():
        # srun's variables are also set in a batch script outside any step; only the tasks of a step are ranks
        if all(name in variables for name in names[:2]):
            values = [_number(variables.get(name, "0"), name, node=_node(launcher, variables)) for name in names]
            rank, world_size, local_rank, local_world_size, node = values
            if not 0 <= rank < world_size:
                raise UserError(f"{launcher} says rank {rank} of {world_size} ({names[0]}, {names[1]})")
            if launcher == "mpirun":
                node = rank // max(1, local_world_size)  # Open MPI numbers the ranks of a node, not the nodes
            return Identity(launcher, rank, world_size, local_rank, max(1, local_world_size), node)
    return Identity()


def _node(launcher: str, variables: Mapping[str, str]) -> int:
    return int(variables.get("SLURM_NODEID", "0")) if launcher == "srun" else 0


def _number(text: str, name: str, node: int) -> int:
    """The integer in `text`; in Slurm's compressed list, such as `3,1(x2)`, the entry of this task's node."""
    counts: list[str] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [count] * int(times.rstrip(")") or 1) if times else [count]
    try:
        return int(counts[node] if len(counts) > 1 else counts[0])
    except (ValueError, IndexError):
        raise UserError(f"{name} is not a number (got {text!r})") from None
