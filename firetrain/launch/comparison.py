"""A comparison is a folder of runs. This module lists its allocations and prepares the folder.

DIR/comparison.yaml            the resolved comparison
DIR/2x1/                       an allocation: all trials that run on the same nodes, here two nodes of one rank each
DIR/2x1/trials/003-ring-r1/     a trial: an ordinary run of one config with one reduction
DIR/comparison.json            the results
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from firetrain.cluster import SystemClock, World
from firetrain.config import Loaded, load_config
from firetrain.config.comparison import Comparison
from firetrain.config.files import exists, is_folder, read_yaml
from firetrain.config.load import validate
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.launch.job import refuse_unfit
from firetrain.provenance import provenance
from firetrain.records import COMPLETED, SUBMITTED, Run
from firetrain.records.file import write_whole
from firetrain.records.lock import NAME as LOCK

ALONE = "one rank"


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: a config, or a variant of it, with one strategy and one reduction."""

    path: Path
    loaded: Loaded
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


def allocations_of(comparison: Comparison, folder: Path) -> list[Allocation]:
    """The allocations in the order in which they run; trials are shuffled within a repeat, with a fixed seed.

    If one node with several ranks is measured, one rank alone is added, as the baseline of efficiencies. UserError if a config
    is wrong, or if a reduction does not fit a world.
    """
    worlds = list(product(comparison.nodes, comparison.ranks_per_node))
    if 1 in comparison.nodes and 1 not in comparison.ranks_per_node:
        worlds.insert(0, (1, 1))
    return [_allocation(comparison, folder, *shape) for shape in worlds]


def _allocation(comparison: Comparison, folder: Path, nodes: int, ranks_per_node: int) -> Allocation:
    world, path = World.even(nodes, ranks_per_node), folder / f"{nodes}x{ranks_per_node}"
    strategies = comparison.strategies if world.size > 1 else (DATA_PARALLEL,)
    reductions = comparison.reductions if world.size > 1 else (ALONE,)
    for reduction in reductions if world.size > 1 else ():
        refuse_unfit(Spec.parse(reduction), world)
    trials: list[Trial] = []
    for repeat in range(comparison.repeats):
        combinations = list(product(comparison.configs, comparison.arms or {"": ()}, strategies, reductions))
        random.Random(repeat).shuffle(combinations)
        for config, arm, strategy, reduction in combinations:
            overrides = _overrides(comparison, nodes, ranks_per_node, strategy, reduction, repeat)
            loaded = load_config(config, [*overrides, *comparison.arms.get(arm, ())])
            words = [
                loaded.config.name,
                arm,
                _slug(strategy) if len(strategies) > 1 else "",
                _slug(reduction),
                f"r{repeat}",
            ]
            name = f"{len(trials):03}-{'-'.join(filter(None, words))}"
            trials.append(Trial(path / "trials" / name, loaded, arm, strategy, reduction, repeat))
    return Allocation(path, world, tuple(trials))


def _overrides(
    comparison: Comparison, nodes: int, ranks_per_node: int, strategy: str, reduction: str, repeat: int
) -> list[str]:
    own = [
        f"cluster.nodes={nodes}",
        f"cluster.ranks_per_node={ranks_per_node}",
        f"reduction.name={'native' if reduction == ALONE else reduction}",
        "reduction.parameters={}",
        f"strategy.name={strategy}",
        "strategy.parameters={}",
    ]
    if comparison.steps is None:
        seed = load_config(comparison.configs[0], comparison.overrides).config.seed
        return [*comparison.overrides, *own, f"seed={seed + repeat}"]
    steps = comparison.untimed_steps + comparison.steps
    own += [
        f"target.max_steps={steps}",
        f"target.max_epochs={steps}",
        f"target.evaluate_every_epochs={steps}",
        "target.top1=null",
    ]
    own += ["log.every_steps=1", "checkpoint.every_epochs=null", "checkpoint.every_steps=null"]
    return [*comparison.overrides, *own]


def prepare(
    comparison: Comparison, allocations: Sequence[Allocation], folder: Path, busy: Collection[Path] = ()
) -> None:
    """Create the folder, or prepare it for resuming: complete trials are kept, failed and unfinished ones are reset.

    Allocations in `busy` are running and left unchanged. UserError if the folder contains another comparison.
    """
    refuse_another(comparison, allocations, folder)
    for allocation in allocations:
        if not (allocation.path / "run.json").exists():
            Run.prepare(allocation.path, allocation.trials[0].loaded, SystemClock().date(), _facts(allocation.world))
        if allocation.path not in busy and any(
            not (trial.path / "summary.json").exists() for trial in allocation.trials
        ):
            (allocation.path / "summary.json").unlink(missing_ok=True)
            (allocation.path / "STOP").unlink(missing_ok=True)
        for trial in allocation.trials:
            if not (trial.path / "run.json").exists():
                facts = _facts(allocation.world) | {
                    "arm": trial.arm,
                    "strategy": trial.strategy,
                    "reduction": trial.reduction,
                    "repeat": trial.repeat,
                }
                Run.prepare(trial.path, trial.loaded, SystemClock().date(), facts)
            elif allocation.path not in busy and (run := Run.open(trial.path)).facts()["state"] != COMPLETED:
                _begin_again(run)
    write_whole(folder / "comparison.yaml", comparison.text())


def refuse_another(comparison: Comparison, allocations: Sequence[Allocation], folder: Path) -> None:
    """UserError if the folder contains something other than this (possibly unfinished) comparison."""
    path = folder / "comparison.yaml"
    if not exists(path):
        if is_folder(folder) and any(path.name != LOCK for path in folder.iterdir()):
            raise UserError(f"{folder} exists and is not a comparison: choose another folder with --into")
        return
    problem = f"{folder} contains another comparison"
    if validate(read_yaml(path), Comparison) != comparison:
        raise UserError(f"{problem} (see its comparison.yaml): choose another folder with --into, or remove it")
    for trial in (trial for allocation in allocations for trial in allocation.trials):
        if exists(trial.path) and Run.open(trial.path).config() != trial.loaded.config:
            raise UserError(
                f"{problem}: the config of {trial.path.name} has changed since its creation; choose another folder with --into"
            )


def _facts(world: World) -> dict[str, object]:
    return {"world": str(world), "ranks": world.size, "machine": provenance(), "state": SUBMITTED}


def _begin_again(run: Run) -> None:
    run.update(state=SUBMITTED, reason="")
    if not any((run.path / "checkpoints").glob("*.pt")):
        (run.path / "metrics.jsonl").unlink(missing_ok=True)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", text)
