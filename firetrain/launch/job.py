"""A run as a Slurm job: check it, submit it, resume it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firetrain.cluster import SystemClock
from firetrain.config import Loaded
from firetrain.errors import FiretrainError
from firetrain.launch import slurm
from firetrain.launch.fit import refuse_unfit_jobs
from firetrain.launch.refusals import expendable_ranks, world_of
from firetrain.launch.resume import change, refuse_live_jobs, refuse_resumption
from firetrain.launch.script import Request, script
from firetrain.launch.site import Site
from firetrain.launch.status import jobs_of
from firetrain.provenance import provenance
from firetrain.records import FAILED, SUBMITTED, Run
from firetrain.records.file import write_whole
from firetrain.records.lock import held
from firetrain.records.user_command import prepare


@dataclass(frozen=True)
class Submitted:
    """A run whose jobs have been submitted."""

    run: Run
    jobs: tuple[int, ...]
    estimated_start: str


@dataclass(frozen=True)
class JobSettings:
    """Where jobs run, and with which environment variables.

    `site_name`: as a run records it. `variables`: of the ranks. `passed`: names of variables that are passed on from here.
    `asked`: the options that were given, as a run keeps them for resuming.
    """

    site: Site
    site_name: str
    variables: Mapping[str, str]
    passed: tuple[str, ...]
    asked: Mapping[str, Any]


def request_of(loaded: Loaded, path: Path, settings: JobSettings, segments: int = 1) -> Request:
    """The request of a Slurm job for a run of this config in the folder `path`."""
    data = loaded.config.data
    return Request(
        path, world_of(loaded), settings.site, settings.variables, passed=settings.passed, segments=segments,
        data=((data.name, data.root),) if data.root else (), expendable=expendable_ranks(loaded), code=own_folders(loaded),
    )  # fmt: skip


def own_folders(*configs: Loaded) -> tuple[str, ...]:
    """The folders of the user's own models and data, each once."""
    sections = [section for loaded in configs for section in (loaded.config.model, loaded.config.data)]
    return tuple(dict.fromkeys(section.folder for section in sections if section.own and section.folder))


def new_folder(loaded: Loaded, results: Path) -> Path:
    """The folder of a new run, which does not exist yet."""
    return results.absolute() / Run.new_name(loaded, SystemClock().date())


def launch_slurm(loaded: Loaded, request: Request, settings: JobSettings) -> Submitted:
    """Submit a new run and return immediately.

    UserError with all problems of the job, before anything is created. If Slurm rejects the script or does not answer, the run's
    folder and the script are kept, and its state contains the reason.
    """
    refuse_unfit_jobs(request)
    world = request.world
    facts: dict[str, Any] = {"world": str(world), "ranks": world.size, "machine": provenance()}
    facts |= _site_facts(request, settings)
    return _submit(Run.prepare(request.run, loaded, SystemClock().date(), facts), request)


def resume_slurm(
    run: Run, loaded: Loaded, request: Request, settings: JobSettings, overrides: Sequence[str] = ()
) -> Submitted:
    """Submit a job that resumes an interrupted run from its newest checkpoint. Otherwise as `launch_slurm`.

    `loaded`: the run's config with `overrides` of the strategy and the reduction.
    """
    refuse_resumption(run)
    refuse_unfit_jobs(request)
    with held(run):  # hold the lock: no other process may start or submit the run
        refuse_live_jobs(run)
        change(run, loaded, overrides)
        run.clear_marks()
        run.update(**_site_facts(request, settings), ended=None, reason="")
        return _submit(run, request)


def _site_facts(request: Request, settings: JobSettings) -> dict[str, Any]:
    version = slurm.ask("sinfo", "--version").strip()
    asked = dict(settings.asked) | ({"segments": request.segments} if request.segments > 1 else {})
    return {"site": settings.site_name, "state": SUBMITTED, **request.site.price, "slurm": version, "asked": asked}


def _submit(run: Run, request: Request) -> Submitted:
    before = jobs_of(run)
    path = run.path / "job.sh"
    write_whole(path, script(request))
    jobs: list[int] = []
    try:
        start = slurm.estimate(path)
        for _ in range(request.segments):
            jobs.append(
                slurm.submit(path, run.name, jobs[-1] if jobs else None, request.passed, max(before, default=0))
            )
            run.update(jobs=[*before, *jobs])
    except FiretrainError as error:
        reason, now = str(error).partition("\n")[0], SystemClock().date().isoformat()
        run.update(state=SUBMITTED if jobs else FAILED, ended=None if jobs else now, reason=reason)
        if not jobs:
            nothing = "" if isinstance(error, slurm.Unsure) else "nothing was submitted; "
            raise type(error)(f"{error}\n{nothing}the script is in {path}") from None
        raise type(error)(f"{error}\n{len(jobs)} of {request.segments} segments were submitted: {jobs}") from None
    return Submitted(run, tuple(jobs), start)


def launch_command_on_slurm(command: Sequence[str], request: Request, settings: JobSettings, requeue: str) -> Submitted:
    """Submit a command of the user's own and return immediately; otherwise as `launch_slurm`."""
    refuse_unfit_jobs(request)
    world = request.world
    facts: dict[str, Any] = {
        "world": str(world),
        "ranks": world.size,
        "node_of": list(world.node_of),
        "machine": provenance(),
    }
    facts |= {"folder": request.folder, "requeue": requeue, **_site_facts(request, settings)}
    return _submit(prepare(request.run, command, SystemClock().date(), facts), request)


def resume_command_on_slurm(run: Run, request: Request, settings: JobSettings) -> Submitted:
    """Submit a job that runs an interrupted run's command again."""
    refuse_unfit_jobs(request)
    with held(run):  # as for training
        refuse_live_jobs(run)
        run.clear_marks()
        run.update(**_site_facts(request, settings), ended=None, reason="")
        return _submit(run, request)
