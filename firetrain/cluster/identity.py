"""Which rank is this process? Each launcher says so in environment variables of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from firetrain.errors import UserError

# launcher -> the variables for rank, world size, local rank, local world size, node; the first launcher found is taken.
# torchrun inside srun leaves Slurm's variables visible, so the more specific launchers stand first.
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
    """One process among the ranks: its number, how many there are, the same inside its node, and who started it."""

    launcher: str = "none"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0

    @property
    def is_first(self) -> bool:
        """Rank 0 writes the records and speaks to the terminal."""
        return self.rank == 0


def identify(environment: Mapping[str, str] | None = None) -> Identity:
    """This process's identity from its environment; a single process where no launcher has left its variables.

    UserError if a launcher's variables are incomplete or contradict each other.
    """
    variables = os.environ if environment is None else environment
    for launcher, names in _VARIABLES.items():
        # srun's variables are also set in a batch script outside any step; only a step's tasks are ranks
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
    """An integer; Slurm's compressed list `3,1(x2)` gives the entry of this task's node."""
    counts: list[str] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [count] * int(times.rstrip(")") or 1) if times else [count]
    try:
        return int(counts[node] if len(counts) > 1 else counts[0])
    except (ValueError, IndexError):
        raise UserError(f"{name} is not a number that a rank can be made from (got {text!r})") from None
