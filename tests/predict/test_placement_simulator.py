"""Steps under strategies, simulated rank by rank, with times that a test knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiled import LAYERS

from firetrain.cluster import World
from firetrain.predict.network import LinkCost, Network
from firetrain.predict.placement_simulator import Simulated, exposed_sums_s, simulate
from firetrain.predict.work import MeasuredWork, ProportionalWork, Work
from firetrain.records.measured_slice import Ceilings
from firetrain.strategy import Layer, find_strategy
from firetrain.strategy.schedule import bubble, uneven_bubble
from firetrain.strategy.slice import Slice

FREE = Network(*[LinkCost(0.0, 0.0)] * 3)
WORK = ProportionalWork(operation_s=1e-9, parameter_s=0.0, backward_share=0.5)


def simulated(strategy: str, ranks: int, images: int = 8, network: Network = FREE, work: Work = WORK) -> Simulated:
    world = World.even(ranks, 1)
    return simulate(find_strategy(strategy)(LAYERS, world), images, work, network, world)


@pytest.mark.parametrize(
    "strategy", ["one-weird-trick", "tensor-parallel:split=outputs", "data-parallel", "grid:images=2,outputs=2"]
)
def test_with_free_links_a_step_takes_a_rank_s_share_of_the_work(strategy: str) -> None:
    found = simulated(strategy, 4)
    share_s = 8 * 1_000_000e-9 / 4
    assert found.end_s == pytest.approx([share_s] * 4) and found.compute_s == pytest.approx([share_s] * 4)


def test_a_step_takes_the_time_of_its_measured_slices_and_at_least_what_the_device_needs_for_others() -> None:
    ceilings = Ceilings(operations_per_s=1e9, bytes_per_s=1e12)
    halves = {Slice("conv", 4, 8, 3): (3e-3, 5e-3), Slice("fc1", 4, 64, 8): (1e-3, 2e-3)}
    found = simulated("data-parallel", 2, work=MeasuredWork(halves, ceilings))
    of_fc2_s = 3 * 4 * 50_000 / 1e9
    assert found.compute_s == pytest.approx([11e-3 + of_fc2_s] * 2)
    whole = simulated("one-weird-trick", 2, work=MeasuredWork(halves, ceilings))
    of_fc_s = 3 * 8 * 50_000 / 2 / 1e9
    assert whole.compute_s == pytest.approx([8e-3 + 2 * of_fc_s] * 2), (
        "the first layer is the same, the others are halves"
    )


@pytest.mark.parametrize(
    ("schedule", "micro_batches"),
    [("gpipe", 1), *((schedule, count) for schedule in ("gpipe", "1f1b") for count in (2, 4, 8))],
)
@pytest.mark.parametrize("operations", [(1000, 1000, 1000, 1000), (3000, 2000, 1000, 2000), (1000, 1000, 1000, 5000)])
def test_the_bubble_is_that_of_the_formula(operations: tuple[int, ...], schedule: str, micro_batches: int) -> None:
    layers = tuple(
        Layer(f"fc{number}", "weights", (f"fc{number - 1}",) if number else (), 4, 4, weights=1, operations=one)
        for number, one in enumerate(operations)
    )
    layers = (*layers, Layer("loss", "whole", ("fc3",), 4, 4, is_loss=True))
    world = World.even(4, 1)
    ordered = f",schedule={schedule},micro_batches={micro_batches}" if micro_batches > 1 else ""
    placement = find_strategy(f"pipeline:stages=4{ordered}")(layers, world)
    work = ProportionalWork(operation_s=1e-9, parameter_s=0.0, backward_share=2 / 3)
    found = simulate(placement, 16, work, FREE, world)
    idle = 1 - sum(found.compute_s) / (4 * max(found.end_s))
    assert idle == pytest.approx(uneven_bubble(schedule, operations, micro_batches))
    if len(set(operations)) == 1:
        assert idle == pytest.approx(bubble(4, micro_batches))


def test_ranks_that_exchange_wait_for_the_slowest_and_stages_do_not() -> None:
    def end_s(strategy: str, wait_s: float) -> float:
        world = World.even(2, 1)
        return max(simulate(find_strategy(strategy)(LAYERS, world), 8, WORK, FREE, world, wait_s).end_s)

    exchanges = [
        one for one in find_strategy("one-weird-trick")(LAYERS, World.even(2, 1)).messages(8) if one.sender == 0
    ]
    assert end_s("one-weird-trick", 0.5) == pytest.approx(end_s("one-weird-trick", 0.0) + 2 * 0.5 * len(exchanges))
    for strategy in ("pipeline", "data-parallel"):
        assert end_s(strategy, 0.5) == end_s(strategy, 0.0)


def test_an_exchange_takes_what_its_bytes_take_on_the_links() -> None:
    """Each of two ranks sends half of its share of conv's output, 4 images x 8 channels x 4 numbers, and gets as much."""
    wire = LinkCost(1e-4, 1e-6)
    network, idle = Network(wire, wire, wire), ProportionalWork(0.0, 0.0, 0.5)
    forth_s = 1e-4 + 1e-6 * 4 * 4 * 8 * 4  # conv to fc1: 4 images of all channels in float32
    hidden_s = 1e-4 + 1e-6 * 4 * 8 * 32  # fc1 to fc2: 8 images of half of the channels
    last_s = 1e-4 + 1e-6 * 4 * 4 * 32  # fc2 to the loss: half of the channels of 4 images
    found = simulated("one-weird-trick", 2, network=network, work=idle)
    assert max(found.end_s) == pytest.approx(2 * (forth_s + hidden_s + last_s))


def test_messages_of_one_node_s_ranks_share_its_link() -> None:
    wire = LinkCost(0.0, 1e-6)
    network = Network(inside=LinkCost(0.0, 0.0), between=wire, alone=wire)
    placement = find_strategy("one-weird-trick")(LAYERS, World.even(2, 2))
    shared, own = (
        simulate(placement, 8, ProportionalWork(0.0, 0.0, 0.5), network, world)
        for world in (World.even(2, 2), World.even(4, 1))
    )
    # 2 of the 3 others are behind the shared link, for both ranks of a node
    assert max(shared.end_s) == pytest.approx(4 / 3 * max(own.end_s))


def test_sums_of_gradients_start_when_all_sharers_have_them_and_those_of_one_rank_follow_one_another() -> None:
    placement = find_strategy("data-parallel")(LAYERS, World.even(2, 1))
    step = simulated("data-parallel", 2)
    started: list[int] = []

    def sum_s(group: tuple[int, ...], size_bytes: int) -> float:
        started.append(size_bytes)
        return 1.0

    assert exposed_sums_s(placement, step, 1e9, sum_s) == 1.0 and started == [4 * sum(one.parameters for one in LAYERS)]
    first_s = step.ready_s[0]["fc2"]
    assert exposed_sums_s(placement, step, 1, sum_s) == pytest.approx(first_s + 3.0 - max(step.end_s))
    late = replace(step, ready_s=(step.ready_s[0], dict.fromkeys(step.ready_s[0], 5.0)), end_s=(step.end_s[0], 5.0))
    assert exposed_sums_s(placement, late, 1e9, sum_s) == 1.0
