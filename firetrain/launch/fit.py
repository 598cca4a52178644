"""Check jobs against the cluster; all problems are reported together, before anything is submitted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from firetrain.config.names import HOROVOD_HINT
from firetrain.errors import UserError, unknown
from firetrain.launch.script import Request
from firetrain.launch.site import TIME, seconds
from firetrain.launch.slurm import records
from firetrain.words import counted

_UNITS = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0**2}
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
# what launchers set for each rank, or for the whole job
_OF_LAUNCHERS = re.compile(
    r"(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|(GROUP|NODE)_RANK|MASTER_(ADDR|PORT)"
    r"|FIRETRAIN_(RUN|STOP|ATTEMPT.*|RANK|WORLD_SIZE|LOCAL_.*|NODE|RENDEZVOUS.*)"
    r"|SLURM_(PROCID|NTASKS|LOCALID|NODEID|RESTART_COUNT|JOB_.*)|(HOROVOD|OMPI_COMM_WORLD|PMIX?)_(.*_)?(RANK|SIZE)"
)


def refuse_unfit_jobs(*requests: Request) -> None:
    """UserError with all reasons why this cluster would not run these jobs, each once."""
    problems = dict.fromkeys(text for request in requests for text in (*_run_folder(request), *_shape(request)))
    if problems:
        raise UserError("\n".join(problems))


def variables(pairs: tuple[str, ...], passed: tuple[str, ...]) -> dict[str, str]:
    """`--env K=V` as a mapping; UserError lists those that are malformed, look like secrets, or are not set here."""
    found, wrong = {}, []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            wrong.append(f"--env {pair!r}: expected NAME=VALUE, NAME of letters, digits and _")
        elif _SECRET.search(name):
            wrong.append(f"--env {name}: looks like a secret, but would be written to job.sh; use --pass-env {name}")
        elif _OF_LAUNCHERS.fullmatch(name):
            wrong.append(f"--env {name}: the launcher sets it")
        elif "\n" in value or "\0" in value:
            wrong.append(f"--env {name}: the value contains a newline or NUL, which not every launcher can pass on")
        else:
            found[name] = value
    wrong += [f"--pass-env {name}: not set here" for name in passed if name not in os.environ]
    wrong += [f"--pass-env {name} and --env {name}: give only one of them" for name in passed if name in found]
    if wrong:
        raise UserError("\n".join(wrong))
    return found


def _run_folder(request: Request) -> Iterator[str]:
    folder = request.run.parent
    if re.search(r"[\n\r\0]", str(folder)):
        yield f"the path of the results folder contains a newline, which Slurm does not accept: {str(folder)!r}"
    for local in request.site.node_local:
        if Path(local) in (folder, *folder.parents):
            yield f"{folder} is on {local}, which the site lists as local to each node; choose a shared folder with --results"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        yield f"cannot write to {existing}; choose another folder with --results"


def _shape(request: Request) -> Iterator[str]:
    """Problems with the partitions and nodes that scontrol shows."""
    if request.site.launcher == "horovodrun" and find_spec("horovod") is None:
        yield f"launcher horovodrun: Horovod is not installed here; {HOROVOD_HINT}"
    site, nodes = request.site, len(request.world.nodes)
    partitions = {row.get("PartitionName", ""): row for row in records("partition")}
    default = next((name for name, row in partitions.items() if row.get("Default") == "YES"), None)
    name = site.partition or default
    if name is None:
        yield f"this cluster has no default partition; choose one with --partition ({', '.join(sorted(partitions))})"
        return
    if name not in partitions:
        yield unknown("partition", name, partitions)
        return
    partition = partitions[name]
    if partition.get("State", "UP") != "UP":
        yield f"partition {name} is {partition['State']}: jobs in it do not start"
    limit = partition.get("MaxTime", "UNLIMITED")
    if TIME.match(limit) and seconds(site.time) > seconds(limit):
        yield f"--time {site.time} exceeds the limit {limit} of partition {name}: the job would never start"
    if str(partition.get("MaxNodes", "UNLIMITED")).isdigit() and nodes > int(partition["MaxNodes"]):
        yield f"{counted(nodes, 'node')} exceed the limit {partition['MaxNodes']} of partition {name}"
    for key, allow in (("account", "AllowAccounts"), ("qos", "AllowQos")):
        allowed, value = partition.get(allow, "ALL"), getattr(site, key)
        if value and allowed != "ALL" and value not in allowed.split(","):
            yield unknown(f"{key} for partition {name}", value, allowed.split(","))
    yield from _nodes(request, name)


def _nodes(request: Request, partition: str) -> Iterator[str]:
    site, wanted = request.site, len(request.world.nodes)
    members = [row for row in records("node") if partition in row.get("Partitions", "").split(",")]
    if wanted > len(members):
        yield f"{counted(wanted, 'node')} requested, but partition {partition} has {len(members)}"
        return
    features = {feature for row in members for feature in re.split(r"[,()]", row.get("AvailableFeatures", ""))} - {
        "",
        "null",
    }
    if site.constraint and re.fullmatch(r"[A-Za-z0-9_.-]+", site.constraint) and site.constraint not in features:
        yield unknown(f"constraint in partition {partition}", site.constraint, features)
    cpus = request.tasks_per_node * request.cpus_per_task
    gpus = request.ranks_per_node if site.gpus.request != "none" else 0
    memory = _mib(site.memory) if site.memory else 0
    needs = (
        (
            "processors",
            cpus,
            lambda row: int(row.get("CPUTot", 0)),
            "lower --ranks-per-node or the site's cpus_per_rank",
        ),
        ("GPUs", gpus, _gpus, "lower --ranks-per-node, or set the site's gpus.request to none"),
        ("MiB of memory", memory, lambda row: int(row.get("RealMemory", 0)), "lower the site's memory"),
    )
    for what, count, has, remedy in needs:
        most = sorted(map(has, members), reverse=True)
        if count > most[wanted - 1]:
            yield (
                f"{count} {what} per node requested; in partition {partition} only {sum(n >= count for n in most)} of the "
                f"{wanted} nodes needed have that many (maximum {most[0]}): {remedy}"
            )
    idle = [row for row in members if not re.search(r"DOWN|DRAIN|FAIL", row.get("State", ""))]
    if wanted > len(idle):
        down = len(members) - len(idle)
        yield f"{counted(wanted, 'node')} requested; {down} of partition {partition}'s {len(members)} are down or drained"


def _gpus(row: dict[str, str]) -> int:
    return sum(int(count) for count in re.findall(r"gpu(?::[\w.-]+)?:(\d+)", row.get("Gres", "")))


def _mib(memory: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)", memory).groups()  # type: ignore[union-attr]
    return int(int(number) * _UNITS[unit])
