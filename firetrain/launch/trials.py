"""The trials of a comparison, grouped into allocations: those that run on the same nodes."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from firetrain.cluster import World
from firetrain.config import Loaded, load_config
from firetrain.config.comparison import Comparison
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.config.spec import Spec
from firetrain.launch.refusals import refuse_unfit, refuse_unreadable_weights

_ALONE = "one rank"


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: a config, or an arm of it, with one strategy and one reduction.

    `loaded`: the config; None if the comparison is one of a command of the user's own.
    """

    path: Path
    loaded: Loaded | None
    arm: str
    strategy: str
    reduction: str
    repeat: int


@dataclass(frozen=True)
class Allocation:
    """The trials that run on the same nodes, one after another."""

    path: Path
    world: World
    trials: tuple[Trial, ...]

    @property
    def configs(self) -> list[Loaded]:
        """The configs of the trials; empty if they run a command."""
        return [trial.loaded for trial in self.trials if trial.loaded]


def allocations_of(comparison: Comparison, folder: Path) -> list[Allocation]:
    """The allocations in the order in which they run; trials are shuffled within a repeat, with a fixed seed.

    If one node with several ranks is measured, one rank alone is added, as the baseline of efficiencies, but not for commands,
    whose images are not known. UserError if a config is wrong, its weights cannot be read, or a reduction does not fit a world.
    """
    worlds = list(product(comparison.nodes, comparison.ranks_per_node))
    if 1 in comparison.nodes and 1 not in comparison.ranks_per_node and not comparison.command:
        worlds.insert(0, (1, 1))
    allocations = [_allocation(comparison, folder, *shape) for shape in worlds]
    models = [loaded.config.model for allocation in allocations for loaded in allocation.configs]
    for model in {(model.name, model.weights): model for model in models}.values():
        refuse_unreadable_weights(model)
    return allocations


def _allocation(comparison: Comparison, folder: Path, nodes: int, ranks_per_node: int) -> Allocation:
    world, path = World.even(nodes, ranks_per_node), folder / f"{nodes}x{ranks_per_node}"
    strategies = comparison.strategies if world.size > 1 else (DATA_PARALLEL,)
    reductions = comparison.reductions if world.size > 1 else (_ALONE,)
    for reduction in reductions if world.size > 1 else ():
        refuse_unfit(Spec.parse(reduction), world)
    seed = None  # of the first repeat, if trials run to a target
    if comparison.configs and comparison.steps is None:
        seed = load_config(comparison.configs[0], comparison.overrides).config.seed
    trials: list[Trial] = []
    for repeat in range(comparison.repeats):
        # None stands for the command
        combinations = list(product(comparison.configs or (None,), comparison.arms or {"": ()}, strategies, reductions))
        random.Random(repeat).shuffle(combinations)
        for config, arm, strategy, reduction in combinations:
            loaded = None
            if config:
                overrides = _overrides(comparison, nodes, ranks_per_node, strategy, reduction)
                overrides += [] if seed is None else [f"seed={seed + repeat}"]
                loaded = load_config(config, [*overrides, *comparison.arms.get(arm, ())])
            words = [
                loaded.config.name if loaded else "",
                arm,
                _slug(strategy) if len(strategies) > 1 else "",
                _slug(reduction),
                f"r{repeat}",
            ]
            name = f"{len(trials):03}-{'-'.join(filter(None, words))}"
            trials.append(Trial(path / "trials" / name, loaded, arm, strategy, reduction, repeat))
    return Allocation(path, world, tuple(trials))


def _overrides(comparison: Comparison, nodes: int, ranks_per_node: int, strategy: str, reduction: str) -> list[str]:
    own = [
        f"cluster.nodes={nodes}",
        f"cluster.ranks_per_node={ranks_per_node}",
        f"reduction.name={'native' if reduction == _ALONE else reduction}",
        "reduction.parameters={}",
        f"strategy.name={strategy}",
        "strategy.parameters={}",
    ]
    if comparison.steps is not None:
        steps = comparison.untimed_steps + comparison.steps
        own += [
            f"target.max_steps={steps}",
            f"target.max_epochs={steps}",
            f"target.evaluate_every_epochs={steps}",
            "target.top1=null",
        ]
        own += ["log.every_steps=1", "checkpoint.every_epochs=null", "checkpoint.every_steps=null"]
    return [*comparison.overrides, *own]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", text)
