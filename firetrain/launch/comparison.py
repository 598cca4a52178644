"""A comparison is a folder of runs: planned, prepared, started group by group, gone on with where it was left.

DIR/comparison.yaml            what is compared, as resolved
DIR/2x1/                       a group: all that runs in one allocation, here of two nodes with a rank each
DIR/2x1/parts/003-ring-r1/     a part: a run like any other, of one config and one reduction
DIR/comparison.json            what came of it
"""

from __future__ import annotations

import os
import random
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from firetrain.cluster import SystemClock, World
from firetrain.config import Loaded, load_config
from firetrain.config.comparison import Comparison
from firetrain.config.files import exists, is_folder
from firetrain.config.spec import Spec
from firetrain.errors import FiretrainError, UserError
from firetrain.launch import slurm
from firetrain.launch.batch import Request, script
from firetrain.launch.fit import refuse_misfits
from firetrain.launch.job import refuse_misfit
from firetrain.launch.site import Site
from firetrain.launch.verdict import endings, first_failure
from firetrain.provenance import provenance
from firetrain.records import COMPLETED, FAILED, RUNNING, SUBMITTED, Run
from firetrain.records.file import write_whole
from firetrain.records.lock import NAME as LOCK

ALONE = "one rank"


@dataclass(frozen=True)
class Part:
    """One config, in one of its variants if there are any, with one reduction, once."""

    path: Path
    loaded: Loaded
    arm: str
    reduction: str
    round: int


@dataclass(frozen=True)
class Group:
    """The parts that run on the same nodes, one after another."""

    path: Path
    world: World
    parts: tuple[Part, ...]


def plan(comparison: Comparison, folder: Path) -> list[Group]:
    """What will run, in order; the order within a round is shuffled, always in the same way.

    Where nodes have several ranks, one rank alone is measured too, if a single node is: what the others are compared with.
    UserError if a config, or a reduction in a world, cannot be.
    """
    worlds = list(product(comparison.nodes, comparison.ranks_per_node))
    if 1 in comparison.nodes and 1 not in comparison.ranks_per_node:
        worlds.insert(0, (1, 1))
    return [_group(comparison, folder, *shape) for shape in worlds]


def _group(comparison: Comparison, folder: Path, nodes: int, ranks_per_node: int) -> Group:
    world, path = World.even(nodes, ranks_per_node), folder / f"{nodes}x{ranks_per_node}"
    reductions = comparison.reductions if world.size > 1 else (ALONE,)
    for reduction in reductions if world.size > 1 else ():
        refuse_misfit(Spec.parse(reduction), world)
    parts: list[Part] = []
    for turn in range(comparison.repeats):
        triples = list(product(comparison.configs, comparison.arms or {"": ()}, reductions))
        random.Random(turn).shuffle(triples)
        for config, arm, reduction in triples:
            overrides = _overrides(comparison, nodes, ranks_per_node, reduction, turn)
            loaded = load_config(config, [*overrides, *comparison.arms.get(arm, ())])
            words = [loaded.config.name, arm, _slug(reduction), f"r{turn}"]
            name = f"{len(parts):03}-{'-'.join(filter(None, words))}"
            parts.append(Part(path / "parts" / name, loaded, arm, reduction, turn))
    return Group(path, world, tuple(parts))


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


def prepare(comparison: Comparison, groups: Sequence[Group], folder: Path, busy: Collection[Path] = ()) -> None:
    """Make the folder, or go on with it: what is complete stays, what failed or was left half done is to be done again.

    Groups in `busy` are being worked on. UserError if the folder holds another comparison.
    """
    refuse_another(comparison, groups, folder)
    for group in groups:
        if not (group.path / "run.json").exists():
            Run.prepare(group.path, group.parts[0].loaded, SystemClock().date(), _facts(group.world))
        if group.path not in busy and any(not (part.path / "summary.json").exists() for part in group.parts):
            (group.path / "summary.json").unlink(missing_ok=True)
            (group.path / "STOP").unlink(missing_ok=True)
        for part in group.parts:
            if not (part.path / "run.json").exists():
                facts = _facts(group.world) | {"arm": part.arm, "reduction": part.reduction, "round": part.round}
                Run.prepare(part.path, part.loaded, SystemClock().date(), facts)
            elif group.path not in busy and (run := Run.open(part.path)).facts()["state"] != COMPLETED:
                _begin_again(run)
    write_whole(folder / "comparison.yaml", comparison.text())


def refuse_another(comparison: Comparison, groups: Sequence[Group], folder: Path) -> None:
    """UserError if the folder holds something that is not the beginning of this very comparison."""
    path = folder / "comparison.yaml"
    if not exists(path):
        if is_folder(folder) and any(path.name != LOCK for path in folder.iterdir()):
            raise UserError(f"{folder} is there already and holds no comparison: choose another folder with --into")
        return
    told = f"{folder} holds another comparison"
    if path.read_text() != comparison.text():
        raise UserError(f"{told} (see its comparison.yaml): choose another folder with --into, or remove it")
    for part in (part for group in groups for part in group.parts):
        if exists(part.path) and Run.open(part.path).config() != part.loaded.config:
            raise UserError(
                f"{told}: the config of {part.path.name} has changed since; choose another folder with --into"
            )


def _facts(world: World) -> dict[str, object]:
    return {"world": str(world), "ranks": world.size, "machine": provenance(), "state": SUBMITTED}


def _begin_again(run: Run) -> None:
    run.update(state=SUBMITTED, reason="")
    if not any((run.path / "checkpoints").glob("*.pt")):
        (run.path / "metrics.jsonl").unlink(missing_ok=True)


def submit(
    comparison: Comparison, groups: Sequence[Group], folder: Path, site: Site, site_name: str,
    variables: Mapping[str, str], passed: Sequence[str],
) -> Iterator[tuple[Group, int]]:  # fmt: skip
    """Have Slurm run what is missing: a job for each group, one after another, so that they do not share links.

    Yields (group, job) as they are submitted; groups whose jobs still run are left to them. UserError, with all misfits, before
    anything exists.
    """
    busy = [group.path for group in groups if _has_live_job(group.path)]
    todo = [group for group in groups if group.path not in busy]
    requests = {}
    for group in todo:
        name = f"{comparison.name}-{group.path.name}-{secrets.token_hex(4)}"
        requests[group.path] = Request(
            group.path, group.world, site, variables, tuple(passed), data_folders(group), parts=True, name=name
        )
    refuse_misfits(*requests.values())
    prepare(comparison, groups, folder, busy)
    before = None
    for group in todo:
        missing = unfinished(group.path)
        if not missing:
            continue
        for part in missing:
            part.update(site=site_name, **site.price)
        request, record = requests[group.path], Run(group.path)
        path = group.path / "job.sh"
        write_whole(path, script(request))
        slurm.estimate(path)  # refuses what Slurm would refuse
        before = slurm.submit(path, request.name, before, passed)
        record.update(state=SUBMITTED, site=site_name, jobs=[*record.facts().get("jobs", []), before])
        yield group, before


def data_folders(group: Group) -> tuple[str, ...]:
    """From which its parts read images, each once."""
    return tuple(dict.fromkeys(root for part in group.parts if (root := part.loaded.config.data.root)))


def _has_live_job(group: Path) -> bool:
    numbers = Run(group).facts().get("jobs", []) if (group / "run.json").exists() else []
    jobs = [slurm.job(number) for number in numbers[-1:]]
    return any(job and job.state not in slurm.ENDED for job in jobs)


def parts_of(group: Path) -> list[Run]:
    """The parts of a group, in the order in which they run."""
    return [Run(path) for path in sorted((group / "parts").iterdir())]


def unfinished(group: Path) -> list[Run]:
    """Those that are still to be done."""
    return [run for run in parts_of(group) if run.facts()["state"] not in (COMPLETED, FAILED)]


def run_group(group: Run, start: Callable[[], str]) -> None:
    """Start the ranks until every part is complete or has failed: with the part that ends them they are started again.

    `start` runs all ranks to their end and says what went wrong, if anything did. FiretrainError if they end before they have
    begun a part.
    """
    while before := unfinished(group.path):
        wrong = start()
        for run in unfinished(group.path):
            if run.facts()["state"] == RUNNING:
                run.update(
                    state=FAILED,
                    ended=SystemClock().date().isoformat(),
                    reason=wrong or "its ranks ended before it did",
                )
        after = unfinished(group.path)
        if after and not wrong:
            return  # asked to stop
        if len(after) == len(before):
            raise FiretrainError(f"{group.path}: the ranks ended before they had begun a part: {wrong}")
    failed = [run.name for run in parts_of(group.path) if run.facts()["state"] == FAILED]
    group.write("summary.json", {"state": COMPLETED, "parts": len(parts_of(group.path)), "failed": failed})
    group.update(state=COMPLETED, ended=SystemClock().date().isoformat())


def estimate_s(groups: Sequence[Group], results: Path) -> tuple[float, int] | None:
    """(seconds that all unfinished parts should take, from how many earlier parts or runs of the same configs); None: unknown.

    A part's steps take as long as those of the nearest run of the same config, by world size, in `results` or below.
    """
    if not is_folder(results):
        return None
    known: dict[str, list[tuple[int, float]]] = {}
    for path in [*results.glob("*/summary.json"), *results.glob("comparisons/*/*/parts/*/summary.json")]:
        with suppress(FiretrainError, KeyError, ZeroDivisionError, OSError):
            run = Run(path.parent)
            facts = run.summary()
            known.setdefault(run.config().name, []).append((facts["world_size"], facts["elapsed_s"] / facts["steps"]))
    total_s, used = 0.0, 0
    for group in groups:
        for part in group.parts:
            if exists(part.path / "summary.json"):
                continue
            seen = known.get(part.loaded.config.name)
            steps = part.loaded.config.target.max_steps
            if not seen or not steps:
                return None
            total_s += steps * min(seen, key=lambda pair: abs(pair[0] - group.world.size))[1]
            used = max(used, len(seen))
    return total_s, used


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", text)


def main() -> None:
    """For a job script: `GROUP -- COMMAND`, which starts all ranks; each start but the first is an attempt of its own."""
    group, command = Run.open(Path(sys.argv[1])), sys.argv[3:]
    code, starts = 0, 0

    def start() -> str:
        nonlocal code, starts
        starts += 1
        attempt = Path(os.environ["FIRETRAIN_ATTEMPT"])
        if starts > 1:
            attempt = group.path / f"attempt-{group.attempts}"
            for name in ("logs", "ranks"):
                (attempt / name).mkdir(parents=True)
            (attempt / "job").write_text(os.environ["SLURM_JOB_ID"] + "\n")
            os.environ["FIRETRAIN_ATTEMPT"] = str(attempt)
        code = subprocess.run(command, check=False).returncode
        first = first_failure(endings(attempt))
        return f"{first}; its log: {group.log(first.rank)}" if first else f"exit code {code}" if code else ""

    try:
        run_group(group, start)
    except FiretrainError as error:
        print(f"firetrain: {error}", file=sys.stderr)
    raise SystemExit(code if unfinished(group.path) else 0)


if __name__ == "__main__":
    main()
