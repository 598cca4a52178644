"""A site: the settings of one Slurm cluster, shared by all jobs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from firetrain.config.files import read_yaml, user_path
from firetrain.config.sections.section import Section
from firetrain.config.shipped import shipped
from firetrain.config.validation import validate
from firetrain.errors import UserError, unknown

# the characters of names in Slurm; none of them can end a line or begin an option
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@+-]*$")]
TextLine = Annotated[str, Field(pattern=r"^[^\r\n\x00]+$")]
# lists in YAML
Words = Annotated[tuple[Word, ...], Field(strict=False)]
Modules = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@+/-]*$")], ...], Field(strict=False)
]
TextLines = Annotated[tuple[TextLine, ...], Field(strict=False)]
Ports = Annotated[tuple[int, int], Field(strict=False)]


TIME = re.compile(r"^(?:(\d{1,4})-)?(\d{1,2}):(\d{2}):(\d{2})$")


def seconds(time: str) -> int:
    """The seconds of a walltime [days-]hours:minutes:seconds; ValueError for other forms, which are ambiguous."""
    found = TIME.match(time)
    if not found or int(found[3]) > 59 or int(found[4]) > 59:
        raise ValueError(
            f"must be [days-]hours:minutes:seconds, for instance 01:30:00 or 1-00:00:00 (got {time!r}; Slurm would "
            "read 90 as 90 minutes and 1:30 as 90 seconds)"
        )
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if total == 0:
        raise ValueError(f"{time} means no limit to Slurm: give a time limit")
    return total


class Gpus(Section):
    """How a job requests its GPUs, one for each rank."""

    request: Literal["gpus-per-node", "gres", "none"] = "none"
    type: Word | None = Field(None, description="for instance a100")

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Gpus:
        self.refuse_unless(self.request != "none", ("type",), "request: gpus-per-node or gres")
        return self


class Container(Section):
    """The container in which ranks run."""

    runtime: Literal["pyxis", "apptainer"]
    image: TextLine
    mounts: TextLines = ()
    python: TextLine = Field("python3", description="Python inside the container, with firetrain installed")


class Site(Section):
    """A Slurm cluster. For settings that are null, Slurm's own default applies."""

    description: TextLine
    verified: bool = Field(False, description="whether firetrain has run there with this file")
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.&|*\[\]()-]*$")] | None = None
    reservation: Word | None = None
    exclude: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*$")] | None = Field(
        None, description="nodes to exclude, as Slurm lists them: node[3-4],node9"
    )
    time: str = Field("01:00:00", description="walltime unless --time is given: [days-]hours:minutes:seconds")
    gpus: Gpus = Field(default_factory=lambda: Gpus.model_validate({}))
    cpus_per_rank: Annotated[int, Field(ge=1, le=4096)] = 1
    memory: Annotated[str, Field(pattern=r"^([0-9]{1,12}[KMGT]?|0)$")] | None = Field(
        None, description="per node, for instance 64G; 0: all of it"
    )
    exclusive: bool = False
    modules: Modules = ()
    setup: TextLines = Field((), description="lines of bash, run on the first node before the ranks start")
    container: Container | None = None
    launcher: Literal["srun", "torchrun", "mpirun", "horovodrun"] = "srun"
    mpi: Word | None = Field(None, description="value of srun --mpi; `srun --mpi=list` shows the choices")
    host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = Field(
        "", description="appended to a node's name to get the host name that other nodes reach it by"
    )
    interface: Word | None = Field(None, description="network interface between nodes, for Gloo and NCCL")
    infiniband: Words = Field((), description="NCCL_IB_HCA, for instance mlx5_0:1")
    ports: Ports = Field((20000, 29999), description="range in which rank 0 may listen, both ends included")
    signal_lead_s: Annotated[int, Field(ge=1, le=65535)] = Field(
        120,
        description="seconds before the walltime at which ranks are asked to save; Slurm may do so up to 60 s earlier",
    )
    max_requeues: Annotated[int, Field(ge=0, le=1000)] = 3
    preflight: bool = Field(True, description="check the nodes of a job before its ranks start")
    poll_every_s: Annotated[float, Field(ge=1, le=86400)] = Field(
        60.0, description="shortest interval between queries of the Slurm controller"
    )
    price_per_node_hour: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="price in any currency; reports then show the cost of reaching the target"
    )
    node_local: TextLines = Field(
        ("/tmp", "/var/tmp", "/dev/shm", "/run"), description="folders that are not shared between nodes"
    )

    @property
    def price(self) -> dict[str, float]:
        """The price for a run's record; empty if there is none."""
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
    """All sites by name: the shipped ones, and the user's own, which override them."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "firetrain" / "sites"
    return shipped("firetrain.sites", "slurm/sites") | {path.stem: path for path in sorted(own.glob("*.yaml"))}


def is_path(name: str) -> bool:
    """Whether `name` is a path instead of a site's name."""
    return os.sep in name or name.endswith((".yaml", ".yml"))


def load_site(name: str) -> Site:
    """The site with this name or path; UserError lists every mistake in it."""
    if is_path(name):
        path = user_path(name)
    else:
        known = sites()
        if name not in known:
            raise UserError(unknown("site", name, known) + "; a file is given as a path: ./my.yaml")
        path = known[name]
    return validate(read_yaml(path), Site)
