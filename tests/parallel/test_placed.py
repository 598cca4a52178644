"""Training under a strategy is training on one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from exact import size_of
from placed import BATCH, config_of, trained, unpacked
from ranks import on_ranks
from users_models import sequential

from firetrain.bench.step import make_batch
from firetrain.config import Config, ConfigError
from firetrain.parallel.catalogue import make_worker, worker_of
from firetrain.transport.transport import Transport

SPLIT = (
    "one-weird-trick",
    "tensor-parallel:split=outputs",
    "tensor-parallel:split=inputs",
    "tensor-parallel:split=alternate",
)


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "lamb"])
@pytest.mark.parametrize(
    ("strategy", "ranks"), [*((name, 3) for name in SPLIT), ("grid:images=2,outputs=2", 4), ("pipeline", 3),
                            ("pipeline:stages=2,micro_batches=3,schedule=1f1b,replicas=2", 4)],
)  # fmt: skip
def test_steps_and_evaluations_are_those_of_one_process(strategy: str, ranks: int, optimizer: str) -> None:
    options = [f"optimizer.name={optimizer}", *(["optimizer.weight_decay=0.01"] if optimizer == "lamb" else [])]
    (alone,) = on_ranks(1, trained, options, range(4))
    for one in on_ranks(ranks, trained, [*options, f"strategy.name={strategy}"], range(4)):
        assert one["losses"] == pytest.approx(alone["losses"], rel=2e-5)
        assert one["score"] == alone["score"] and one["score"][1] == 13


REPLICATED = (
    "one-weird-trick:replicas=2", "tensor-parallel:split=alternate,replicas=2", "tensor-parallel:split=inputs,replicas=2",
    "grid:images=2,outputs=2", "pipeline:stages=2,replicas=2", "pipeline:stages=2,replicas=2,micro_batches=3",
)  # fmt: skip


@pytest.mark.parametrize("strategy", ["one-weird-trick", *REPLICATED])
def test_steps_with_fewer_images_than_ranks_are_those_of_one_process(strategy: str) -> None:
    """A rank without images has no gradients that say when to sum, and sums with each of its groups nevertheless."""
    (alone,) = on_ranks(1, trained, [], range(3), b"", 2)
    for one in on_ranks(4, trained, [f"strategy.name={strategy}"], range(3), b"", 2):
        assert one["losses"] == pytest.approx(alone["losses"], rel=2e-5)
        assert one["score"] == alone["score"]


@pytest.mark.parametrize("strategy", ["tensor-parallel:replicas=2", "grid:images=2,outputs=2"])
def test_batch_norm_of_all_ranks_between_layers_of_some_does_not_block_a_rank_without_images(strategy: str) -> None:
    normalised = ["model.name=squeezenet_mini", "model.batch_norm=true", f"strategy.name={strategy}"]
    first, *others = on_ranks(4, trained, normalised, range(2), b"", 3)
    assert all(one["losses"] == first["losses"] for one in others)


MODELS = {
    "alexnet_thesis": ("one-weird-trick", 56), "googlenet": ("one-weird-trick", 32),
    "googlenet_mini": ("branch-parallel", 16), "lenet_300_100": ("tensor-parallel:split=alternate", 28),
    "nin": ("tensor-parallel:split=inputs", 32),
    "squeezenet1_0": ("pipeline:stages=2,micro_batches=2", 32), "squeezenet_mini": ("branch-parallel", 16),
}  # fmt: skip


MIXED = """
ranks: 4
default: {images: 4}
layers:
  conv2: {images: 2, outputs: 2}
  fc1: {images: 4}
  fc2: {outputs: 4}
"""


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_layers_with_the_same_sharers_may_have_others_between_them(optimizer: str, tmp_path: Path) -> None:
    """Their gradients are in different buckets, whose sums the ranks begin in the same order."""
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    (expected,) = on_ranks(1, trained, [f"optimizer.name={optimizer}"], range(3))
    for found in on_ranks(4, trained, [f"optimizer.name={optimizer}", f"strategy.name={file}"], range(3)):
        assert found["losses"] == pytest.approx(expected["losses"], rel=2e-5)


@pytest.mark.parametrize("model", MODELS)
def test_other_models_train_under_a_strategy_with_the_dropout_of_one_process(model: str) -> None:
    """The second loss depends on the first step's masks; with batch norm, the ranks of the strategy share its images alike."""
    strategy, size = MODELS[model]
    options = [f"model.name={model}", f"data.image_size={size}"]
    normalised = model in ("alexnet_thesis", "googlenet")
    expected = on_ranks(2 if normalised else 1, trained, options, range(2))[0]["losses"]
    for one in on_ranks(2, trained, [*options, f"strategy.name={strategy}"], range(2)):
        assert one["losses"] == pytest.approx(expected, rel=1e-3)


def parameters(transport: Transport, overrides: list[str]) -> int:
    worker = make_worker(config_of(*overrides), 10, transport, {})
    found = worker.parameters
    worker.close()
    return found


def test_all_parameters_of_the_model_are_counted_also_those_in_no_layer_of_the_placement() -> None:
    heads = [
        "model.name=googlenet_paper",
        "data.image_size=32",
        "model.auxiliary_heads=true",
        "model.auxiliary_weight=0",
    ]
    (alone,) = on_ranks(1, parameters, heads)
    assert on_ranks(2, parameters, [*heads, "strategy.name=one-weird-trick"]) == [alone, alone]


@pytest.mark.parametrize("strategy", ["one-weird-trick", "tensor-parallel:split=alternate", "pipeline:stages=1"])
def test_batch_norm_is_that_of_data_parallel_training_on_the_same_ranks(strategy: str) -> None:
    """Each rank normalises its share of the images by itself; the running statistics are averaged for evaluation."""
    options = ["model.batch_norm=true", "optimizer.name=lars"]
    whole = on_ranks(3, trained, options, range(4))[0]
    found = on_ranks(3, trained, [*options, f"strategy.name={strategy}"], range(4))
    for one in found:
        assert one["losses"] == pytest.approx(whole["losses"], rel=2e-5)
        assert one["score"] == whole["score"]
    theirs, ours = unpacked(whole)["model"], unpacked(found[0])["model"]
    names = [name for name in theirs if "running" in name]
    assert len(names) == 4
    for name in names:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("option", "tolerance"), [("label_smoothing=0.1", 2e-5), ("precision=bfloat16", 2e-2)])
@pytest.mark.parametrize(
    ("strategy", "ranks"), [*((name, 2) for name in SPLIT), ("pipeline:stages=2,micro_batches=2", 2),
                            ("grid:images=2,outputs=2", 4), ("tensor-parallel:split=alternate,replicas=2", 4)],
)  # fmt: skip
def test_a_strategy_trains_with_label_smoothing_and_in_bfloat16(
    strategy: str, ranks: int, option: str, tolerance: float
) -> None:
    (plain,), (alone,) = on_ranks(1, trained, [], range(3)), on_ranks(1, trained, [option], range(3))
    for one in on_ranks(ranks, trained, [option, f"strategy.name={strategy}"], range(3)):
        assert one["losses"] == pytest.approx(alone["losses"], rel=tolerance) and one["losses"] != plain["losses"]


@pytest.mark.parametrize(
    ("strategy", "ranks"), [*((name, 3) for name in (*SPLIT, "pipeline:stages=3", "pipeline:stages=3,micro_batches=2")),
                            ("grid:images=2,outputs=2", 4), ("one-weird-trick:replicas=2", 4)],
)  # fmt: skip
def test_micro_batches_of_the_config_are_cut_from_the_global_batch(strategy: str, ranks: int) -> None:
    (alone,) = on_ranks(1, trained, ["optimizer.name=lars"], range(3))
    options = ["optimizer.name=lars", f"strategy.name={strategy}", "batch.per_rank_max=1"]
    for one in on_ranks(ranks, trained, options, range(3)):
        assert one["losses"] == pytest.approx(alone["losses"], rel=2e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "lamb"])
def test_branches_train_with_the_options_of_one_process(optimizer: str) -> None:
    options = ["model.name=squeezenet_mini", "data.image_size=16", f"optimizer.name={optimizer}", "label_smoothing=0.1"]
    options += ["optimizer.weight_decay=0.01"] if optimizer == "lamb" else []
    (alone,) = on_ranks(1, trained, options, range(4))
    for one in on_ranks(2, trained, [*options, "strategy.name=branch-parallel", "batch.per_rank_max=2"], range(4)):
        assert one["losses"] == pytest.approx(alone["losses"], rel=1e-4) and one["score"] == alone["score"]


@pytest.mark.parametrize("reduction", ["auto", "hierarchical", "native", "tree", "top-k", "powersgd"])
def test_shares_that_several_ranks_hold_are_summed_by_any_reduction(reduction: str) -> None:
    """Exactly, or, by a reduction that loses something, alike on all ranks."""
    lossy = reduction in ("top-k", "powersgd")
    (alone,) = on_ranks(1, trained, [], range(4))
    options = [f"reduction.name={reduction}", "strategy.name=one-weird-trick:replicas=2"]
    first, *others = (one["losses"] for one in on_ranks(4, trained, options, range(4)))
    assert all(losses == first for losses in others)
    assert first[:1] == pytest.approx(alone["losses"][:1], rel=2e-5) and max(first) < 3
    assert (first == pytest.approx(alone["losses"], rel=2e-5)) != lossy


@pytest.mark.parametrize("strategy", ["one-weird-trick", "tensor-parallel", "pipeline:micro_batches=2"])
def test_no_batch_of_an_epoch_is_cut_into_larger_micro_batches_than_memory_is_kept_for(strategy: str) -> None:
    # of five shares, one of a smaller batch may be larger; LeNet has too few layers for five stages
    for ranks in (2, 3) if strategy.startswith("pipeline") else (2, 3, 5):
        assert on_ranks(ranks, room_for_every_batch, strategy) == [[]] * ranks


def room_for_every_batch(transport: Transport, strategy: str) -> list[tuple[int, int, int]]:
    """(limit, images, micro-batch) of each batch of up to 43 images that is cut into too large pieces."""
    wrong = []
    for most in (1, 3, 4, 7, 13):
        worker = make_worker(
            config_of("batch.global_size=43", f"batch.per_rank_max={most}", f"strategy.name={strategy}"),
            10,
            transport,
            {},
        )
        for images in range(44):
            pieces = [len(worker.reads(some)) for some in worker.micro_batches(np.arange(images))]
            wrong += [(most, images, piece) for piece in pieces if piece > min(most, worker.largest_batch)]
        worker.close()
    return wrong


class Narrow(torch.nn.Sequential):
    """Two classes, so that one of three ranks has nothing of the last layer."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__(
            torch.nn.Conv2d(3, 6, 3, stride=2), torch.nn.Tanh(), torch.nn.AvgPool2d(2), torch.nn.Flatten(),
            torch.nn.Linear(54, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2),
        )  # fmt: skip


def losses_of(
    transport: Transport, config: Config, model: torch.nn.Module, size: int, classes: int, images: int
) -> list[float]:
    """The losses of three steps of `images` images."""
    worker, losses = worker_of(config, model, transport), []
    for _ in range(3):
        some = worker.micro_batches(np.arange(images))
        batches = [make_batch(worker.reads(piece), size, classes) for piece in some]
        totals = worker.backward(iter(batches), some, 0)
        worker.finish(float(images))
        worker.update(0.1)
        losses.append(transport.sum(totals).tolist()[0])
    worker.close()
    return losses


def losses_of_two_classes(transport: Transport, strategy: str, images: int) -> list[float]:
    config = config_of("data.image_size=16", f"strategy.name={strategy}")
    return losses_of(transport, config, Narrow(), 16, 2, images)


@pytest.mark.parametrize("images", [1, 3, 8])
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("one-weird-trick", 4), ("one-weird-trick", 3), ("tensor-parallel", 4), ("tensor-parallel:split=inputs", 4),
     ("grid:images=1,outputs=4", 4), ("grid:images=2,outputs=2", 4)],
)  # fmt: skip
def test_a_rank_that_needs_the_input_of_a_layer_and_has_none_of_its_outputs_goes_on(
    strategy: str, ranks: int, images: int
) -> None:
    (alone,) = on_ranks(1, losses_of_two_classes, "data-parallel", images)
    for losses in on_ranks(ranks, losses_of_two_classes, strategy, images, timeout_s=20):
        assert losses == pytest.approx(alone, rel=2e-5)


def losses_of_a_users_model(transport: Transport, strategy: str) -> list[float]:
    config = config_of("optimizer.name=lars", f"strategy.name={strategy}")
    torch.manual_seed(1)
    return losses_of(transport, config, sequential().float(), size_of("sequential"), 10, BATCH)


@pytest.mark.parametrize("strategy", ["one-weird-trick", "tensor-parallel:split=alternate", "pipeline:micro_batches=2"])
def test_a_user_s_model_trains_as_on_one_process(strategy: str) -> None:
    (alone,) = on_ranks(1, losses_of_a_users_model, "data-parallel")
    assert alone[2] < alone[0]
    for losses in on_ranks(2, losses_of_a_users_model, strategy):
        assert losses == pytest.approx(alone, rel=2e-5)


@pytest.mark.parametrize(
    ("override", "told"),
    [("compile=true", "--set compile=true: compile: strategy one-weird-trick does not support compile: true"),
     ("data.on_bad_image=skip", "--set data.on_bad_image=skip: data.on_bad_image: strategy one-weird-trick does not support"),
     ("strategy.name=one-weird-tric", "did you mean one-weird-trick?"),
     ("strategy.parameters.inside=perhaps", "inside is 'perhaps', expected true or false")],
)  # fmt: skip
def test_what_a_strategy_cannot_do_is_told(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of("model.name=squeezenet_mini", "strategy.name=one-weird-trick", override)
    assert told in str(error.value)
