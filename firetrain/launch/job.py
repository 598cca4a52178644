"""A run as a Slurm job: checked, submitted, submitted again to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from firetrain.cluster import SystemClock, World
from firetrain.config import Loaded
from firetrain.config.files import why_unreadable
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.doctor import HOROVOD_HINT
from firetrain.errors import FiretrainError, UserError
from firetrain.launch import slurm
from firetrain.launch.batch import Request, script
from firetrain.launch.fit import refuse_misfits as refuse_job_misfits
from firetrain.launch.resume import jobs_of, refuse_live_jobs, refuse_resumption
from firetrain.launch.site import Site
from firetrain.limits import MOST_PLANNED_RANKS
from firetrain.provenance import provenance
from firetrain.records import FAILED, SUBMITTED, Run
from firetrain.records.file import write_whole
from firetrain.records.lock import held
from firetrain.records.profile import Profile
from firetrain.topology import find_topology


def world_of(loaded: Loaded) -> World:
    """The world that a config asks for."""
    cluster = loaded.config.cluster
    return World.even(cluster.nodes, cluster.ranks_per_node)


def refuse_misfits(loaded: Loaded) -> None:
    """UserError if the reduction's parameters do not fit the world, or its profile cannot be read."""
    reduction = loaded.config.reduction
    refuse_misfit(reduction.spec, world_of(loaded))
    if reduction.profile:
        Profile.load(Path(reduction.profile))


def refuse_misfit(spec: Spec, world: World) -> None:
    """UserError if `spec` is a plan, and cannot be made for this world, or a library that is not here."""
    if spec.name == "horovod" and find_spec("horovod") is None:
        raise UserError(f"reduction horovod: Horovod is not installed here; {HOROVOD_HINT}")
    if spec.name in installed_names(TOPOLOGIES) and "native" not in dict(spec.parameters).values():
        if world.size > MOST_PLANNED_RANKS:
            raise UserError(
                f"reduction {spec}: a plan is written out for at most {MOST_PLANNED_RANKS} ranks, and there are {world.size}; "
                "take native or horovod"
            )
        find_topology(str(spec))(world)


@dataclass(frozen=True)
class Submitted:
    """A run whose jobs are Slurm's now."""

    run: Run
    jobs: tuple[int, ...]
    estimated_start: str


def refuse_unreadable_data(loaded: Loaded) -> None:
    """UserError if the folder of the images is not here, or cannot be read: before anything is started."""
    wrong = data_fault(loaded)
    if wrong:
        raise UserError(wrong)


def data_fault(loaded: Loaded) -> str:
    """What is wrong with the folder of the images, as seen from here; empty if nothing is, or there is none."""
    root = loaded.config.data.root
    wrong = root and why_unreadable(Path(root))
    return f"data.root: {wrong}; point to the images with --set data.root=FOLDER" if wrong else ""


def request_of(
    loaded: Loaded, path: Path, site: Site, given: Mapping[str, str], passed: Sequence[str] = (), segments: int = 1
) -> Request:
    """What a Slurm job of this config asks for, whose run is in the folder `path`."""
    root = loaded.config.data.root
    return Request(
        path, world_of(loaded), site, given, passed=tuple(passed), segments=segments, data=(root,) if root else ()
    )


def new_folder(loaded: Loaded, results: Path) -> Path:
    """Of a run that does not exist yet."""
    return results.absolute() / Run.new_name(loaded, SystemClock().date())


def launch_slurm(loaded: Loaded, request: Request, site_name: str, asked: Mapping[str, Any]) -> Submitted:
    """Submit a new run; returns at once. `asked`: the options of the submission, with which it will go on.

    UserError, with all misfits, before anything exists. If Slurm refuses the script or does not answer, the run's folder is
    kept with the script in it, and the run's state tells.
    """
    refuse_job_misfits(request)
    world = request.world
    facts: dict[str, Any] = {"world": str(world), "ranks": world.size, "machine": provenance()}
    facts |= {**_site_facts(request, site_name), "asked": dict(asked)}
    return _submit(Run.prepare(request.run, loaded, SystemClock().date(), facts), request)


def resume_slurm(run: Run, request: Request, site_name: str, asked: Mapping[str, Any]) -> Submitted:
    """Submit a run that has ended early, to go on from its newest checkpoint; as `launch_slurm`."""
    refuse_resumption(run)
    refuse_job_misfits(request)
    with held(run):  # nobody else submits or starts it meanwhile
        refuse_live_jobs(run)
        for mark in (run.stop_mark, run.cancel_mark):
            mark.unlink(missing_ok=True)
        run.update(**_site_facts(request, site_name), asked=asked, ended=None, reason="")
        return _submit(run, request)


def _site_facts(request: Request, site_name: str) -> dict[str, Any]:
    version = slurm.ask("sinfo", "--version").strip()
    return {"site": site_name, "state": SUBMITTED, **request.site.price, "slurm": version}


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
            raise type(error)(f"{error}\n{nothing}the script is kept in {path}") from None
        raise type(error)(f"{error}\n{len(jobs)} of {request.segments} segments were submitted: {jobs}") from None
    return Submitted(run, tuple(jobs), start)
