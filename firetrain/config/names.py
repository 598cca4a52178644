"""Names of topologies, reductions, strategies and policies, which installed packages provide as entry points."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from firetrain.config.files import exists, is_file, user_path
from firetrain.config.spec import Spec, parameters_of, parse_list
from firetrain.errors import UserError, unknown
from firetrain.limits import MOST_RANKS
from firetrain.words import counted

TOPOLOGIES = "firetrain.topologies"
REDUCTIONS = "firetrain.reductions"
STRATEGIES = "firetrain.strategies"
POLICIES = "firetrain.policies"
MODELS, DATASETS = "firetrain.models", "firetrain.datasets"
# the strategy that is searched when training starts
AUTO_STRATEGY = "auto"
# the strategy whose weights belong to servers: no placement of the model on ranks
PARAMETER_SERVER = "parameter-server"
_KINDS = {
    TOPOLOGIES: "topology",
    REDUCTIONS: "reduction",
    STRATEGIES: "strategy",
    POLICIES: "policy",
    MODELS: "model",
    DATASETS: "data",
}
# optimisers whose updates do not depend on the length of a gradient
STALENESS_CANCELS = ("lars", "lamb")
# advice for when the reduction horovod is selected but not installed
HOROVOD_HINT = "build it with `make horovod`, or `python -m firetrain.horovod_wheel` where there is no checkout"


def installed_names(group: str) -> tuple[str, ...]:
    """The names in a group of entry points; nothing is imported."""
    return tuple(sorted({point.name for point in _installed(group)}))


def entry_point(group: str, name: str) -> EntryPoint:
    """The entry point of this name; UserError if no package provides it, or more than one."""
    points = [point for point in _installed(group) if point.name == name]
    if not points:
        raise UserError(unknown(_KINDS[group], name, installed_names(group)))
    if len(points) > 1:
        packages = " and ".join(sorted(map(package_of, points)))
        raise UserError(f"{_KINDS[group]} {name} comes from several packages, {packages}: uninstall all but one")
    return points[0]


@cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def load_entry_point(group: str, name: str) -> Callable[..., Any]:
    """The function of an entry point; UserError, which names the package, if it cannot be imported."""
    point = entry_point(group, name)
    try:
        function: Callable[..., Any] = point.load()
    except Exception as error:  # importing runs code of other packages, which may raise anything
        package = package_of(point)
        raise UserError(
            f"{_KINDS[group]} {name} cannot be loaded from {point.value}, {type(error).__name__}: {error}; "
            f"reinstall or uninstall the package that provides it, {package}"
        ) from error
    return function


def package_of(point: EntryPoint) -> str:
    """The name of the package that provides an entry point."""
    return point.dist.name if point.dist else "unknown"


def reduction_names() -> tuple[str, ...]:
    """Every valid `reduction.name`: the topologies (run as plans) and the libraries' own reductions."""
    return tuple(sorted({*installed_names(TOPOLOGIES), *installed_names(REDUCTIONS)}))


def is_placement_file(strategy: str) -> bool:
    """Whether the name of a strategy is that of a placement file."""
    return strategy.endswith((".yaml", ".yml"))


def check_strategy(spec: Spec) -> None:
    """UserError unless a strategy of this name has these parameters. Whether it suits a model and a world is not checked here."""
    if is_placement_file(spec.name):  # which is read with the model at hand
        if spec.parameters:
            raise UserError(f"{spec.name}: a placement file has no parameters")
        if not is_file(user_path(spec.name)):
            raise UserError(f"no file {spec.name}")
    elif spec.name == AUTO_STRATEGY:
        if [key for key, _ in spec.parameters] != ["profile"]:
            raise UserError(
                f"strategy {spec}: the placement is searched by the costs of a measured profile, and nothing else can be given: "
                "strategy.parameters.profile=FILE"
            )
    elif spec.name == PARAMETER_SERVER:
        check_policy(ParameterServer.of(spec).policy)
    elif spec.name not in (names := installed_names(STRATEGIES)):
        if exists(user_path(spec.name)):
            raise UserError(f"strategy {spec.name}: the name of a placement file must end in .yaml or .yml")
        raise UserError(unknown("strategy", spec.name, [*names, AUTO_STRATEGY, PARAMETER_SERVER]))
    elif spec.parameters:
        spec.arguments(load_entry_point(STRATEGIES, spec.name), given=2)


class ParameterServer(NamedTuple):
    """What the strategy `parameter-server:policy=NAME,servers=K,...` says; further parameters are those of the policy."""

    policy: Spec
    servers: int

    @classmethod
    def of(cls, spec: Spec) -> ParameterServer:
        """What `spec` says; UserError if `servers` is not a number above 0."""
        parameters = dict(spec.parameters)
        policy, servers = parameters.pop("policy", "sync"), parameters.pop("servers", "1")
        if not servers.isdecimal() or not 1 <= int(servers) <= MOST_RANKS:
            raise UserError(f"{spec.name}: servers is {servers!r}, expected a whole number, 1 or more")
        return cls(Spec(policy, tuple(parameters.items())), int(servers))

    def workers(self, ranks: int, batch: int) -> int:
        """The number of ranks that are no servers; UserError if they do not suit the policy, or a batch of `batch` images."""
        workers = ranks - self.servers
        if workers < 1:
            raise UserError(
                f"{PARAMETER_SERVER}: {counted(ranks, 'rank')}, of which {self.servers} own the weights: none is left to train; "
                "raise cluster.nodes or cluster.ranks_per_node"
            )
        if batch < workers:
            raise UserError(
                f"{PARAMETER_SERVER}: {counted(workers, 'worker')} share a batch of {batch} images: give each at least one"
            )
        make_policy(self.policy, workers)
        return workers


def rate_without_effect(optimizer: str) -> str:
    """Why the staleness-aware rate of a policy means nothing under an optimiser of STALENESS_CANCELS."""
    return f"rate=staleness divides gradients by their staleness, which {optimizer} cancels by dividing by their norm: use sgd"


def check_policy(spec: Spec) -> tuple[Callable[..., Any], dict[str, Any], bool]:
    """(function of the workers' number, further arguments, whether the rate is staleness-aware) of a policy.

    UserError unless a policy of this name has these parameters. Whether they suit a number of workers is not checked here.
    """
    parameters = dict(spec.parameters)
    if (rate := parameters.pop("rate", None)) not in (None, "staleness"):
        raise UserError(f"{spec}: rate is {rate!r}, expected staleness, or nothing")
    function = load_entry_point(POLICIES, spec.name)
    arguments = Spec(spec.name, tuple(parameters.items())).arguments(function)
    for key, parameter in parameters_of(function).items():
        if key not in arguments and parameter.default is parameter.empty:
            raise UserError(f"{spec.name}: give its {key}, for instance {spec.name}:{key}=1")
    return function, arguments, rate is not None


def make_policy(spec: Spec, workers: int) -> tuple[Any, bool]:
    """The policy of some workers, and whether its rate is staleness-aware; UserError if it does not suit them."""
    function, arguments, aware = check_policy(spec)
    policy = function(workers, **arguments)
    if aware and policy.local_steps:
        raise UserError(f"{spec}: averaged weights are never stale, so that rate=staleness would do nothing: omit it")
    return policy, aware


def parse_strategies(text: str) -> list[Spec]:
    """The strategies of a list; UserError if the list is wrong or check_strategy refuses one."""
    specs = parse_list(text)
    for spec in specs:
        check_strategy(spec)
    return specs


def check_reduction(spec: Spec) -> None:
    """UserError unless a reduction of this name has these parameters. Whether their values fit a world is not checked here."""
    if spec.name not in reduction_names():
        raise UserError(unknown("reduction", spec.name, reduction_names()))
    group = REDUCTIONS if spec.name in installed_names(REDUCTIONS) else TOPOLOGIES
    if spec.parameters:
        spec.arguments(load_entry_point(group, spec.name))
    else:
        entry_point(group, spec.name)
