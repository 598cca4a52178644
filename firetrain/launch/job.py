"""A run from its config to its end: create the record, start the ranks, write down how it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from firetrain.cluster import SystemClock, World
from firetrain.config import Loaded
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.doctor import HOROVOD_HINT
from firetrain.errors import FiretrainError, UserError
from firetrain.launch import slurm
from firetrain.launch.batch import Request, script
from firetrain.launch.fit import refuse_misfits as refuse_job_misfits
from firetrain.launch.local import Cancelled, run_ranks
from firetrain.launch.progress import progress
from firetrain.launch.site import Site
from firetrain.provenance import provenance
from firetrain.records import CANCELLED, FAILED, SUBMITTED, Run
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
        find_topology(str(spec))(world)


@dataclass(frozen=True)
class Submitted:
    """A run whose jobs are Slurm's now."""

    run: Run
    jobs: tuple[int, ...]
    estimated_start: str


def request_of(loaded: Loaded, results: Path, site: Site, given: Mapping[str, str], segments: int) -> Request:
    """What a Slurm job of this config asks for; its run's folder has a name but does not exist yet."""
    path = results.absolute() / Run.new_name(loaded, SystemClock().date())
    return Request(path, world_of(loaded), site, given, segments)


def launch_slurm(loaded: Loaded, request: Request, site_name: str) -> Submitted:
    """Submit; returns at once.

    UserError, with all misfits, before anything exists. If Slurm refuses the script or does not answer, the run's folder is
    kept with the script in it, and the run's state tells.
    """
    refuse_job_misfits(request)
    text = script(request)
    created = SystemClock().date()
    world = request.world
    facts: dict[str, Any] = {"world": str(world), "ranks": world.size, "machine": provenance()}
    facts |= {"site": site_name, "state": SUBMITTED, **request.site.price}
    facts["slurm"] = slurm.ask("sinfo", "--version").strip()
    run = Run.prepare(request.run, loaded, created, facts)
    path = run.path / "job.sh"
    path.write_text(text)
    jobs: list[int] = []
    try:
        start = slurm.estimate(path)
        for _ in range(request.segments):
            jobs.append(slurm.submit(path, run.name, jobs[-1] if jobs else None))
            run.update(jobs=jobs)
    except FiretrainError as error:
        reason = str(error).partition("\n")[0]
        run.update(state=SUBMITTED if jobs else FAILED, ended=None if jobs else created.isoformat(), reason=reason)
        if not jobs:
            nothing = "" if isinstance(error, slurm.Unsure) else "nothing was submitted; "
            raise type(error)(f"{error}\n{nothing}the script is kept in {path}") from None
        raise type(error)(f"{error}\n{len(jobs)} of {request.segments} segments were submitted: {jobs}") from None
    return Submitted(run, tuple(jobs), start)


def launch_local(loaded: Loaded, results: Path, console: Console) -> Run:
    """Train on this machine and wait for the end; several nodes are emulated.

    Rank 0 writes down how it ended, this process how it was ended: the run's record tells its state in every case. RankFailed
    or Cancelled if it did not end by itself.
    """
    world = world_of(loaded)
    clock = SystemClock()
    run = Run.create(results, loaded, clock.date(), {"world": str(world), "ranks": world.size, "machine": provenance()})
    console.print(f"run {run.path}", highlight=False, markup=False, soft_wrap=True)
    emulated = ", nodes emulated on this machine" if len(world.nodes) > 1 else ""
    logs = run.logs.relative_to(run.path)
    console.print(f"{world}{emulated}; logs in {logs}", highlight=False, markup=False, soft_wrap=True)
    view = progress(run, loaded.config, console)
    try:
        run_ranks(["train", str(run.config_path), "--into", str(run.path)], world, run.attempt, view.tick)
    except FiretrainError as error:
        state = CANCELLED if isinstance(error, Cancelled) else FAILED
        facts = run.facts()
        reason = str(error).partition("\n")[0]
        # a run that diverged ends on all ranks at once: rank 0 has told why
        if state == facts["state"] == FAILED and facts.get("reason", "").startswith("diverged"):
            reason = facts["reason"]
        run.update(state=state, ended=clock.date().isoformat(), reason=reason)
        raise
    finally:
        view.close()
    return run
