"""Gradients over ranks equal those of one process on the whole batch, however the batch is distributed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from needs import HOROVOD
from ranks import on_ranks
from torch import Tensor, nn

from firetrain.config import Config, load_text
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.data.batch import Normalised
from firetrain.data.catalogue import open_dataset
from firetrain.data.loader import Loader
from firetrain.data.order import global_batches, micro_batches, share
from firetrain.models.catalogue import make_model
from firetrain.models.dropout import set_dropout_keys
from firetrain.parallel.forward_backward import ForwardBackward, accumulate
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.gradients import Gradients
from firetrain.transport.checksum import RanksDiffer, check_same_bits
from firetrain.transport.transport import Transport

REDUCTIONS = ("native", "ring", "tree", "hierarchical", "parameter-server", *HOROVOD)
# all reductions that are not lossy
EVERY = (
    "native", *HOROVOD, "auto:candidates=ring+tree", *installed_names(TOPOLOGIES), "parameter-server:servers=2",
    "hierarchical:inner=ring,outer=double-tree",
)  # fmt: skip
# those that need equally many ranks on each node
EVENLY = ("hierarchical:inner=native", "hierarchical:inner=native,outer=ring")
TEXT = """\
name: test
model: {{name: {model}, stem: small{options}}}
data: {{name: digits, image_size: 16}}
batch: {{global_size: {batch}, per_rank_max: {most}}}
learning_rate: {{base: 0.01}}
"""


def config_of(model: str, batch: int, most: int | None = None, options: str = "") -> Config:
    text = TEXT.format(model=model, batch=batch, most="null" if most is None else most, options=options)
    return load_text(text, "test").config


def reference(config: Config, weights: dict[str, Tensor] | None = None) -> tuple[Tensor, float]:
    """Mean gradient and loss of the first global batch, by plain torch on one process; parameters in order, flat."""
    dataset = open_dataset(config.data)
    model = model_of(config, weights)
    samples = global_batches(len(dataset.train.labels), config.batch.global_size, config.seed, 0)[0]
    batch = next(Loader(dataset.train, 16, len(samples)).batches([samples], 0))
    images, labels = batch.on_device(torch.device("cpu"))
    from firetrain.data.draws import words
    from firetrain.parallel.forward_backward import DROPOUT

    set_dropout_keys(model, torch.from_numpy(words(config.seed, 0, samples, DROPOUT).astype("int64")))
    loss = nn.functional.cross_entropy(Normalised(model, images.device)(images), labels)
    loss.backward()
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    ), loss.item()


def model_of(config: Config, weights: dict[str, Tensor] | None) -> nn.Module:
    """The model of a config, with its initial weights or with these."""
    model = make_model(config.model, 10, config.seed)
    if weights:
        model.load_state_dict(weights)
    return model


def gradients_of(
    transport: Transport,
    config: Config,
    names: tuple[str, ...],
    weights: dict[str, Tensor] | None = None,
    bucket_bytes: int = 1 << 19,
) -> dict[str, Any]:
    """Gradients and loss of the same batch, by firetrain's own step on this rank's share, for each reduction."""
    torch.use_deterministic_algorithms(True)
    dataset = open_dataset(config.data)
    results = {}
    for name in names:
        model = model_of(config, weights)
        reduction = find_reduction(name, Context(transport))
        gradients = Gradients(model.parameters(), reduction, bucket_bytes)
        samples = global_batches(len(dataset.train.labels), config.batch.global_size, config.seed, 0)[0]
        pieces = list(micro_batches(share(samples, transport.rank, transport.size), config.batch.per_rank_max))
        loader = Loader(dataset.train, 16, max(map(len, pieces)))
        step = ForwardBackward(Normalised(model, transport.device), config, transport.device)
        totals = transport.sum(accumulate(step, loader.batches(pieces, 0), len(pieces), gradients, 0))
        gradients.finish(len(samples))
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
        check_same_bits([flat], transport, 0)
        results[name] = (
            flat.numpy() if transport.rank == 0 else None,
            float(totals[0] / totals[1]),
            len(gradients.buckets),
        )
        gradients.close()
        reduction.close()
    return results


def assert_same(results: dict[str, Any], config: Config, weights: dict[str, Tensor] | None = None) -> float:
    """Assert that all gradients and losses agree; returns the loss."""
    expected, loss = reference(config, weights)
    for name, (flat, own_loss, buckets) in results.items():
        assert buckets > 1
        error = float((torch.from_numpy(flat) - expected).norm() / expected.norm())
        assert error < 1e-5, f"{name}: gradients differ by {error:.1e}"
        assert own_loss == pytest.approx(loss, rel=1e-5), name
    return loss


@pytest.fixture(scope="module")
def learned() -> tuple[Config, dict[str, Tensor]]:
    """A small model that was trained on digits by plain torch, and the batch on which gradients are compared."""
    config = config_of("squeezenet_mini", batch=13)
    torch.manual_seed(1)
    data = open_dataset(config.data).train
    batch = next(Loader(data, 16, len(data.labels)).batches([np.arange(len(data.labels))], 0))
    images, labels = batch.on_device(torch.device("cpu"))
    model = make_model(config.model, 10, config.seed)
    logits = Normalised(model, images.device)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(300):
        part_of_it = torch.arange(step * 64, step * 64 + 64) % len(labels)
        set_dropout_keys(model, part_of_it)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits(images[part_of_it]), labels[part_of_it]).backward()
        optimizer.step()
    return config, {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (8, 3)])
def test_every_reduction_gives_the_gradients_of_one_process_where_something_was_learned(
    ranks: int, nodes: int, learned: tuple[Config, dict[str, Tensor]]
) -> None:
    """Compared at equal weights, so that rounding does not accumulate over steps."""
    config, weights = learned
    names = tuple(name for name in EVERY if ranks > 1 or "servers=2" not in name)
    names += EVENLY if ranks % nodes == 0 else ()
    results = on_ranks(ranks, gradients_of, config, names, weights, 1 << 13, nodes=nodes)[0]
    assert set(results) == set(names)
    loss = assert_same(results, config, weights)
    assert loss < math.log(10) / 2, loss


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_uneven_batches_and_dropout(ranks: int) -> None:
    config = config_of("squeezenet1_1", batch=13)
    assert_same(on_ranks(ranks, gradients_of, config, REDUCTIONS, nodes=1 if ranks < 3 else 2)[0], config)


@pytest.mark.parametrize("ranks", [1, 3])
def test_parameters_that_take_no_part(ranks: int) -> None:
    """GoogLeNet's auxiliary heads exist, but have no weight in the loss: they hold half of all gradients."""
    config = config_of("googlenet_paper", batch=9, options=", auxiliary_heads: true, auxiliary_weight: 0.0")
    assert_same(on_ranks(ranks, gradients_of, config, REDUCTIONS, nodes=1 if ranks < 3 else 2)[0], config)


def test_ranks_without_a_single_image() -> None:
    config = config_of("squeezenet1_1", batch=3)
    assert_same(on_ranks(5, gradients_of, config, REDUCTIONS, nodes=2)[0], config)


@pytest.mark.parametrize("most", [1, 4, 5])
def test_accumulation_over_micro_batches(most: int) -> None:
    config = config_of("squeezenet1_1", batch=13, most=most)
    assert_same(on_ranks(2, gradients_of, config, ("native", "tree"))[0], config)


def padded(transport: Transport, name: str, align: int) -> list[Any]:
    """The gradients of a step whose buckets begin each gradient at a multiple of `align` elements."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 13, bias=False), nn.Linear(13, 3))
    reduction = find_reduction(name, Context(transport))
    gradients = Gradients(model.parameters(), reduction, 1500, align)
    starts = [start for bucket in gradients.buckets for start in bucket.starts]
    assert all(start % align == 0 for start in starts) and len(starts) == 5
    assert all(len(bucket) % align == 0 for bucket in gradients.buckets)
    gradients.zero()
    gradients.last_pass = True
    model(torch.full((2, 7), float(transport.rank + 1))).square().sum().backward()
    gradients.flush()
    gradients.finish(4)
    return [p.grad.tolist() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", ["native", "ring", "powersgd:rank=2"])
def test_aligned_gradients_are_those_without_gaps(name: str) -> None:
    plain, aligned = (on_ranks(2, padded, name, align)[0] for align in (1, 64))
    for one, other in zip(plain, aligned, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def launches(transport: Transport) -> list[int]:
    """The number of started buckets at the arrival of each parameter's gradient in one backward pass."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    started: list[int] = []
    reduction = find_reduction("native", Context(transport))
    gradients = Gradients(model.parameters(), reduction, bucket_bytes=64 * 65 * 4)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: started.append(len(gradients._pending)))
    gradients.zero()
    gradients.last_pass = True
    model(torch.ones(1, 64)).sum().backward()
    gradients.flush()
    gradients.finish(1)
    return started


def test_buckets_leave_while_backward_still_runs() -> None:
    started = on_ranks(2, launches)[0]
    assert started == sorted(started)
    assert started[0] == 1, "the first bucket is small, and leaves at once"
    assert started[len(started) // 2] >= 3 and started[-2] < 7, started


def damaged(transport: Transport, tensor: int, place: int) -> str:
    weights = [torch.ones(1000), torch.ones(10)]
    check_same_bits(weights, transport, 6)
    if transport.rank == 2:
        weights[tensor].view(torch.int32)[place] ^= 1
    try:
        check_same_bits(weights, transport, 7)
    except RanksDiffer as error:
        return str(error)
    return ""


def damaged_in_a_group(transport: Transport) -> str:
    groups = [transport.subgroup(ranks) for ranks in ((0, 2), (1, 3, 4))]
    group = next(one for one in groups if one is not None)
    weights = [torch.ones(1000)]
    if transport.rank in (2, 3):
        weights[0].view(torch.int32)[7] ^= 1
    try:
        check_same_bits(weights, group, 7)
    except RanksDiffer as error:
        return str(error)
    return ""


def test_ranks_of_a_group_that_differ_are_named_by_their_numbers_in_the_run() -> None:
    texts = on_ranks(5, damaged_in_a_group)
    for rank in (0, 2):  # which of two is wrong nobody knows
        assert texts[rank].startswith("after step 7, the parameters of ranks 0, 2 differ (")
    for rank in (1, 3, 4):
        assert texts[rank].startswith("after step 7, the parameters of rank 3 differ from those of rank 1, 4 (")


@pytest.mark.parametrize(("tensor", "place"), [(0, 500), (1, 9)])
def test_a_single_flipped_bit_stops_the_run_and_names_step_and_rank(tensor: int, place: int) -> None:
    for text in on_ranks(4, damaged, tensor, place):
        assert text.startswith("after step 7, the parameters of rank 2 differ from the other ranks")
