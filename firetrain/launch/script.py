"""The batch script of a run: a pure function of a request."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from firetrain import __version__
from firetrain.cluster import World
from firetrain.launch.site import Site
from firetrain.launch.verdict import ENDED_IN_TIME
from firetrain.records import Run
from firetrain.records.script_steps import REDUCTION, RUN, TRIAL_STEPS

# before the walltime, the ranks of a command that goes on are ended
_TO_END_S = 30
_PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./&|*\[\]()-]*$")


@dataclass(frozen=True)
class Request:
    """The request for a job: the run's folder, the world, the site with its defaults filled in, and the user's variables.

    `passed`: names of variables whose values come from the submitter's environment.
    `data`: datasets, each with the folder from which ranks read it.
    `code`: folders of the user's own model and data.
    `segments`: number of jobs in a chain; if there are several, none requeues itself.
    `trials`: run the trials of a comparison's allocation; ranks are restarted until no trial is left.
    `name`: name of the job; default: that of the run.
    `expendable`: ranks without which the others go on, up to the last one; srun's wrapper starts them again if they die.
    `command`, `folder`: a command of the user's own, and where it is run. `may_requeue`: whether Slurm may run the job again.
    """

    run: Path
    world: World
    site: Site
    variables: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    segments: int = 1
    python: str = sys.executable
    trials: bool = False
    name: str = ""
    expendable: range = range(0)
    command: tuple[str, ...] = ()
    folder: str = ""
    may_requeue: bool = True
    code: tuple[str, ...] = ()

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on every node."""
        return len(self.world.nodes[0])

    @property
    def tasks_per_node(self) -> int:
        """The number of Slurm tasks on every node: one per rank, or one agent for torchrun."""
        return 1 if self.site.launcher == "torchrun" else self.ranks_per_node

    @property
    def cpus_per_task(self) -> int:
        """The number of CPUs of each Slurm task."""
        return self.site.cpus_per_rank * self.ranks_per_node // self.tasks_per_node


def script(request: Request) -> str:
    """The text of job.sh. Every value is quoted, and the header precedes the first command."""
    environment = Environment(
        loader=PackageLoader("firetrain.launch", "."), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#", comment_end_string="#>",  # jinja2's comment marks would read bash's ${#array[@]} as a comment
    )  # fmt: skip
    environment.filters |= {"quote": shlex.quote, "literal": _literal}
    return environment.get_template("job.sh.j2").render(
        version=__version__,
        site=request.site,
        run=str(request.run),
        python=request.python,
        directives=directives(request),
        exports=exports(request),
        start=start(request),
        cpus_per_task=request.cpus_per_task,
        slots=request.ranks_per_node,
        tasks=len(request.world.nodes) * request.tasks_per_node,
        max_requeues=request.site.max_requeues if requeues(request) else 0,
        preflight=preflight(request) if request.site.preflight else "",
        expendable_from=request.expendable.start if _revives(request) else None,
        ranks=request.world.size if request.command and request.site.launcher != "torchrun" else None,
        folder=request.folder if request.command else None,
        patience_s=request.site.signal_lead_s - min(_TO_END_S, request.site.signal_lead_s // 2),
        ended_in_time=ENDED_IN_TIME,
    )


def _revives(request: Request) -> bool:
    """Whether ranks that die are started again: the other launchers end all ranks when one dies."""
    return bool(request.expendable) and request.site.launcher == "srun"


def requeues(request: Request) -> bool:
    """Whether the job may requeue itself; a comparison is resumed with its own command."""
    return request.may_requeue and request.segments == 1 and not request.trials


def directives(request: Request) -> list[tuple[str, str | None]]:
    """The sbatch options of the header, in order; None for an option without a value."""
    site, gpus = request.site, request.ranks_per_node
    kind = f"{site.gpus.type}:{gpus}" if site.gpus.type else str(gpus)
    asked: list[tuple[str, str | None]] = [
        ("job-name", request.name or request.run.name),
        ("nodes", str(len(request.world.nodes))),
        ("ntasks-per-node", str(request.tasks_per_node)),
        ("cpus-per-task", str(request.cpus_per_task)),
        ("time", site.time),
    ]
    for key in ("partition", "account", "qos", "constraint", "reservation", "exclude"):
        asked += [(key, getattr(site, key))] if getattr(site, key) else []
    if site.gpus.request == "gpus-per-node":
        asked.append(("gpus-per-node", kind))
    elif site.gpus.request == "gres":
        asked.append(("gres", f"gpu:{kind}"))
    asked += [("mem", site.memory)] if site.memory else []
    asked += [("exclusive", None)] if site.exclusive else []
    log = str(request.run).replace("%", "%%") + "/job-%j.log"
    asked += [
        ("signal", f"B:USR1@{site.signal_lead_s}"),
        ("requeue" if site.max_requeues and requeues(request) else "no-requeue", None),
        ("open-mode", "append"),
        ("output", log),
    ]
    return [(key, value if value is None else _directive(value)) for key, value in asked]


def exports(request: Request) -> list[tuple[str, str]]:
    """The environment variables of the ranks; the user's override the others."""
    site = request.site
    found = {"OMP_NUM_THREADS": str(site.cpus_per_rank), "PYTHONUNBUFFERED": "1"}
    if request.command:  # a script imports the files beside it
        found |= {RUN: str(request.run), "FIRETRAIN_STOP": str(Run(request.run).stop_mark)}
    else:
        found["PYTHONSAFEPATH"] = "1"
    if site.interface:
        found |= {"GLOO_SOCKET_IFNAME": site.interface, "NCCL_SOCKET_IFNAME": f"={site.interface}"}
    if site.infiniband:
        found["NCCL_IB_HCA"] = "=" + ",".join(site.infiniband)
    return list((found | dict(request.variables)).items())


def srun_options(request: Request, ending: tuple[str, ...] = ("--kill-on-bad-exit=1", "--wait=60")) -> str:
    """The options of srun, quoted for the script; `ending`: those for the other tasks when one ends."""
    options = [
        *ending,
        "--distribution=block",
        f"--cpus-per-task={request.cpus_per_task}",
    ]
    options += [f"--mpi={request.site.mpi}"] if request.site.mpi else []
    box = request.site.container
    if box and box.runtime == "pyxis":
        mounts = [*box.mounts, *(f"{folder}:{folder}" for folder in _folders(request))]
        options += [f"--container-image={box.image}", f"--container-mounts={','.join(mounts)}"]
    return shlex.join(options)


def preflight(request: Request) -> str:
    """The command that checks the nodes, quoted for the script."""
    site = request.site
    check = [*rank_python(request), "-m", "firetrain", "preflight", "--seconds", "60", "--expect-version", __version__]
    check += ["--gpus", str(request.ranks_per_node)] if site.gpus.request != "none" else []
    check += ["--interface", site.interface] if site.interface else []
    check += [part for name, root in request.data for part in ("--dataset", name, root)]
    # srun must not kill the other tasks: every node reports its problems
    options = srun_options(request, ("--kill-on-bad-exit=0", "--wait=15"))
    return f"srun {options} \\\n  {shlex.join(check)}"


def rank_python(request: Request) -> list[str]:
    """The command that runs Python in a rank: the user's Python, or the container's."""
    box = request.site.container
    return [*_in_container(request), box.python if box else request.python]


def _in_container(request: Request) -> list[str]:
    """The beginning of a command that runs in the site's container; empty if srun puts it there, or if there is none."""
    box = request.site.container
    if box is None or box.runtime == "pyxis":
        return []
    mounts = [part for mount in (*box.mounts, *_folders(request)) for part in ("--bind", mount)]
    return ["apptainer", "exec", "--nv", *mounts, *(["--pwd", request.folder] if request.command else []), box.image]


def _folders(request: Request) -> list[str]:
    """The folders that the container's ranks need besides those that the site mounts."""
    return list(dict.fromkeys([str(request.run), *([request.folder] if request.command else []), *request.code]))


def start(request: Request) -> str:
    """The command that starts all ranks, quoted for the script."""
    launcher = request.site.launcher
    python = [*rank_python(request), "-m"]
    wrapper = shlex.join(["bash", str(request.run / "job.sh"), "rank"])
    command = ["train", str(request.run / "config.yaml"), "--into", str(request.run)]
    train = shlex.join(["firetrain", *(["trials", str(request.run)] if request.trials else command)])
    own = [*_in_container(request), *request.command] if request.command else []
    ranks = shlex.join(own) or f"{shlex.join(python)} {train}"
    if launcher == "mpirun":
        parts = [_mpirun(request), wrapper, ranks]
    elif launcher == "horovodrun":
        parts = [_horovodrun(request), wrapper, ranks]
    elif launcher == "torchrun":
        agent = ["torch.distributed.run", f"--nnodes={len(request.world.nodes)}"]
        agent += [f"--nproc-per-node={request.ranks_per_node}", "--rdzv-backend=c10d"]
        meeting = '--rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
        what = f"--no-python {ranks}" if request.command else f"-m {train}"
        parts = [f"srun {srun_options(request)}", wrapper, shlex.join([*python, *agent]), meeting, what]
    else:
        alone = ("--kill-on-bad-exit=0", "--wait=0") if _revives(request) else ("--kill-on-bad-exit=1", "--wait=60")
        parts = [f"srun {srun_options(request, alone)}", wrapper, ranks]
    if request.trials:
        parts.insert(0, shlex.join([request.python, "-m", "firetrain.launch.allocation", str(request.run), "--"]))
    return " \\\n  ".join(parts)


def _mpirun(request: Request) -> str:
    forwarded = [*(name for name, _ in exports(request)), *request.passed]
    forwarded += ["MASTER_ADDR", "MASTER_PORT", "FIRETRAIN_ATTEMPT", "FIRETRAIN_ATTEMPT_BEGAN"]
    forwarded += [REDUCTION, TRIAL_STEPS] if request.command and request.trials else []
    flags = [part for name in forwarded for part in ("-x", name)]
    options = ["-np", str(request.world.size), "--map-by", f"ppr:{request.ranks_per_node}:node", "--bind-to", "none"]
    return shlex.join(["mpirun", *options, *flags])


def _horovodrun(request: Request) -> str:
    """horovodrun on the hosts of the allocation; it reaches them by srun instead of ssh (see the template)."""
    command = [*rank_python(request), "-m", "horovod.runner.launch", "--gloo", "-np", str(request.world.size)]
    command += ["--network-interfaces", request.site.interface] if request.site.interface else []
    return f'PATH="$FIRETRAIN_ATTEMPT/bin:$PATH" {shlex.join(command)} -H "$slots"'


def _literal(value: str) -> str:
    """Always quote the text: `NAME==eth0`, with NCCL's exact-match syntax, would be valid but look like an error."""
    return "'" + value.replace("'", "'\"'\"'") + "'"


def _directive(value: str) -> str:
    """The value of a header line, with double quotes and backslashes as sbatch reads them, if needed."""
    if _PLAIN.match(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
