"""What a search prints says what it found: the advice, the proof, every layer, and what each deviation saves."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from test_search import layers_of
from torch import nn

from firetrain.cli.search import search
from firetrain.cluster import World
from firetrain.config import load_config
from firetrain.errors import UserError
from firetrain.models.graph import trace
from firetrain.records.profile import Profile, Quantity
from firetrain.search.model import SearchModel
from firetrain.search.search import search as search_model
from firetrain.search.searches import MARGIN, Searched, searches
from firetrain.search.step_simulator import StepSimulator
from firetrain.search.table import LAYER_HEADINGS, differences, explanation, headings, layer_rows, remarks, row
from firetrain.strategy.check import untrainable
from firetrain.strategy.layer import Layer


@cache
def searched(
    model: str, ranks: int, bytes_per_s: float = 1e8, batch: str = "global_size=64", spread: float = 0.0,
    limit_bytes: int | None = None, layers: tuple[Layer, ...] = (),
) -> Searched:  # fmt: skip
    """A search on nodes of one rank, with links of this speed and a step whose time is known to within `spread`.

    `layers`: by default those of the model.
    """
    assumed = Profile.find("uncalibrated")
    size = 28 if model == "lenet" else 224
    stem = "small" if model == "lenet" else "imagenet"
    label = f"{model}+small@{size}" if stem == "small" else f"{model}@{size}"
    forward_s = Quantity(value=0.1, low=0.1 * (1 - spread), high=0.1 * (1 + spread)) if spread else Quantity(value=0.1)
    step = assumed.steps[0].model_copy(
        update={"model": label, "batch_per_rank": 8, "forward_s": forward_s, "backward_s": Quantity(value=0.2)}
    )
    links = tuple(link.model_copy(update={"bytes_per_s": bytes_per_s, "spread": 0.0}) for link in assumed.links)
    known = assumed.model_copy(update={"steps": (step,), "links": links})
    options = [f"model.name={model}", f"model.stem={stem}", f"data.image_size={size}", f"batch.{batch}"]
    config = load_config("squeezenet-digits", [*options, "reduction.name=ring"]).config
    (found,) = searches(config, known, lambda _: layers or layers_of(model), [World.even(ranks, 1)], limit_bytes)
    return found


def test_the_advice_is_the_fastest_of_all() -> None:
    slow, fast = searched("alexnet", 4, bytes_per_s=1e7), searched("squeezenet1_1", 4, bytes_per_s=1e9)
    assert slow.step_ns < slow.alone_ns and not slow.placement().is_data_parallel
    assert list(remarks(fast))[0] == "4 ranks on 4 nodes, 1 each: use data-parallel"
    alone = searched("lenet", 8, bytes_per_s=1e3)
    assert alone.alone_ns <= alone.step_ns and list(remarks(alone))[0].endswith("one rank alone is as fast; use one")
    for one in (slow, fast, alone):
        assert re.search(r"proven, no other grids are faster \(\d+ labels?, \d+\.\d\d s\)", list(remarks(one))[-1])


def test_a_placement_that_cannot_be_trained_is_replaced_by_the_fastest_that_can() -> None:
    """Layers with at most four outputs are fastest on four of eight ranks, so that the others have no weights."""
    net = nn.Sequential(nn.Conv2d(3, 4, 28), nn.Flatten(), nn.Linear(4, 2))
    one = searched("lenet", 8, bytes_per_s=1e4, layers=trace(net, 28).layers)
    assert "ranks 0, 2, 4, 6 would have no weights" in (one.fault() or "")
    ns, placement, _ = one.written()
    assert ns > one.step_ns and next(untrainable(placement, 64), None) is None
    told = "\n".join(remarks(one))
    assert f"recommended is {placement.strategy}, which takes {ns / 1e6:.2f} ms a step" in told
    assert yaml.safe_load(one.file())["searched"]["step_ms"] == pytest.approx(ns / 1e6)
    needed = one.found.problem.memory(one.found.choice)
    limited = searched("lenet", 8, bytes_per_s=1e4, layers=one.model.layers, limit_bytes=needed)
    assert limited.recommended is None and "cannot be trained" in "\n".join(remarks(limited))
    with pytest.raises(UserError, match="no placement that was found can be trained: ranks 0, 2, 4, 6 would have no"):
        limited.file()


def test_data_parallel_is_recommended_unless_another_placement_gains_more_than_predictions_err() -> None:
    little, much = searched("alexnet", 4, bytes_per_s=1e9), searched("alexnet", 4, bytes_per_s=1e7)
    ns, placement, bucket_mib = little.written()
    assert yaml.safe_load(little.file())["searched"]["bucket_mib"] == bucket_mib
    assert not little.placement().is_data_parallel and placement.is_data_parallel
    assert 1 < ns / little.step_ns < 1 + MARGIN
    longer = f"{ns / little.step_ns - 1:.1%} longer than the fastest"
    assert list(remarks(little))[0].endswith(f": use data-parallel, which is simpler; its step is {longer}")
    assert yaml.safe_load(little.file())["searched"]["step_ms"] == pytest.approx(ns / 1e6)
    assert little.as_json()["recommended"] == "data-parallel" and little.as_json()["recommended_s"] == ns / 1e9
    also_additive = searched("squeezenet1_1", 4, bytes_per_s=1e9)
    assert also_additive.as_json()["recommended"] == "data-parallel", "not by the name of the search that finds it, too"
    assert next(one.default for one in search.params if one.name == "margin_percent") / 100 == MARGIN
    assert not replace(little, margin=0.0).written().placement.is_data_parallel, "with no margin the fastest"
    ns, placement, _ = much.written()
    assert ns == much.step_ns and not placement.is_data_parallel and "data-parallel" not in "".join(remarks(much))


def test_data_parallel_is_recommended_with_the_buckets_that_suit_it_best() -> None:
    one = searched("alexnet", 8, bytes_per_s=1e9)
    found = search_model(one.model, one.step)
    (plain,) = [known for known in found.known if known.name == "data-parallel"]
    ns, placement, bucket_mib = replace(one, found=found, margin=1.0).written()
    assert placement.is_data_parallel and (ns, bucket_mib * 2**20) == (plain.step_ns, plain.bucket_bytes)
    assert plain.bucket_bytes != found.problem.bucket_bytes, "other than those of the grids"


def test_a_pipeline_that_is_faster_than_all_grids_is_explained_beside_data_parallel() -> None:
    one = searched("alexnet", 4, bytes_per_s=1e6)
    assert one.is_pipeline and one.found.pipeline
    told = next(explanation(one))
    saved_ms, computes_ms, plain_ms, waits_ms, rest_ms, plain_rest_ms = map(float, re.findall(r"\d+\.\d\d", told))
    (plain,) = [known for known in one.found.known if known.name == "data-parallel"]
    assert told.startswith(f"{one.found.pipeline.name} in place of data-parallel saves ")
    assert saved_ms == pytest.approx((plain.step_ns - one.step_ns) / 1e6, abs=0.02)
    assert computes_ms + waits_ms + rest_ms == pytest.approx(one.step_ns / 1e6, abs=0.02)
    assert plain_ms + plain_rest_ms == pytest.approx(plain.step_ns / 1e6, abs=0.02)
    assert computes_ms >= max(one.found.pipeline.replica.compute_s) * 1e3 - 0.01


def test_fewer_ranks_are_an_answer() -> None:
    few, many = (searched("alexnet", ranks, bytes_per_s=1.5e7) for ranks in (2, 16))
    assert few.step_ns < many.step_ns < many.alone_ns, "exchanges take longer than they save"
    assert (
        list(remarks(many, [few, many]))[0]
        == "16 ranks on 16 nodes, 1 each: 2 ranks on 2 nodes, 1 each are as fast; use fewer"
    )
    assert "use fewer" not in "".join(remarks(few, [few, many]))


def test_fewer_ranks_are_no_answer_if_they_compute_fewer_images() -> None:
    """A step of more ranks takes longer, but has as many more images."""
    few, many = (searched("squeezenet1_1", ranks, 1e8, batch="per_rank=8") for ranks in (2, 4))
    assert few.step_ns < many.step_ns < 2 * few.step_ns
    assert "use fewer" not in "".join(remarks(many, [few, many]))


def test_one_rank_is_no_answer_if_it_has_not_the_memory() -> None:
    alone = searched("lenet", 8, bytes_per_s=1e3)
    assert alone.alone_fits and "use one" in list(remarks(alone))[0]
    needed = alone.found.problem.memory(alone.found.choice)
    limited = searched("lenet", 8, bytes_per_s=1e3, limit_bytes=needed)
    assert not limited.alone_fits and limited.alone_ns <= limited.step_ns
    assert "use one" not in "".join(remarks(limited))
    cells = dict(zip(headings([limited]), row(limited, [limited]), strict=True))
    too_large = limited.as_json()["too_large"]
    assert cells["one rank"] == "too large" and "data-parallel" in too_large
    assert {known.name for known in limited.found.known if cells[known.name] == "too large"} == set(too_large)


def test_a_row_has_the_milliseconds_of_everything_that_was_compared() -> None:
    one = searched("alexnet", 4)
    cells = dict(zip(headings([one]), row(one, [one]), strict=True))
    assert cells["nodes x ranks"] == "4 x 1" and cells["95 %"] == "-", "all speeds are assumed"
    for name, known in {known.name: known for known in one.found.known}.items():
        assert float(cells[name]) == pytest.approx(known.step_ns / 1e6, abs=0.006)
    assert float(cells["grids ms"]) <= min(float(cells[known.name]) for known in one.found.known)


def test_a_step_whose_speeds_are_uncertain_has_an_interval() -> None:
    one = searched("alexnet", 4, spread=0.2)
    low_ms, high_ms = map(float, row(one, [one])[headings([one]).index("95 %")].split(" to "))
    assert low_ms < one.found.step_ns / 1e6 < high_ms < 1.3 * low_ms


def test_the_last_row_of_the_layers_is_their_sum() -> None:
    one = searched("alexnet", 4)
    *rows, last = layer_rows(one.found)
    assert len(rows) == len(one.found.problem.names) and {len(cells) for cells in (*rows, last)} == {
        len(LAYER_HEADINGS)
    }
    for column in range(2, len(LAYER_HEADINGS)):
        assert sum(float(cells[column]) for cells in rows) == pytest.approx(float(last[column]), abs=0.1 * len(rows))


def test_differences_of_two_placements_are_the_same_both_ways() -> None:
    one = searched("alexnet", 4)
    there, back = (
        list(differences(one, *names))
        for names in (("one-weird-trick", "data-parallel"), ("data-parallel", "one-weird-trick"))
    )
    assert (
        there[0] == back[0] == f"4 ranks on 4 nodes, 1 each, buckets of {one.found.problem.bucket_bytes / 2**20:g} MiB:"
    )
    assert there[1:3] == back[2:0:-1] and there[1].startswith("one-weird-trick: ")
    assert len(there) == len(back) == 4, "three neighbouring layers"
    for line, other in zip(there[3:], back[3:], strict=True):
        assert " 1 x 4 in place of 4 x 1 " in line and " 4 x 1 in place of 1 x 4 " in other
        summed, unsummed = (float(re.search(r"gradients to sum ([+-][\d.]+) MB", text)[1]) for text in (line, other))  # type: ignore[index]
        assert summed == -unsummed < 0


def test_differences_from_what_is_not_in_the_space_are_refused() -> None:
    one = searched("alexnet", 4)
    for strategy in ("tensor-parallel:split=inputs", "pipeline:stages=2,replicas=2"):
        with pytest.raises(UserError, match=f"{strategy} does not divide every layer by images and outputs"):
            list(differences(one, "data-parallel", strategy))
    with pytest.raises(UserError, match="did you mean data-parallel"):
        list(differences(one, "data-paralel", "data-parallel"))


def test_a_search_that_had_to_leave_out_labels_tells_how_far_it_may_be_from_the_optimum() -> None:
    one = searched("alexnet", 8, bytes_per_s=1e9)
    found = search_model(one.model, one.step, (one.step.bucket_bytes,), most_labels=2)
    assert found.bound_ns < one.found.bound_ns <= found.step_ns
    told = list(remarks(replace(one, found=found)))[-1]
    gap = re.search(r": not proven, the fastest step may be (\d+\.\d)% faster \(\d+ labels, ", told)
    assert gap and float(gap[1]) == pytest.approx(100 * (found.step_ns / found.bound_ns - 1), abs=0.06)


def test_ranks_that_are_not_numbered_node_by_node_train_data_parallel_too() -> None:
    layers = layers_of("alexnet")
    dealt = World((0, 1, 0, 1))
    placement = SearchModel(layers, dealt, searched("alexnet", 4).model._costs).placement
    problem = searched("alexnet", 4).found.problem
    assert placement(problem, (0,) * len(problem.allowed), "all by images").is_data_parallel


def test_a_file_has_the_checksum_of_its_profile(tmp_path: Path) -> None:
    one = searched("alexnet", 4)
    one.profile.save(tmp_path / "profile.json")
    kept = yaml.safe_load(one.file())["searched"]
    assert kept["profile"] == sha256((tmp_path / "profile.json").read_bytes()).hexdigest()
    assert kept["bound_ms"] == min(one.found.bound_ns, one.step_ns) / 1e6


def test_each_deviation_is_told_with_what_it_saves() -> None:
    found = searched("alexnet", 4).found
    lines = list(explanation(searched("alexnet", 4)))
    assert lines and all(" in place of 4 x 1 saves " in line or " costs " in line for line in lines)
    (whole,) = [line for line in lines if line.startswith("classifier.1")]
    saved_ms = float(re.search(r"saves ([\d.]+) ms", whole)[1])  # type: ignore[index]
    assert saved_ms > 0 and "gradients to sum -" in whole
    all_images = (0,) * len(found.choice)
    assert StepSimulator(found.problem).step_ns(all_images) - found.step_ns >= saved_ms * 1e6 - 5000
