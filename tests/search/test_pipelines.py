"""One replica of a pipeline, simulated alone, takes as long as all of them simulated together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_search import MIB, layers_of, machine

from firetrain.cluster import World
from firetrain.predict.placement_simulator import exposed_sums_s, simulate
from firetrain.search.model import SearchModel, Step
from firetrain.search.pipelines import Pipeline
from firetrain.search.search import search
from firetrain.strategy import find_strategy


def together_ns(model: SearchModel, one: Pipeline, step: Step) -> int:
    """The step of a pipeline with all its replicas."""
    problem = model.problem(step)
    placement = find_strategy(one.name)(model.layers, model.world)
    costs = model._costs
    wait_s = costs.exchange_wait_s(model.world.size)
    found = simulate(placement, step.images, model._of_slowest, costs.undrawn, model.world, wait_s)

    def sum_s(group: tuple[int, ...], size_bytes: int) -> float:
        return problem.sums(len(group), size_bytes) / 1e9

    exposed_s = exposed_sums_s(placement, found, problem.bucket_bytes, sum_s, costs.stolen(len(model.world.nodes)))
    held = max(sum(placement.held(layer, rank) for layer in placement.layers) for rank in range(placement.ranks))
    update_ns = model._update_ns * held / sum(layer.parameters for layer in model.layers)
    return round(1e9 * (max(found.end_s) + exposed_s) + update_ns)


# divides evenly among replicas and micro-batches
STEP = Step(384, "ring", MIB // 2)


def both(
    world: World, step: Step = STEP, between_bytes_per_s: float = 1.2e8, **machine_of: float
) -> list[tuple[str, int, int]]:
    """(name, time of one replica, time of all replicas) of all pipelines of LeNet."""
    costs = machine(layers_of("lenet"), between_bytes_per_s=between_bytes_per_s, **machine_of)
    model = SearchModel(layers_of("lenet"), world, costs)
    return [
        (one.name, one.step_ns, together_ns(model, one, step)) for one in model.pipelines(model.problem(step), step)
    ]


@pytest.mark.parametrize("world", [World.even(4, 1), World.even(2, 4)], ids=str)
def test_a_replica_stands_for_all_of_them(world: World) -> None:
    found = both(world)
    assert len(found) >= 5
    for name, alone_ns, all_ns in found:
        assert alone_ns == pytest.approx(all_ns, rel=1e-6), name


def test_replicas_that_share_some_links_are_scored_within_a_seventh() -> None:
    """Stages of three ranks on nodes of two: only some nodes have ranks of both replicas."""
    ratios = [alone_ns / all_ns for _, alone_ns, all_ns in both(World.even(3, 2))]
    assert len(ratios) == 10 and max(max(ratios), 1 / min(ratios)) < 8 / 7


def test_pipelines_are_charged_for_what_grids_are_charged_for() -> None:
    """For the slowest of all ranks, and for what sums take from compute."""
    even = {name: alone_ns for name, alone_ns, _ in both(World.even(4, 1))}
    for name, alone_ns, all_ns in both(World.even(4, 1), jitter=0.1):
        assert alone_ns == pytest.approx(all_ns, rel=1e-6) and alone_ns > even[name], name
    many_buckets, longer = replace(STEP, bucket_bytes=1 << 12), set()
    hidden = {name: alone_ns for name, alone_ns, _ in both(World.even(4, 1), many_buckets, 1e10)}
    for name, alone_ns, all_ns in both(World.even(4, 1), many_buckets, 1e10, stolen=0.9):
        assert alone_ns == pytest.approx(all_ns, rel=1e-6)
        longer |= {"replicas" in name} if alone_ns > hidden[name] else set()
    assert longer == {True}, "only replicas sum"


def test_the_fastest_pipeline_stands_beside_the_grids() -> None:
    layers, step = layers_of("lenet"), Step(48, "ring", MIB)
    model = SearchModel(layers, World.even(4, 1), machine(layers))
    found = search(model, step, (MIB,))
    assert found.pipeline == min(model.pipelines(found.problem, step), key=lambda one: one.step_ns)
