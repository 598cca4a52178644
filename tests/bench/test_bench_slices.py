"""Slices of layers are measured as placed models compute them, and searches use what was measured."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path

import pytest
import torch
from command import Command
from ranks import on_ranks

from firetrain.bench import slices
from firetrain.bench.needed_slices import with_needed_slices
from firetrain.bench.slices import Slices
from firetrain.cluster import World
from firetrain.config import load_config
from firetrain.config.label import model_label
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.records.measured_slice import Ceilings, Stolen
from firetrain.records.profile import Profile
from firetrain.strategy import find_strategy
from firetrain.strategy.slice import Slice, slices_of
from firetrain.transport.transport import Transport

LENET = (
    "squeezenet-digits",
    "--set",
    "model.name=lenet",
    "--set",
    "data.image_size=28",
    "--set",
    "reduction.name=ring",
)


def timed(transport: Transport, model: str, repeats: int = 1) -> Slices:
    config = load_config("squeezenet-digits", [f"model.name={model}", "data.image_size=32", "precision=float32"]).config
    whole = model_by_name(model, classes=10, stem="small").train()
    return Slices(config, whole, trace(whole, 32), 10, transport, repeats)


def shapes(transport: Transport, model: str, strategy: str) -> list[tuple[Slice, tuple[int, ...], tuple[int, ...]]]:
    """Each slice of a placement, the shape of what it makes, and the shape of the gradient of its weights."""
    made, found = timed(transport, model), []
    placement = find_strategy(strategy)(made.graph.layers, World.even(1, 4))
    for part in slices_of(placement, 6):
        if part.layer in made.graph.units:
            unit = made.graph.units[part.layer]
            output = slices._passes(made.graph, unit, part, made.config, transport)()
            output.sum().backward()
            found.append((part, tuple(output.shape), (part.outputs * unit.layer.spread, *unit.final)))
    return found


@pytest.mark.parametrize("strategy", ["data-parallel", "tensor-parallel:split=alternate", "grid:images=2,outputs=2"])
@pytest.mark.parametrize("model", ["alexnet", "googlenet_mini", "squeezenet1_1"])
def test_a_slice_makes_its_share_of_the_layer(model: str, strategy: str) -> None:
    (found,) = on_ranks(1, shapes, model, strategy)
    assert len(found) >= 8
    for part, made, expected in found:
        assert made == (part.images, *expected), part


def seconds(transport: Transport, wanted: list[Slice]) -> list[tuple[float, float]]:
    return timed(transport, "alexnet", repeats=3).seconds(wanted)


WIDE = Slice("features.3", 16, 192, 64)


def ceilings(transport: Transport) -> list[tuple[Ceilings, float]]:
    """The ceilings and the seconds of a forward pass of WIDE, in turn: other tests may take the processor from either."""
    one = timed(transport, "alexnet", repeats=3)
    return [(one.ceilings(), one.seconds([WIDE])[0][0]) for _ in range(5)]


def test_all_ranks_get_the_times_of_the_slowest() -> None:
    first, second = on_ranks(2, seconds, [Slice("features.3", 1, 24, 64), WIDE])
    assert first == second and all(each > 0 for both in first for each in both)
    assert sum(first[1]) > 4 * sum(first[0]), "128 times the work"


def test_ceilings_are_what_the_device_does_at_best() -> None:
    """No slice has more multiply-adds in a second."""
    (found,) = on_ranks(1, ceilings)
    assert all(1e8 < alone.bytes_per_s < 1e12 for alone, _ in found)
    layer = next(
        layer for layer in trace(model_by_name("alexnet", stem="small"), 32).layers if layer.name == WIDE.layer
    )
    fastest = WIDE.operations(layer) / min(forward_s for _, forward_s in found)
    assert fastest < 1.2 * max(alone.operations_per_s for alone, _ in found) < 2e12


def stolen(transport: Transport) -> Stolen:
    return timed(transport, "squeezenet1_1", repeats=3).stolen("a model")


def test_a_sum_beside_compute_takes_a_share_of_it() -> None:
    (alone,), both = on_ranks(1, stolen), on_ranks(2, stolen)
    assert alone == Stolen(model="a model", share=0.0) and both[0] == both[1] and 0 <= both[0].share < 1
    assert 0 < both[0].gradients_s < 1 and both[0].ranks == 2
    assert 0 <= both[0].exchange_wait_s < 0.5


def of_one_and_of_both(transport: Transport) -> list[int]:
    """The numbers of ranks that have measured what communication takes, in a profile to which one rank's zeros were added."""
    config = load_config("squeezenet-digits", ["model.name=lenet", "data.image_size=28"]).config
    label, found = model_label(config.model, config.data), list[int]()
    profile = Profile.find("uncalibrated")
    for ranks in (1, 4):
        given = profile.with_ceilings(
            Ceilings(operations_per_s=1e9, bytes_per_s=1e9), Stolen(model=label, share=0.5, ranks=ranks)
        )
        measured = with_needed_slices(given, config, transport, 3, lambda known, layers, measure: known)
        found += [one.ranks for one in measured.stolen]
    return found


def test_what_one_rank_could_not_measure_is_measured_by_two_and_not_the_other_way_round() -> None:
    assert on_ranks(2, of_one_and_of_both)[0] == [2, 4]


def waits(transport: Transport, seconds: tuple[float, float]) -> float:
    """The wait of an exchange before which rank 0 and rank 1 compute for these seconds in turn."""
    one = timed(transport, "lenet", repeats=3)
    calls = count()

    def product(*arguments: object) -> None:
        time.sleep(seconds[0] if next(calls) % 2 == transport.rank else seconds[1])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "__matmul__", product)
        return one._exchange_wait_s(0.005)


def uneven_and_even(transport: Transport) -> float:
    """By how much the wait is longer where ranks are slow in turn; other load is in both."""
    return waits(transport, (0.045, 0.005)) - waits(transport, (0.025, 0.025))


def test_an_exchange_takes_longer_if_its_ranks_are_slow_in_turn() -> None:
    """Each rank computes 25 ms on average; both wait for the slower one, which takes 45 ms. Exchanges take some ms under load."""
    found = on_ranks(2, uneven_and_even)
    assert found[0] == found[1] == pytest.approx(20e-3, abs=8e-3)


def test_a_search_goes_on_until_all_of_its_slices_are_measured(firetrain: Command, tmp_path: Path) -> None:
    ranks = ("--ranks", "2", "--nodes", "2", "--save", "profile.json")
    done = firetrain("bench", "profile", *LENET, *ranks, "--steps", "3", "--repeats", "3", "--batches", "16,32")
    assert done.returncode == 0, done.stderr
    done = firetrain("bench", "slices", *LENET, *ranks, "--repeats", "3")
    assert done.returncode == 0, done.stderr
    searches = [int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("search ")]
    profile = Profile.load(tmp_path / "profile.json")
    assert searches[0] > 0 and searches[-1] == 0 and sum(searches) == len(profile.slices)
    assert profile.ceilings and 0 <= profile.stolen[0].share <= 1 and "of compute is lost" in done.stdout
    layers = trace(model_by_name("lenet", classes=10, stem="small"), 28).layers
    whole = {Slice(one.layer, one.images, one.outputs, one.inputs) for one in profile.slices if one.images == 16}
    own = slices_of(find_strategy("data-parallel")(layers, World.even(2, 1)), 32)
    assert {part for part in own if part.layer != "loss"} <= whole
    (found,) = json.loads(firetrain("search", *LENET, "--profile", "profile.json", "--ranks", "2", "--json").stdout)
    low, high = found["interval_s"]
    assert low < found["step_s"] < high
    again = firetrain("bench", "slices", *LENET, *ranks, "--repeats", "3", "--json")
    slices = Profile.load(tmp_path / "profile.json").slices
    assert again.returncode == 0 and len(slices) >= len(profile.slices)
    assert json.loads(again.stdout) == [one.model_dump() for one in slices]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--save", "none.json"], "none.json"),
        (["--save", "profile.json", "--set", "data.image_size=20"], "the profile has no steps of lenet+small@20"),
        (["--save", "profile.json", "--for-ranks", "many"], "expected a list of numbers"),
        (["--save", "profile.json", "--set", "model.name=squeezenet1_1", "--set", "data.image_size=16", "--for-ranks", "64"],
         "more ranks than images in the batch (32)"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused_before_any_rank_starts(
    options: list[str], told: str, firetrain: Command, tmp_path: Path
) -> None:
    Profile.find("uncalibrated").save(tmp_path / "profile.json")
    done = firetrain("bench", "slices", *LENET, "--ranks", "2", *options)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1, "no rank has failed"
