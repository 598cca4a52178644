"""Searching a model on a machine: never slower than what is known, One Weird Trick found again, limits of memory."""

from __future__ import annotations

import random
import time

import pytest
import torch
from rank_by_rank import groups_of, step_ns_of_ranks
from torch import Tensor, nn
from users_models import sequential

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.models.memory import memory
from firetrain.predict.costs import Costs, total
from firetrain.predict.placed import PlacedSteps
from firetrain.predict.question import Question, WhatIf
from firetrain.records.measured_slice import Stolen
from firetrain.records.profile import MeasuredLink, MeasuredStep, Profile, Quantity, Residual
from firetrain.search.delta import Delta
from firetrain.search.explain import deviations, layer_costs
from firetrain.search.frontier import best_choice
from firetrain.search.grid import Grid
from firetrain.search.model import MemoryBudget, SearchModel, Step
from firetrain.search.search import ADDITIVE, Found, _lightest, search
from firetrain.search.step_simulator import StepSimulator
from firetrain.search.table import layer_rows
from firetrain.strategy import Layer, faults, find_strategy

MODELS = {"alexnet": 224, "googlenet_paper": 224, "squeezenet1_1": 224, "lenet": 28, "a user's own": 16}
MIB = 1 << 20


def layers_of(name: str, *, heads: bool = False) -> tuple[Layer, ...]:
    """The layers of a model at its usual size. `heads`: with GoogLeNet's auxiliary classifiers."""
    size = MODELS[name]
    if name == "a user's own":
        return trace(sequential(), size).layers
    classes, stem = (10, "small") if size < 100 else (1000, "imagenet")
    options = {"auxiliary_heads": True} if heads else {}
    return trace(model_by_name(name, classes=classes, stem=stem, **options), size).layers


def machine(layers: tuple[Layer, ...], **machine_of: float) -> Costs:
    """The costs of `profile_of`."""
    return Costs(profile_of(layers, **machine_of), "m", WhatIf())


def profile_of(
    layers: tuple[Layer, ...], between_bytes_per_s: float = 3e9, batch: int = 256, jitter: float = 0.0, wait_s: float = 0.0,
    stolen: float = 0.0, residual_s: float = 0.0,
) -> Profile:  # fmt: skip
    """Four ranks a node with 4 TFLOP/s each, 10 us and 10 GB/s inside a node, 25 us between nodes.

    `stolen`: the share of a sum's time that it takes from compute; `wait_s`: in every exchange, for the slowest rank.
    """
    step_s = 6 * sum(layer.operations for layer in layers) * batch / 4e12
    links = tuple(
        MeasuredLink(
            level=level, pairs=pairs, transport="nccl", node_of=(0, 0, 1, 1), latency_s=latency_s, bytes_per_s=bytes_per_s,
            medians_s={}, count=1,
        )
        for level, latency_s, bytes_per_s in (("inside a node", 1e-5, 1e10), ("between nodes", 2.5e-5, between_bytes_per_s))
        for pairs in ("one", "all")
    )  # fmt: skip
    measured = MeasuredStep(
        model="m", image_size=224, batch_per_rank=batch, device="x", forward_s=Quantity(value=step_s / 3),
        backward_s=Quantity(value=2 * step_s / 3), update_s=Quantity(value=1e-4), ready=(), jitter=Quantity(value=jitter),
    )  # fmt: skip
    of_exchanges = (Stolen(model="m", share=stolen, exchange_wait_s=wait_s),) if stolen or wait_s else ()
    left = (Residual(model="m", ranks=2, reduction="ring", seconds=Quantity(value=residual_s)),) if residual_s else ()
    return Profile(links=links, steps=(measured,), stolen=of_exchanges, residuals=left)


def found(name: str, ranks: int, memory: MemoryBudget | None = None, **machine_of: float) -> tuple[SearchModel, Found]:
    """What is found for a model with a batch of 256 images."""
    layers = layers_of(name)
    model = SearchModel(layers, World.even(ranks // 4, 4), machine(layers, **machine_of), memory)
    return model, search(model, Step(256, "ring", 8 * MIB))


@pytest.mark.parametrize("ranks", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_known_is_faster_and_the_result_is_proven(name: str, ranks: int) -> None:
    model, one = found(name, ranks)
    assert one.is_proven and one.bound_ns == one.step_ns == StepSimulator(one.problem).step_ns(one.choice)
    names = [known.name for known in one.known]
    assert "data-parallel" in names and ADDITIVE in names and ("one-weird-trick" in names) == (name != "squeezenet1_1")
    assert all(known.step_ns >= one.step_ns for known in one.known)
    placement = model.placement(one.problem, one.choice, "found")
    assert faults(placement, 256) == [] and model.choice(one.problem, placement) == one.choice
    groups = groups_of(one.problem, model.world)
    assert step_ns_of_ranks(one.problem, one.choice, groups) == one.step_ns


@pytest.mark.parametrize(("name", "limit_s", "most"), [("alexnet", 0.5, 1_000), ("googlenet_paper", 3.0, 10_000)])
def test_sixty_four_ranks_are_searched_in_seconds_with_proof(name: str, limit_s: float, most: int) -> None:
    """Of a processor, and the best of three, because tests share it with others."""
    layers, world, times = layers_of(name), World.even(16, 4), []
    for _ in range(3):
        began_s = time.process_time()
        one = search(SearchModel(layers, world, machine(layers)), Step(256, "ring", 8 * MIB))
        times.append(time.process_time() - began_s)
        assert one.is_proven and one.labels < most
    assert min(times) < limit_s, times


@pytest.mark.parametrize(("ranks_per_node", "between_bytes_per_s"), [(4, 1.25e8), (4, 1.25e10), (1, 1.25e10)])
def test_googlenet_with_its_heads_is_searched_with_a_proof_too(ranks_per_node: int, between_bytes_per_s: float) -> None:
    """The heads make it wide: what they read is decided long before the layers that make it."""
    layers = layers_of("googlenet_paper", heads=True)
    costs = machine(layers, between_bytes_per_s=between_bytes_per_s)
    world = World.even(64 // ranks_per_node, ranks_per_node)
    one = search(SearchModel(layers, world, costs), Step(256, "ring", 8 * MIB))
    assert one.is_proven and one.labels < 1_000_000


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize(("name", "least"), [("alexnet", 5), ("googlenet_paper", 10)])
def test_delta_simulation_has_a_fraction_of_the_events_of_full_simulation(name: str, least: int, ranks: int) -> None:
    _, one = found(name, ranks)
    simulator, draw = StepSimulator(one.problem), random.Random(1)
    delta, before = Delta(simulator, one.choice), simulator.events
    for _ in range(500):
        variable = draw.randrange(len(one.problem.allowed))
        delta.after({variable: draw.choice(one.problem.allowed[variable])})
    assert 500 * 2 * len(one.problem.names) > least * (simulator.events - before)


def test_one_weird_trick_is_found_again() -> None:
    """Convolutions by images, fully connected layers by outputs; twice as fast as data-parallel training."""
    _, one = found("alexnet", 32)
    grids = one.problem.grids_in(one.choice)
    assert all(grid == Grid(32, 1) for name, grid in grids.items() if name.startswith("features"))
    assert all(grids[f"classifier.{number}"].outputs >= 8 for number in (1, 4, 6))
    by_name = {known.name: known.step_ns for known in one.known}
    assert by_name["data-parallel"] > 2 * one.step_ns


def test_what_each_deviation_saves_is_the_step_with_it_against_the_step_without() -> None:
    _, one = found("alexnet", 16, between_bytes_per_s=1e9)
    base = (0,) * len(one.choice)
    (*_, last) = some = list(deviations(one.problem, one.choice, base))
    assert some and all(each.step_ns <= 0 for each in some), "otherwise undoing it would be faster"
    assert last.summed_bytes < 0 < last.exchange_ns
    costs = layer_costs(one.problem, one.choice)
    assert sum(cost.memory_bytes for cost in costs) == one.problem.memory(one.choice)


def test_what_a_profile_does_not_explain_delays_every_placement_alike() -> None:
    (plain, one), (_, other) = found("lenet", 8), found("lenet", 8, residual_s=0.25)
    assert other.step_ns - one.step_ns == 250_000_000 and other.bound_ns - one.bound_ns == 250_000_000
    assert [known.step_ns + 250_000_000 for known in one.known] == [known.step_ns for known in other.known]
    assert one.pipeline and other.pipeline and other.pipeline.step_ns - one.pipeline.step_ns == 250_000_000
    assert layer_costs(one.problem, one.choice)[-1] == layer_costs(other.problem, other.choice)[-1]
    (*_, unexplained, every), (*_, of_layers) = layer_rows(other), layer_rows(one)
    assert unexplained[:2] == ["unexplained", ""] and float(unexplained[4]) == 250.0
    assert float(every[4]) == pytest.approx(float(of_layers[4]) + 250, abs=0.02)
    alone = SearchModel(plain.layers, World.even(1, 1), machine(plain.layers, residual_s=0.25)).problem(
        Step(8, "ring", MIB)
    )
    assert not alone.update_ns[-1].any(), "a rank alone waits for nobody"


@pytest.mark.parametrize("name", ["alexnet", "googlenet_paper", "squeezenet1_1"])
def test_the_activations_of_a_rank_are_about_what_autograd_keeps(name: str) -> None:
    net, size, images = model_by_name(name, classes=10, stem="imagenet"), 64, 32
    layers = trace(net, size).layers
    problem = SearchModel(layers, World.even(1, 1), machine(layers)).problem(Step(images, "ring", 8 * MIB))
    weights = 3 * 4 * sum(layer.parameters for layer in layers)
    kept = memory(net, size, images).activations - 4 * images * 3 * size**2  # the images do not count here
    assert problem.memory((0,) * len(problem.allowed)) - weights == pytest.approx(kept, rel=0.2)


def test_a_limit_of_memory_forces_weights_apart() -> None:
    model, free = found("alexnet", 8)
    most = free.problem.memory((0,) * len(free.choice))
    model, tight = found("alexnet", 8, memory=MemoryBudget(limit_bytes=most * 7 // 10))
    assert tight.problem.memory(tight.choice) <= most * 7 // 10 and tight.is_proven
    assert tight.step_ns >= free.step_ns
    with pytest.raises(UserError, match="no placement on .* fits into 1,000 bytes for each rank"):
        found("alexnet", 8, memory=MemoryBudget(limit_bytes=1000))


def test_a_limit_of_memory_that_changes_nothing_costs_a_few_labels() -> None:
    _, free = found("googlenet_paper", 16)
    most = free.problem.memory(free.choice)
    _, roomy = found("googlenet_paper", 16, memory=MemoryBudget(limit_bytes=most))
    assert roomy.choice == free.choice and roomy.is_proven and roomy.problem.memory_limit_bytes == most
    assert roomy.labels < 1.5 * free.labels
    _, tight = found("googlenet_paper", 16, memory=MemoryBudget(limit_bytes=most - 1))
    assert tight.problem.memory(tight.choice) < most and tight.is_proven and tight.step_ns >= free.step_ns


def test_the_least_memory_that_any_grids_need_is_enough() -> None:
    """Nothing that a search is compared with fits, so that it begins with the grids that need the least memory."""
    problem = found("alexnet", 8)[1].problem
    least = problem.memory(best_choice(problem, problem.memory_bytes.astype(float), exchanges=0.0))
    _, one = found("alexnet", 8, memory=MemoryBudget(limit_bytes=least))
    assert problem.memory(one.choice) == least and one.is_proven
    assert all(problem.memory(known.choice) > least for known in one.known)
    with pytest.raises(UserError, match="no placement on .* fits into"):
        found("alexnet", 8, memory=MemoryBudget(limit_bytes=least - 1))


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("alexnet", "one-weird-trick"), ("alexnet", "grid:images=2,outputs=4"), ("googlenet_paper", "grid:images=4,outputs=2"),
     ("squeezenet1_1", "grid:images=4,outputs=2")],
)  # fmt: skip
@pytest.mark.parametrize("machine_of", [{}, {"jitter": 0.05}, {"stolen": 0.2, "wait_s": 1e-3}], ids=str)
def test_a_search_says_a_little_more_of_a_placement_than_a_prediction(
    name: str, strategy: str, machine_of: dict[str, float]
) -> None:
    """Both have the same costs. In a search all ranks wait for each exchange, and sums pause during it."""
    layers, world = layers_of(name), World.even(2, 4)
    costs = machine(layers, **machine_of)
    model = SearchModel(layers, world, costs)
    problem = model.problem(Step(256, "ring", 8 * MIB))
    choice = model.choice(problem, find_strategy(strategy)(layers, world))
    assert choice is not None
    asked = Question("m", [8], ["ring"], 4, 256, bucket_bytes=8 * MIB, layers=layers)
    predicted_s = float(total(PlacedSteps(costs, asked).parts(strategy, 8, "ring"))[0])
    assert predicted_s <= StepSimulator(problem).step_ns(choice) / 1e9 < 1.15 * predicted_s


def dense(count: int) -> tuple[Layer, ...]:
    """Layers each of which reads the outputs of all layers before it."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(3 if n == 0 else 4 * n, 4, 1) for n in range(count))
            self.last = nn.Linear(4 * count, 10)

        def forward(self, x: Tensor) -> Tensor:
            made = [self.layers[0](x)]
            for layer in self.layers[1:]:
                made.append(layer(torch.cat(made, 1)))
            return self.last(torch.cat(made, 1).mean((2, 3)))  # type: ignore[no-any-return]

    return trace(Dense(), 8).layers


@pytest.mark.parametrize("limited", [False, True])
def test_a_network_whose_layers_all_read_each_other_is_walked_and_not_proven(limited: bool) -> None:
    """Tables with an axis for each of its layers would not fit into any memory."""
    layers = dense(24)
    model = SearchModel(layers, World.even(2, 2), machine(layers, between_bytes_per_s=1e5))
    free = search(model, Step(64, "ring", MIB), (MIB,))
    if limited:
        memory = MemoryBudget(limit_bytes=free.problem.memory(_lightest(free.problem)))
        model = SearchModel(layers, World.even(2, 2), machine(layers, between_bytes_per_s=1e5), memory)
    one = search(model, Step(64, "ring", MIB), (MIB,))
    assert not one.is_proven and 0 < one.bound_ns < one.step_ns == StepSimulator(one.problem).step_ns(one.choice)
    assert one.problem.fits(one.choice) and all(
        known.step_ns >= one.step_ns for known in one.known if one.problem.fits(known.choice)
    )
    assert ADDITIVE not in [known.name for known in one.known]


def test_costs_of_the_largest_share_count() -> None:
    layers = layers_of("lenet")
    model = SearchModel(layers, World.even(1, 3), machine(layers))
    problem = model.problem(Step(10, "ring", MIB))
    whole = SearchModel(layers, World.even(1, 1), machine(layers)).problem(Step(10, "ring", MIB))
    three = list(problem.grids).index(Grid(3, 1))
    conv = 0
    compute = [int(one.forward_ns[conv, at] + one.backward_ns[conv, at]) for one, at in ((problem, three), (whole, 0))]
    assert 0.4 * compute[1] <= compute[0] < 0.6 * compute[1], "4 of 10 images, and the weights"
    data_parallel = find_strategy("data-parallel")(layers, model.world)
    assert model.choice(problem, data_parallel) == (three,) * len(problem.allowed)


def test_a_slice_of_outputs_keeps_the_whole_input_that_it_gathers() -> None:
    layers = layers_of("alexnet")
    problem = SearchModel(layers, World.even(1, 4), machine(layers)).problem(Step(256, "ring", 8 * MIB))
    number, column = problem.names.index("features.3"), problem.grids.index(Grid(1, 4))
    second, first = layers[number], layers[number - 1]
    assert first.output_elements == 27 * 27
    made = second.outputs // 4 * (second.made_elements + second.spread * second.output_elements)
    weights = 3 * second.parameters // 4
    assert problem.memory_bytes[number, column] == 4 * (weights + 256 * (made + 64 * 27 * 27))
