"""Refuses what would fail on every rank, before anything is started or submitted."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from firetrain.cluster import World
from firetrain.config import Loaded
from firetrain.config.files import read_beginning
from firetrain.config.names import HOROVOD_HINT, TOPOLOGIES, installed_names
from firetrain.config.sections.data import DataSection
from firetrain.config.sections.model import TORCH_ENDINGS, ModelSection
from firetrain.config.spec import Spec
from firetrain.data.layout import fault_of
from firetrain.errors import UserError
from firetrain.launch.site import Site
from firetrain.limits import MOST_PLANNED_RANKS
from firetrain.records import Run
from firetrain.records.profile import Profile
from firetrain.records.saved import saved_in
from firetrain.strategy.file import bucket_bytes_of
from firetrain.strategy.policy import find_policy
from firetrain.topology import find_topology

# how zip files and pickles begin: torch.save writes one of the two
_SAVED = (b"PK", b"\x80")


def world_of(loaded: Loaded) -> World:
    """The world that a config asks for."""
    cluster = loaded.config.cluster
    return World.even(cluster.nodes, cluster.ranks_per_node)


def expendable_ranks(loaded: Loaded) -> range:
    """The ranks without which the others go on: the workers of parameter servers, if the policy does not need all of them."""
    config, ranks = loaded.config, loaded.config.cluster.ranks
    servers = config.strategy.servers
    if servers is None:
        return range(0)
    policy, _ = find_policy(str(servers.policy), servers.workers(ranks, config.batch.global_size))
    return range(servers.servers, ranks) if policy.goes_on else range(0)


def refuse_what_ranks_would(loaded: Loaded, run: Run | None = None) -> None:
    """UserError if the reduction, the placement or the weights do not fit; a `run` with a checkpoint has its weights there."""
    refuse_unfit_reduction(loaded)
    refuse_unfit_placement(loaded)
    if run is None or not saved_in(run.path / "checkpoints"):
        refuse_unreadable_weights(loaded.config.model)


def refuse_unreadable_weights(model: ModelSection) -> None:
    """UserError if the file of `model.weights` cannot be read, or is that of another model."""
    if model.weights is None:
        return
    path = Path(model.weights)
    if path.suffix in TORCH_ENDINGS:
        if not read_beginning(path, 2).startswith(_SAVED):
            raise UserError(f"model.weights: {path} is no file that torch.save writes")
        return
    from firetrain.coding.file import read  # imported here: it loads numpy

    name = str(read(path).model["name"]).rpartition("/")[2]
    if name != (model.own.without_folder if model.own else model.name):
        raise UserError(f"model.weights: {path} has the weights of {name}, and model.name is {model.name}")


def refuse_unfit_reduction(loaded: Loaded) -> None:
    """UserError if the reduction's parameters do not fit the world, or its profile cannot be read."""
    reduction = loaded.config.reduction
    refuse_unfit(reduction.spec, world_of(loaded))
    if reduction.profile:
        Profile.load(Path(reduction.profile))


def refuse_unfit_placement(loaded: Loaded) -> None:
    """UserError if the strategy is a placement that was searched for something else, or that has too many ranks."""
    strategy, world = loaded.config.strategy, world_of(loaded)
    if not (strategy.is_data_parallel or strategy.servers) and world.size > MOST_PLANNED_RANKS:
        raise UserError(
            f"{strategy.spec}: placements support at most {MOST_PLANNED_RANKS} ranks (got {world.size}): use data-parallel"
        )
    bucket_bytes_of(loaded.config, world)


def refuse_unfit(spec: Spec, world: World) -> None:
    """UserError if `spec` is a topology that does not fit this world, or needs a library that is not installed."""
    if spec.name == "horovod" and find_spec("horovod") is None:
        raise UserError(f"reduction horovod: Horovod is not installed here; {HOROVOD_HINT}")
    if spec.name in installed_names(TOPOLOGIES) and "native" not in dict(spec.parameters).values():
        if world.size > MOST_PLANNED_RANKS:
            raise UserError(
                f"reduction {spec}: plans support at most {MOST_PLANNED_RANKS} ranks (got {world.size}): "
                "use native or horovod"
            )
        find_topology(str(spec))(world)


def refuse_unreadable_data(data: DataSection) -> None:
    """UserError if the image folder does not exist, is empty, cannot be read, or lacks what its dataset consists of."""
    wrong = _fault(data)
    if wrong:
        raise UserError(wrong)


def unseen_data(data: DataSection, site: Site) -> str:
    """What is wrong with the image folder as seen from this host, and whether the nodes are checked; empty if nothing is."""
    checked = (
        "the preflight will check the nodes"
        if site.preflight
        else "the nodes are not checked, because the site sets preflight: false"
    )
    fault = _fault(data)
    return f"on this machine, {fault}; {checked}" if fault else ""


def _fault(data: DataSection) -> str:
    if not data.root:
        return ""
    wrong = fault_of(data.name, Path(data.root))
    return f"data.root: {wrong}; set it with --set data.root=FOLDER" if wrong else ""
