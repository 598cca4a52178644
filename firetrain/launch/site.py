"""A site: what is particular to one cluster, written once and used by all its jobs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from firetrain.config.files import read_yaml, user_path
from firetrain.config.load import validate
from firetrain.config.schema import Section
from firetrain.config.shipped import shipped
from firetrain.errors import UserError, unknown

# what Slurm's own names are made of; nothing in them can end a line or begin an option
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@+-]*$")]
Line = Annotated[str, Field(pattern=r"^[^\r\n\x00]+$")]
# lists in YAML
Words = Annotated[tuple[Word, ...], Field(strict=False)]
Modules = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@+/-]*$")], ...], Field(strict=False)
]
Lines = Annotated[tuple[Line, ...], Field(strict=False)]
Ports = Annotated[tuple[int, int], Field(strict=False)]


TIME = re.compile(r"^(?:(\d{1,4})-)?(\d{1,2}):(\d{2}):(\d{2})$")


def seconds(time: str) -> int:
    """A walltime in the one form that cannot be misread, [days-]hours:minutes:seconds; ValueError for all others."""
    found = TIME.match(time)
    if not found or int(found[3]) > 59 or int(found[4]) > 59:
        raise ValueError(
            f"must be [days-]hours:minutes:seconds, for instance 01:30:00 or 1-00:00:00 (got {time!r}; Slurm would "
            "read 90 as minutes and 1:30 as one minute and a half)"
        )
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if total == 0:
        raise ValueError(f"{time} is no limit at all to Slurm; say how long the job may take")
    return total


class Gpus(Section):
    """How GPUs are asked for; one per rank."""

    request: Literal["gpus-per-node", "gres", "none"] = "none"
    type: Word | None = Field(None, description="for instance a100")

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Gpus:
        self.refuse_unless(self.request != "none", ("type",), "request: gpus-per-node or gres")
        return self


class Container(Section):
    """What the ranks run in."""

    runtime: Literal["pyxis", "apptainer"]
    image: Line
    mounts: Lines = ()
    python: Line = Field("python3", description="inside the container; firetrain is installed for it")


class Site(Section):
    """A Slurm cluster. What is null is left to Slurm's own default."""

    description: Line
    verified: bool = Field(False, description="whether firetrain has run there with this file")
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.&|*\[\]()-]*$")] | None = None
    reservation: Word | None = None
    exclude: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*$")] | None = Field(
        None, description="nodes to leave out, as Slurm lists them: node[3-4],node9"
    )
    time: str = Field("01:00:00", description="walltime unless --time is given: [days-]hours:minutes:seconds")
    gpus: Gpus = Field(default_factory=lambda: Gpus.model_validate({}))
    cpus_per_rank: Annotated[int, Field(ge=1, le=4096)] = 1
    memory: Annotated[str, Field(pattern=r"^([0-9]{1,12}[KMGT]?|0)$")] | None = Field(
        None, description="per node, for instance 64G; 0: all of it"
    )
    exclusive: bool = False
    modules: Modules = ()
    setup: Lines = Field((), description="lines of bash, run on the first node before the ranks start")
    container: Container | None = None
    launcher: Literal["srun", "torchrun", "mpirun", "horovodrun"] = "srun"
    mpi: Word | None = Field(None, description="srun --mpi; `srun --mpi=list` tells what there is")
    host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = Field(
        "", description="appended to a node's name to get the host name that other nodes reach it by"
    )
    interface: Word | None = Field(None, description="of the network between nodes, for Gloo and NCCL")
    infiniband: Words = Field((), description="NCCL_IB_HCA, for instance mlx5_0:1")
    ports: Ports = Field((20000, 29999), description="where rank 0 may listen, both included")
    signal_lead_s: Annotated[int, Field(ge=1, le=65535)] = Field(
        120, description="how long before the walltime ranks are told to save; Slurm may do so 60 s earlier"
    )
    max_requeues: Annotated[int, Field(ge=0, le=1000)] = 3
    preflight: bool = Field(True, description="check the nodes of a job before its ranks start")
    poll_every_s: Annotated[float, Field(ge=1, le=86400)] = Field(
        60.0, description="how often the controller may be asked"
    )
    price_per_node_hour: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="in a currency of your choice: reports then tell what reaching a target costs"
    )
    node_local: Lines = Field(
        ("/tmp", "/var/tmp", "/dev/shm", "/run"), description="folders that are not shared between nodes"
    )

    @property
    def price(self) -> dict[str, float]:
        """What a run's record says of it; nothing if there is none."""
        return {} if self.price_per_node_hour is None else {"price_per_node_hour": self.price_per_node_hour}

    @field_validator("time")
    @classmethod
    def _unmistakable(cls, time: str) -> str:
        seconds(time)
        return time

    @model_validator(mode="after")
    def _consistent(self) -> Site:
        first, last = self.ports
        if not 1024 <= first <= last <= 65535:
            raise ValueError(f"ports must be two numbers from 1024 to 65535, the smaller first (got {first}, {last})")
        self.refuse_unless(self.launcher == "srun", ("mpi", "container"), "launcher: srun")
        return self


def sites() -> dict[str, Path]:
    """All sites by name: those that come with firetrain, then the user's own, which win."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "firetrain" / "sites"
    return shipped("firetrain.sites", "slurm/sites") | {path.stem: path for path in sorted(own.glob("*.yaml"))}


def load_site(name: str) -> Site:
    """The site `name`, or that of a file; every mistake in it is told."""
    if os.sep in name or name.endswith((".yaml", ".yml")):
        path = user_path(name)
    else:
        known = sites()
        if name not in known:
            raise UserError(unknown("site", name, known) + "; a file is given as a path: ./my.yaml")
        path = known[name]
    return validate(read_yaml(path), Site)
