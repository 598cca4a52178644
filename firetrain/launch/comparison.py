"""A comparison is a folder of runs. This module plans its allocations and prepares the folder.

DIR/comparison.yaml            the resolved comparison
DIR/2x1/                       an allocation: all parts that run on the same nodes, here two nodes of one rank each
DIR/2x1/parts/003-ring-r1/     a part: an ordinary run of one config with one reduction
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
from firetrain.config.files import exists, is_folder
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.launch.job import refuse_unfit
from firetrain.provenance import provenance
from firetrain.records import COMPLETED, SUBMITTED, Run
from firetrain.records.file import write_whole
from firetrain.records.lock import NAME as LOCK

ALONE = "one rank"


@dataclass(frozen=True)
class ComparisonPart:
    """One run of a comparison: a config, or a variant of it, with one reduction."""

    path: Path
    loaded: Loaded
    arm: str
    reduction: str
    round: int


@dataclass(frozen=True)
class Allocation:
    """The parts that run on the same nodes, one after another."""

    path: Path
    world: World
    parts: tuple[ComparisonPart, ...]


def plan(comparison: Comparison, folder: Path) -> list[Allocation]:
    """The allocations in the order in which they run; parts are shuffled within a round, with a fixed seed.

    If one node with several ranks is measured, one rank alone is added, as the baseline of efficiencies. UserError if a config
    is wrong, or if a reduction does not fit a world.
    """
    worlds = list(product(comparison.nodes, comparison.ranks_per_node))
    if 1 in comparison.nodes and 1 not in comparison.ranks_per_node:
        worlds.insert(0, (1, 1))
    return [_group(comparison, folder, *shape) for shape in worlds]


def _group(comparison: Comparison, folder: Path, nodes: int, ranks_per_node: int) -> Allocation:
    world, path = World.even(nodes, ranks_per_node), folder / f"{nodes}x{ranks_per_node}"
    reductions = comparison.reductions if world.size > 1 else (ALONE,)
    for reduction in reductions if world.size > 1 else ():
        refuse_unfit(Spec.parse(reduction), world)
    parts: list[ComparisonPart] = []
    for turn in range(comparison.repeats):
        triples = list(product(comparison.configs, comparison.arms or {"": ()}, reductions))
        random.Random(turn).shuffle(triples)
        for config, arm, reduction in triples:
            overrides = _overrides(comparison, nodes, ranks_per_node, reduction, turn)
            loaded = load_config(config, [*overrides, *comparison.arms.get(arm, ())])
            words = [loaded.config.name, arm, _slug(reduction), f"r{turn}"]
            name = f"{len(parts):03}-{'-'.join(filter(None, words))}"
            parts.append(ComparisonPart(path / "parts" / name, loaded, arm, reduction, turn))
    return Allocation(path, world, tuple(parts))


def _overrides(comparison: Comparison, nodes: int, ranks_per_node: int, reduction: str, turn: int) -> list[str]:
    own = [
        f"cluster.nodes={nodes}",
        f"cluster.ranks_per_node={ranks_per_node}",
        f"reduction.name={'native' if reduction == ALONE else reduction}",
        "reduction.parameters={}",
    ]
    if comparison.steps is None:
        seed = load_config(comparison.configs[0], comparison.overrides).config.seed
        return [*comparison.overrides, *own, f"seed={seed + turn}"]
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
    """Create the folder, or prepare it for resuming: complete parts are kept, failed and unfinished ones are reset.

    Allocations in `busy` are running and left unchanged. UserError if the folder contains another comparison.
    """
    refuse_another(comparison, allocations, folder)
    for allocation in allocations:
        if not (allocation.path / "run.json").exists():
            Run.prepare(allocation.path, allocation.parts[0].loaded, SystemClock().date(), _facts(allocation.world))
        if allocation.path not in busy and any(not (part.path / "summary.json").exists() for part in allocation.parts):
            (allocation.path / "summary.json").unlink(missing_ok=True)
            (allocation.path / "STOP").unlink(missing_ok=True)
        for part in allocation.parts:
            if not (part.path / "run.json").exists():
                facts = _facts(allocation.world) | {"arm": part.arm, "reduction": part.reduction, "round": part.round}
                Run.prepare(part.path, part.loaded, SystemClock().date(), facts)
            elif allocation.path not in busy and (run := Run.open(part.path)).facts()["state"] != COMPLETED:
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
    if path.read_text() != comparison.text():
        raise UserError(f"{problem} (see its comparison.yaml): choose another folder with --into, or remove it")
    for part in (part for allocation in allocations for part in allocation.parts):
        if exists(part.path) and Run.open(part.path).config() != part.loaded.config:
            raise UserError(
                f"{problem}: the config of {part.path.name} has changed since its creation; choose another folder with --into"
            )


def _facts(world: World) -> dict[str, object]:
    return {"world": str(world), "ranks": world.size, "machine": provenance(), "state": SUBMITTED}


def _begin_again(run: Run) -> None:
    run.update(state=SUBMITTED, reason="")
    if not any((run.path / "checkpoints").glob("*.pt")):
        (run.path / "metrics.jsonl").unlink(missing_ok=True)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", text)
