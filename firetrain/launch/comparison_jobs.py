"""Run a comparison as Slurm jobs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from firetrain.config.comparison import Comparison
from firetrain.errors import CannotCreate, UserError
from firetrain.launch import slurm
from firetrain.launch.allocation import unfinished
from firetrain.launch.comparison import prepare
from firetrain.launch.fit import refuse_unfit_jobs
from firetrain.launch.job import JobSettings, own_folders
from firetrain.launch.script import Request, script
from firetrain.launch.status import live_job, state_of
from firetrain.launch.trials import Allocation
from firetrain.records import SUBMITTED, Run
from firetrain.records.file import cannot_write, write_whole
from firetrain.records.lock import held

_LOOK_EVERY_S = 0.5


def submit(
    comparison: Comparison, allocations: Sequence[Allocation], folder: Path, settings: JobSettings
) -> Iterator[tuple[Allocation, int]]:
    """Submit a job for each allocation with missing trials. Jobs run one after another, so that they do not share links.

    Yields (allocation, job) as they are submitted; allocations with a live job are skipped. UserError with all problems of the
    jobs, before anything is created.
    """
    busy = [allocation.path for allocation in allocations if live_job(Run(allocation.path)) is not None]
    todo = [allocation for allocation in allocations if allocation.path not in busy]
    requests = {}
    for allocation in todo:
        name = f"{comparison.name}-{allocation.path.name}-{secrets.token_hex(4)}"
        requests[allocation.path] = Request(
            allocation.path,
            allocation.world,
            settings.site,
            settings.variables,
            settings.passed,
            datasets(allocation),
            trials=True,
            name=name,
            command=comparison.command,
            folder=comparison.folder,
            code=own_folders(*allocation.configs),
        )
    refuse_unfit_jobs(*requests.values())
    with cannot_write(folder, CannotCreate):
        folder.mkdir(parents=True, exist_ok=True)
    with held(Run(folder)):  # against another submission, or a launch on this machine
        for allocation in todo:
            if (job := live_job(Run(allocation.path))) is not None:
                raise UserError(
                    f"job {job} for {allocation.path} was submitted meanwhile: repeat the command to watch it"
                )
        prepare(comparison, allocations, folder, busy)
        before = None
        for allocation in todo:
            missing = unfinished(Run(allocation.path))
            if not missing:
                continue
            for trial in missing:
                trial.update(site=settings.site_name, **settings.site.price)
            request, record = requests[allocation.path], Run(allocation.path)
            path = allocation.path / "job.sh"
            write_whole(path, script(request))
            slurm.estimate(path)  # raises Refused if Slurm would reject the job
            before = slurm.submit(path, request.name, before, settings.passed)
            record.update(state=SUBMITTED, site=settings.site_name, jobs=[*record.facts().get("jobs", []), before])
            yield allocation, before


def datasets(allocation: Allocation) -> tuple[tuple[str, str], ...]:
    """The datasets of an allocation's trials with their folders, each once."""
    found = (loaded.config.data for loaded in allocation.configs)
    return tuple(dict.fromkeys((data.name, data.root) for data in found if data.root))


def wait_for_jobs(allocations: Sequence[Allocation], poll_every_s: float, look: Callable[[], None]) -> None:
    """Wait until all trials are done or no job is left to run them; `look` is called repeatedly."""
    asked_s = time.monotonic()
    while any(unfinished(Run(allocation.path)) for allocation in allocations):
        look()
        if time.monotonic() - asked_s >= poll_every_s:
            asked_s = time.monotonic()
            if all(
                state_of(Run(allocation.path)).ended for allocation in allocations if unfinished(Run(allocation.path))
            ):
                return
        time.sleep(_LOOK_EVERY_S)


def unfinished_states(allocations: Sequence[Allocation]) -> Iterator[str]:
    """The state of each allocation whose job ended before all its trials were done."""
    for allocation in allocations:
        if unfinished(Run(allocation.path)):
            state = state_of(Run(allocation.path))
            yield f"{allocation.world}: {state.text}; {state.failure}".rstrip("; ")
