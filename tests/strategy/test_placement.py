"""Every strategy computes everything exactly once, on any number of ranks; a placement with a hole or an overlap is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.strategy import Layer, Placement, Region, Split, faults, find_strategy
from firetrain.strategy.check import faults as check
from firetrain.strategy.pipeline import balanced
from firetrain.strategy.schedule import bubble, order
from firetrain.strategy.split import Block
from firetrain.strategy.traffic import traffic

# a small network with a module of three branches, a layer that needs all channels, a flattening, and odd numbers of channels
NET = (
    Layer("conv1", "weights", (), 3, 7, made_elements=64, output_elements=16, weights=9, biases=1, operations=12096),
    Layer("norm", "whole", ("conv1",), 7, 7, made_elements=16, output_elements=16),
    Layer("a", "weights", ("norm",), 7, 5, made_elements=16, output_elements=16, weights=1, biases=1, operations=560),
    Layer("b1", "weights", ("norm",), 7, 3, made_elements=16, output_elements=16, weights=1, biases=1, operations=336),
    Layer("b2", "weights", ("b1",), 3, 6, made_elements=16, output_elements=16, weights=9, biases=1, operations=2592),
    Layer("c", "channels", ("norm",), 7, 7, made_elements=16, output_elements=16),
    Layer("join", "channels", ("a", "b2", "c"), 18, 18, spread=4, made_elements=4, output_elements=1),
    Layer("fc1", "weights", ("join",), 72, 11, weights=1, biases=1, operations=792, is_linear=True),
    Layer("fc2", "weights", ("fc1",), 11, 10, weights=1, biases=1, operations=110, is_linear=True),
    Layer("loss", "whole", ("fc2",), 10, 10, is_loss=True),
)
ANY = (
    "data-parallel", "one-weird-trick", "one-weird-trick:inside=true", "tensor-parallel:split=outputs",
    "tensor-parallel:split=inputs", "tensor-parallel:split=alternate", "tensor-parallel:split=alternate,inside=true",
    "branch-parallel", "pipeline:stages=1",
)  # fmt: skip


@pytest.mark.parametrize("name", ANY)
@given(nodes=st.integers(1, 8), each=st.integers(1, 8), images=st.integers(0, 70))
@settings(max_examples=25, deadline=None)
def test_every_strategy_covers_everything_once(name: str, nodes: int, each: int, images: int) -> None:
    placement = find_strategy(name)(NET, World.even(nodes, each))
    assert not faults(placement, images)
    assert sum(split.images * split.outputs * split.inputs for split in placement.splits.values()) == sum(
        len(split.ranks) for split in placement.splits.values()
    )


@given(
    name=st.sampled_from(
        (
            "grid:images={a},outputs={b}", "pipeline:stages={a},replicas={b}", "tensor-parallel:split=alternate,replicas={b}",
            "pipeline:stages={a},replicas={b},micro_batches=3", "one-weird-trick:replicas={b}", "branch-parallel:replicas={b}",
            "tensor-parallel:split=inputs,replicas={b}", "tensor-parallel:split=outputs,replicas={b}",
        )
    ),
    a=st.integers(1, 6), b=st.integers(1, 10), images=st.integers(0, 70),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_every_replicated_strategy_covers_everything_once(name: str, a: int, b: int, images: int) -> None:
    assert not faults(find_strategy(name.format(a=a, b=b))(NET, World.even(1, a * b)), images)


def test_a_layer_with_fewer_channels_than_its_sources_make_is_named() -> None:
    wrong = tuple(replace(layer, inputs=17, outputs=17) if layer.name == "join" else layer for layer in NET)
    told = faults(find_strategy("data-parallel")(wrong, World.even(1, 2)), images=4)
    assert "join has 17 input channels, but a, b2, c make 18" in told


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("grid:images=2,outputs=3", 6), ("pipeline:stages=3", 3), ("pipeline:stages=2,replicas=2,micro_batches=4", 4),
     ("pipeline:stages=4,schedule=1f1b,micro_batches=3", 4), ("tensor-parallel:split=inputs,replicas=2", 6),
     ("branch-parallel:replicas=2", 4)],
)  # fmt: skip
@pytest.mark.parametrize("images", [0, 1, 3, 16, 17])
def test_strategies_that_need_a_certain_number_of_ranks(name: str, ranks: int, images: int) -> None:
    assert not faults(find_strategy(name)(NET, World.even(1, ranks)), images)


@pytest.mark.parametrize(
    ("name", "ranks", "told"),
    [("grid:images=2,outputs=3", 4, "images x outputs must be the number of ranks"),
     ("pipeline:stages=3", 4, "stages x replicas must be the number of ranks (stages: 3, replicas: 1, ranks: 4)"),
     ("pipeline:stages=7", 7, "6 layers with work, too few for 7 stages"),
     ("pipeline:schedule=gpip", 2, "unknown schedule 'gpip', did you mean gpipe?"),
     ("pipeline:stages=-1", 4, "stages must be 1 or more (stages: -1)"),
     ("pipeline:stages=0", 4, "stages must be 1 or more (stages: 0)"),
     ("pipeline:stages=2,replicas=0", 4, "replicas must be 1 or more (replicas: 0)"),
     ("pipeline:stages=two", 4, "stages is 'two', expected int"),
     ("pipeline:stages=1,schedule=1f1b,micro_batches=2", 2, "orders the passes of several stages: omit it with stages=1"),
     ("pipeline:schedule=1f1b", 2, "schedule=1f1b orders micro-batches, and a batch is one"),
     ("pipeline:schedule=gpipe,micro_batches=1", 2, "set micro_batches to 2 or more, or omit schedule"),
     ("pipeline:micro_batches=16777216", 2, "micro_batches must be at most 1024 (micro_batches: 16777216)"),
     ("pipeline:stages=2,replicas=3", 4, "stages x replicas must be the number of ranks (stages: 2, replicas: 3, ranks: 4)"),
     ("tensor-parallel:replicas=0", 2, "replicas must be 1 or more (replicas: 0)"),
     ("grid:images=0,outputs=4", 4, "images must be 1 or more (images: 0)"),
     ("grid:images=2,outputs=-2", 4, "outputs must be 1 or more (outputs: -2)"),
     ("tensor-parallel:split=output", 2, "did you mean outputs?"),
     ("tensor-parallel:replicas=3", 4, "replicas must divide the ranks (replicas: 3, ranks: 4)"),
     ("one-weird-tricks", 2, "unknown strategy 'one-weird-tricks', did you mean one-weird-trick?")],
)  # fmt: skip
def test_what_does_not_fit_is_told(name: str, ranks: int, told: str) -> None:
    with pytest.raises(UserError) as error:
        find_strategy(name)(NET, World.even(1, ranks))
    assert told in str(error.value)


@pytest.mark.parametrize("name", ["one-weird-trick", "tensor-parallel", "grid", "pipeline", "branch-parallel"])
def test_exchanges_of_replicas_stay_inside_the_nodes(name: str) -> None:
    world = World((0, 0, 1, 1, 2, 2))
    placement = find_strategy(f"{name}:inside=true")(NET, world)
    for images in (5, 12, 13, 17):
        messages = [*placement.messages(images)]
        assert messages and not faults(placement, images)
        across = [one for one in messages if world.node_of[one.sender] != world.node_of[one.receiver]]
        assert not across, (images, across)


@pytest.mark.parametrize("name", ["one-weird-trick", "tensor-parallel", "pipeline", "branch-parallel"])
def test_replicas_inside_the_nodes_are_as_many_as_the_nodes(name: str) -> None:
    two_nodes = World.even(2, 2)
    assert find_strategy(f"{name}:inside=true,replicas=2")(NET, two_nodes)
    with pytest.raises(UserError, match="inside=true makes a replica of each node: omit replicas=1"):
        find_strategy(f"{name}:inside=true,replicas=1")(NET, two_nodes)


def test_one_weird_trick_s_replicas_divide_fully_connected_layers_among_their_ranks() -> None:
    placement = find_strategy("one-weird-trick:replicas=2")(NET, World.even(1, 6))
    assert placement.sharers(NET[7]) == [(0, 3), (1, 4), (2, 5)] and not faults(placement, 7)
    assert placement.sharers(NET[0]) == [tuple(range(6))]


def test_a_model_without_the_layers_that_a_strategy_divides_is_refused() -> None:
    chain = tuple(layer for layer in NET if layer.name in ("conv1", "norm"))
    for name, told in (("one-weird-trick", "fully connected"), ("branch-parallel", "branches")):
        with pytest.raises(UserError, match=told):
            find_strategy(name)(chain, World.even(1, 2))


def broken(**changed: Split) -> Placement:
    whole = find_strategy("data-parallel")(NET, World.even(1, 4))
    return replace(whole, splits={**whole.splits, **changed})


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"norm": Split((0, 1), outputs=2)}, "norm needs all channels of an image in one place"),
     ({"c": Split((0, 1), inputs=2)}, "c has no weights that could be divided by inputs"),
     ({"a": Split((0, 4), images=2)}, "a is on ranks [4], but there are 4")],
)  # fmt: skip
def test_what_cannot_be_computed_is_told_with_its_layer(changed: dict[str, Split], told: str) -> None:
    assert any(told in fault for fault in check(broken(**changed), 8))


def test_a_layer_on_no_rank_is_told() -> None:
    whole = find_strategy("data-parallel")(NET, World.even(1, 2))
    assert check(replace(whole, splits={k: v for k, v in whole.splits.items() if k != "fc1"}), 4) == [
        "layer fc1 is on no rank"
    ]


class Overlapping(Split):
    """Gives rank 1 an image of rank 0 too."""

    def makes(self, layer: Layer, rank: int, images: int) -> Region:
        region = super().makes(layer, rank, images)
        return region._replace(first_image=max(0, region.first_image - 1))


class Crossed(Split):
    """Gives both ranks the weights of rank 0."""

    def block(self, layer: Layer, rank: int) -> Block | None:
        return super().block(layer, 0 if rank in (0, 1) else rank)


def test_weights_that_two_ranks_hold_and_others_that_none_holds_are_told() -> None:
    told = check(broken(fc1=Crossed((0, 1), outputs=2)), 8)
    assert "fc1: matrix of weights is not covered exactly once" in told


def test_an_output_that_two_ranks_make_is_told() -> None:
    told = check(broken(fc1=Overlapping((0, 1), images=2)), 8)
    assert "fc1: output is not covered exactly once" in told


def test_a_split_needs_as_many_ranks_as_shares() -> None:
    with pytest.raises(ValueError, match=r"2 x 3 x 1 shares .* \(ranks: \[0, 1, 2\]\)"):
        Split((0, 1, 2), images=2, outputs=3)


def test_sharers_hold_the_same_part() -> None:
    placement = find_strategy("grid:images=2,outputs=3")(NET, World.even(1, 6))
    layer = placement.by_name["fc1"]
    assert placement.sharers(layer) == [(0, 3), (1, 4), (2, 5)]
    split = placement.splits["fc1"]
    assert split.block(layer, 0) == split.block(layer, 3) != split.block(layer, 1)
    assert sum(placement.held(layer, rank) for rank in range(3)) == layer.parameters


def test_biases_are_held_once_also_if_there_are_more_ranks_than_inputs() -> None:
    placement = find_strategy("tensor-parallel:split=inputs")(NET, World.even(1, 5))
    layer = placement.by_name["conv1"]
    parts = [placement.splits["conv1"].block(layer, rank) for rank in range(5)]
    assert sum(part.has_bias for part in parts if part) == 1
    assert sum(placement.held(layer, rank) for rank in range(5)) == layer.parameters


@pytest.mark.parametrize("images", [32, 64, 128])
def test_the_bytes_of_one_weird_trick_are_those_of_its_formula(images: int) -> None:
    """AlexNet's three fully connected layers on p ranks: a rank gathers all inputs of all images, and returns their gradients."""
    widths, ranks = (9216, 4096, 4096, 200), 4
    names = ("conv", "fc6", "fc7", "fc8")
    net = [Layer("conv", "weights", (), 3, 256, spread=36, made_elements=36, output_elements=1, weights=9, biases=1)]
    net += [
        Layer(
            name, "weights", (names[number],), widths[number], widths[number + 1], weights=1, biases=1, is_linear=True
        )
        for number, name in enumerate(names[1:])
    ]
    net.append(Layer("loss", "whole", ("fc8",), 200, 200, is_loss=True))
    placement = find_strategy("one-weird-trick")(net, World.even(ranks, 1))
    # each rank sends its share of the activations to p - 1 others, and the gradients of what it gathered to those it came from
    gathered = 2 * (ranks - 1) / ranks * images * sum(widths[:3]) * 4
    # the loss is divided by images: the shares of the logits move once, and so do their gradients
    moved = 2 * (ranks - 1) / ranks**2 * images * widths[3] * 4
    found = traffic(placement, images)
    assert sum(found.sent) / ranks == pytest.approx(gathered + moved, rel=1e-12)
    assert found.reduced == {(0, 1, 2, 3): net[0].parameters * 4}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@given(stages=st.integers(1, 8), micro_batches=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_stages_of_a_schedule_never_wait_for_each_other_in_a_circle(
    schedule: str, stages: int, micro_batches: int
) -> None:
    """Every stage can go through its passes, if a pass starts when the neighbour's pass of the same micro-batch has ended."""
    left = [list(order(schedule, stage, stages, micro_batches)) for stage in range(stages)]
    done: set[tuple[int, str, int]] = set()
    moved = True
    while moved:
        moved = False
        for stage, passes in enumerate(left):
            if not passes:
                continue
            direction, number = passes[0]
            neighbour = stage - 1 if direction == "forward" else stage + 1
            if not 0 <= neighbour < stages or (neighbour, direction, number) in done:
                assert direction == "forward" or (stage, "forward", number) in done
                done.add((stage, direction, number))
                passes.pop(0)
                moved = True
    assert not any(left) and len(done) == 2 * stages * micro_batches


def test_a_stage_of_1f1b_keeps_few_activations() -> None:
    for stage in range(4):
        kept = most = 0
        for direction, _ in order("1f1b", stage, 4, 16):
            kept += 1 if direction == "forward" else -1
            most = max(most, kept)
        assert most == 4 - stage
    assert bubble(4, 8) == pytest.approx(3 / 11)


@pytest.mark.parametrize("work", [(5, 1, 1, 1, 6, 2, 3), (1, 1, 1, 1, 9, 2, 1), (3, 3, 20, 1, 4, 2)])
def test_stages_are_cut_so_that_the_largest_has_the_least_work_and_then_the_next(work: tuple[int, ...]) -> None:
    layers = [Layer(str(number), "channels", (), 1, 1, operations=one) for number, one in enumerate(work)]
    for stages in range(1, 6):
        found = [[layer.operations for layer in stage] for stage in balanced(layers, stages)]
        assert [one for stage in found for one in stage] == list(work) and len(found) == stages
        cuts = [(0, *inner, len(work)) for inner in combinations(range(1, len(work)), stages - 1)]
        of_cuts = ([sum(work[first:end]) for first, end in zip(cut, cut[1:], strict=False)] for cut in cuts)
        assert sorted(map(sum, found), reverse=True) == min(sorted(one, reverse=True) for one in of_cuts)


def test_among_cuts_of_equal_work_the_one_is_taken_that_sends_least() -> None:
    """A pooling does no work: before it four times as many numbers are sent."""
    conv, pool, other, fc = (
        Layer(name, "channels", sources, 8, 8, output_elements=elements, operations=work)
        for name, sources, elements, work in (
            ("conv", (), 16, 5), ("pool", ("conv",), 4, 0), ("other", ("pool",), 64, 0), ("fc", ("other",), 1, 5)
        )
    )  # fmt: skip
    assert [len(stage) for stage in balanced([conv, pool, other, fc], 2)] == [2, 2]
