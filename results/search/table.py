"""Prints the tables of this folder's README: searches for AlexNet and GoogLeNet on modelled machines, and what they take.

Seconds of simulating 2,000 random changes of what was found: rank by rank, on one timeline, and by delta simulation; the events
of these; and the whole search with its proof. Then searches for 64 ranks with other links. It needs what `make .venv/test`
installs. Usage: OMP_NUM_THREADS=1 .venv/bin/python results/search/table.py
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tests"), str(HERE.parents[1] / "tests" / "search")]

from rank_by_rank import groups_of, step_ns_of_ranks  # noqa: E402
from test_search import MIB, layers_of, machine  # noqa: E402

from firetrain.cluster import World  # noqa: E402
from firetrain.search.delta import Delta  # noqa: E402
from firetrain.search.model import SearchModel, Step  # noqa: E402
from firetrain.search.problem import Choice  # noqa: E402
from firetrain.search.search import search  # noqa: E402
from firetrain.search.step_simulator import StepSimulator  # noqa: E402
from firetrain.search.walk import walk  # noqa: E402

CHANGES, STEP = 2000, Step(256, "ring", 8 * MIB)
LINKS = {"1 Gbit/s": 1.25e8, "3 GB/s": 3e9, "12.5 GB/s": 1.25e10}
HEADINGS = (
    "model, ranks", "rank by rank s", "full s", "delta s", "full / delta", "events full / delta", "FlexFlow full s",
    "FlexFlow delta s", "data-parallel ms", "one-weird-trick ms", "additive ms", "walk ms", "best pipeline ms", "found ms",
    "labels", "search s",
)  # fmt: skip
# (full, delta) seconds of a whole search with either simulation, on other machines: Jia et al. 2019, for AlexNet on the fewest
# and on the most GPUs
FLEXFLOW = {("alexnet", 4): ("0.11", "0.04"), ("alexnet", 64): ("18", "5.9")}


def main() -> None:
    """Print a row for each model and number of ranks, and then for other links between nodes."""
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    for name in ("alexnet", "googlenet_paper"):
        layers = layers_of(name)
        costs = machine(layers)
        for ranks in (4, 8, 16, 32, 64):
            cells = row(SearchModel(layers, World.even(ranks // 4, 4), costs), FLEXFLOW.get((name, ranks), ("", "")))
            print(f"| {name}, {ranks} | " + " | ".join(cells) + " |", flush=True)
    print("\n| model, 64 ranks | ranks per node | between nodes | labels | search s |\n|---|---:|---:|---:|---:|")
    for name, heads in (("alexnet", False), ("googlenet_paper", False), ("googlenet_paper", True)):
        layers, label = layers_of(name, heads=heads), f"{name}{' with its heads' if heads else ''}"
        for per_node in (4, 1):
            for link, bytes_per_s in LINKS.items():
                costs = machine(layers, between_bytes_per_s=bytes_per_s)
                found = search(SearchModel(layers, World.even(64 // per_node, per_node), costs), STEP)
                assert found.is_proven
                print(f"| {label} | {per_node} | {link} | {found.labels:,} | {found.seconds:.2f} |", flush=True)


def row(model: SearchModel, published_s: tuple[str, str]) -> list[str]:
    """Search, and simulate changes of what was found in three ways. `published_s`: FlexFlow's seconds, to stand beside."""
    began_s = time.perf_counter()
    found = search(model, STEP)
    search_s = time.perf_counter() - began_s
    assert found.is_proven
    problem, draw = found.problem, random.Random(1)
    variables = [draw.randrange(len(problem.allowed)) for _ in range(CHANGES)]
    changes = [(variable, draw.choice(problem.allowed[variable])) for variable in variables]
    simulator, groups = StepSimulator(problem), groups_of(problem, model.world)
    by_ranks_s, _ = timed(lambda choice: step_ns_of_ranks(problem, choice, groups), found.choice, changes[::20])
    full_s, expected = timed(simulator.step_ns, found.choice, changes)
    visited = simulator.events
    delta = Delta(simulator, found.choice)
    visited_before = simulator.events
    began_s = time.perf_counter()
    ends = [delta.after({variable: grid}) for variable, grid in changes]
    delta_s = time.perf_counter() - began_s
    assert ends == expected
    fewer = visited / (simulator.events - visited_before)
    known = {one.name: one.step_ns for one in found.known}
    steps = [*(known[one] for one in ("data-parallel", "one-weird-trick", "additive"))]
    every_image = next(number for number, grid in enumerate(problem.grids) if grid.outputs == 1)
    steps.append(walk(problem, (every_image,) * len(problem.allowed), CHANGES).step_ns)
    steps += [found.pipeline.step_ns] if found.pipeline else []
    return [
        f"{20 * by_ranks_s:.2f}", f"{full_s:.3f}", f"{delta_s:.3f}", f"{full_s / delta_s:.1f}", f"{fewer:.1f}",
        *published_s,
        *(f"{ns / 1e6:.2f}" for ns in (*steps, found.step_ns)), str(found.labels), f"{search_s:.2f}",
    ]  # fmt: skip


def timed(simulate: Callable[[Choice], int], choice: Choice, changes: list[tuple[int, int]]) -> tuple[float, list[int]]:
    """(seconds, results) of simulating every change by itself."""
    choices = [
        tuple(grid if number == variable else own for number, own in enumerate(choice)) for variable, grid in changes
    ]
    began_s = time.perf_counter()
    ends = [simulate(one) for one in choices]
    return time.perf_counter() - began_s, ends


if __name__ == "__main__":
    main()
