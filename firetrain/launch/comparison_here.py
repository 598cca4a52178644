"""Run a comparison on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from firetrain.cluster.memory import refuse_too_many_ranks
from firetrain.config.comparison import Comparison
from firetrain.errors import FiretrainError, UserError
from firetrain.launch.allocation import run_allocation, run_commands
from firetrain.launch.attempt import Attempt, Cancelled, RankFailed, run_ranks
from firetrain.launch.comparison import prepare
from firetrain.launch.status import live_job
from firetrain.launch.trials import Allocation
from firetrain.launch.user_command import rendezvous_port, variables_of
from firetrain.records import Run
from firetrain.records.lock import held


def run_here(
    comparison: Comparison, allocations: Sequence[Allocation], folder: Path, look: Callable[[str], None]
) -> Iterator[str]:
    """Run the missing trials on this machine; `look` is called repeatedly with the current world.

    Yields an error message for each failed allocation, and continues with the next.
    """
    refuse_too_many_ranks(max(allocation.world.size for allocation in allocations))
    with held(Run(folder)):
        for allocation in allocations:
            if (job := live_job(Run(allocation.path))) is not None:
                raise UserError(
                    f"Slurm job {job} runs the trials of {allocation.path}: cancel it first (scancel {job})"
                )
        prepare(comparison, allocations, folder)
        for allocation in allocations:
            try:
                if comparison.command:
                    run_commands(Run(allocation.path), partial(_start_command, comparison, allocation, look))
                else:
                    run_allocation(Run(allocation.path), partial(_start_ranks, allocation, look))
            except (Cancelled, UserError):
                raise
            except FiretrainError as error:
                yield f"{allocation.world}: {error}"


def _start_ranks(allocation: Allocation, look: Callable[[str], None]) -> str:
    """Run the ranks of an allocation until they end; returns the error message, empty if there is none."""
    record = Run(allocation.path)
    with held(record) as lock:
        attempt = Attempt(allocation.world, record.begin_attempt(), lambda: look(str(allocation.world)), holds=[lock])
        return _failure(["trials", str(allocation.path)], attempt)


def _start_command(comparison: Comparison, allocation: Allocation, look: Callable[[str], None], trial: Run) -> str:
    """Run the ranks of a trial of a command; as `_start_ranks`."""
    record, port = Run(allocation.path), rendezvous_port()
    with held(record) as lock:
        world, folder = allocation.world, record.begin_attempt()
        attempt = Attempt(
            world, folder, lambda: look(str(world)), holds=[lock], program=(), folder_of_ranks=Path(comparison.folder),
            of_rank=lambda rank: variables_of(trial, folder, world, port, rank),
        )  # fmt: skip
        return _failure(comparison.command, attempt)


def _failure(command: Sequence[str], attempt: Attempt) -> str:
    try:
        run_ranks(command, attempt)
    except RankFailed as error:
        return str(error)
    return ""
