"""DistributedDataParallel with the hook computes what it computes without, whatever the script does with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import HOROVOD, need
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from firetrain.cluster import World
from firetrain.config.names import REDUCTIONS, TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.ddp import Reducer, hook
from firetrain.errors import FiretrainError, LostPeer
from firetrain.records.profile import Profile, Timing, TimingTable
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.transport.attached import attach
from firetrain.transport.transport import Transport

Array = np.ndarray[Any, np.dtype[Any]]
EXACT = (
    "native", "direct", "double-tree", "halving-doubling", "hierarchical", "parameter-server", "pipelined-tree", "ring", "torus",
    "tree",
)  # fmt: skip
LOSSY = ("powersgd:through=ring", "powersgd", "top-k:density=0.2")
STEPS = 20


class Net(nn.Module):
    """Several buckets, with one layer that a batch may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten())
        self.extra = nn.Linear(32 * 16, 32 * 16)
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, images: Tensor, *, extra: bool = True) -> Tensor:
        features = self.body(images)
        return self.head(self.extra(features) if extra else features)


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    seeded = torch.Generator().manual_seed(1000 * step + rank)
    images = torch.randn(4, 3, 8, 8, generator=seeded, dtype=torch.float32)
    return images.to(dtype), torch.randint(10, (4,), generator=seeded)


def make(
    name: str | None,
    dtype: torch.dtype = torch.float32,
    profile: str | None = None,
    wire_dtype: str = "float32",
    timeout_s: float = 30,
    **options: Any,
) -> tuple[Any, Reducer | None]:
    """A model, with the hook of a reduction unless `name` is None."""
    torch.manual_seed(1)
    model = DistributedDataParallel(Net().to(dtype), bucket_cap_mb=0.02, **options)
    profile = profile if name == "auto" else None
    reducer = Reducer(name, profile=profile, wire_dtype=wire_dtype, timeout_s=timeout_s) if name else None
    if reducer:
        model.register_comm_hook(reducer, hook)
    return model, reducer


def as_torchrun_places_it(transport: Transport) -> None:
    """Tell a script where its rank is, by torchrun's variables."""
    world, rank = transport.world, transport.rank
    node = world.node_of[rank]
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world.size), "LOCAL_RANK": str(world.nodes[node].index(rank)),
        "LOCAL_WORLD_SIZE": str(len(world.nodes[node])), "GROUP_RANK": str(node),
    }  # fmt: skip


def weights(model: nn.Module) -> Array:
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()]).numpy()


def train(transport: Transport, names: tuple[str | None, ...], options: dict[str, Any], how: str = "") -> list[Array]:
    """The weights after some steps, for each reduction."""
    found = []
    as_torchrun_places_it(transport)
    for name in names:
        model, reducer = make(name, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            optimizer.zero_grad()
            images, labels = batch(step, transport.rank, options.get("dtype", torch.float32))
            if how == "accumulate":
                with model.no_sync():
                    nn.functional.cross_entropy(model(images), labels).backward()
            # the last rank leaves a layer out in every second step
            extra = how != "unused" or transport.rank + 1 < transport.size or step % 2 == 0
            nn.functional.cross_entropy(model(images, extra=extra), labels).backward()
            optimizer.step()
        found.append(weights(model))
        if reducer:
            reducer.close()
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_reduction_trains_like_ddp_and_gives_all_ranks_the_same_bits(ranks: int) -> None:
    found = on_ranks(ranks, train, (None, *EXACT), {}, nodes=2)
    for number, name in enumerate(EXACT, 1):
        assert all(np.array_equal(one[number], found[0][number]) for one in found), name
        np.testing.assert_allclose(found[0][number], found[0][0], rtol=0, atol=2e-7, err_msg=name)


def test_horovod_sums_the_gradients_of_a_script() -> None:
    need(None if HOROVOD else "Horovod is not installed (make horovod)")
    found = on_ranks(3, train, (None, "horovod"), {}, nodes=2)
    assert all(np.array_equal(one[1], found[0][1]) for one in found)
    np.testing.assert_allclose(found[0][1], found[0][0], rtol=0, atol=2e-7)


def test_no_reduction_is_left_out() -> None:
    tested = {Spec.parse(name).name for name in (*EXACT, *LOSSY)}
    # auto is one of the others, and Horovod starts once in a process
    assert {*installed_names(REDUCTIONS), *installed_names(TOPOLOGIES)} == tested | {"auto", "horovod"}


def test_gradients_are_rounded_on_the_wire_and_stay_the_same_on_all_ranks() -> None:
    names = ("native", "ring", "double-tree", "hierarchical", "top-k:density=1.0")
    found = on_ranks(4, train, (None, *names), {"wire_dtype": "bfloat16"}, nodes=2)
    for number, name in enumerate(names, 1):
        assert all(np.array_equal(one[number], found[0][number]) for one in found), name
        difference = np.abs(found[0][number] - found[0][0]).max()
        assert 1e-6 < difference < 1e-2, (name, difference)


def test_gradients_in_float64_are_summed_in_float64() -> None:
    names = ("ring", "double-tree", "native")
    found = on_ranks(3, train, (None, *names), {"dtype": torch.float64}, nodes=2)
    for number, name in enumerate(names, 1):
        assert all(np.array_equal(one[number], found[0][number]) for one in found), name
        np.testing.assert_allclose(found[0][number], found[0][0], rtol=0, atol=1e-15, err_msg=name)


def nodes_seen(transport: Transport) -> list[int]:
    as_torchrun_places_it(transport)
    attached = attach()
    attached.close()
    return list(attached.world.node_of)


def test_the_nodes_are_those_of_the_launcher() -> None:
    assert on_ranks(3, nodes_seen, nodes=2) == [[0, 0, 1]] * 3


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_lossy_reductions_give_all_ranks_the_same_bits_and_do_not_wait_for_each_other(ranks: int) -> None:
    found = on_ranks(ranks, train, LOSSY, {})
    for number, name in enumerate(LOSSY):
        assert all(np.array_equal(one[number], found[0][number]) for one in found), name
        assert np.isfinite(found[0][number]).all(), name


@pytest.mark.parametrize(
    ("options", "how", "ranks"),
    [({"gradient_as_bucket_view": True}, "", 4), ({"static_graph": True}, "", 2), ({}, "accumulate", 2),
     ({"find_unused_parameters": True}, "unused", 3),
     ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, "unused", 2),
     ({"dtype": torch.bfloat16}, "", 2)],
)  # fmt: skip
def test_options_of_ddp_work_as_without_the_hook_with_every_reduction(
    options: dict[str, Any], how: str, ranks: int
) -> None:
    names = (*EXACT, *LOSSY)
    found = on_ranks(ranks, train, (None, *names), options, how, nodes=2)
    reference = found[0][0]
    for number, name in enumerate(names, 1):
        assert all(np.array_equal(one[number], found[0][number]) for one in found), name
        if name in EXACT:  # bfloat16 buckets are summed in float32 here, and in bfloat16 by Gloo
            tolerance = 2e-2 if "dtype" in options else 2e-7
            np.testing.assert_allclose(found[0][number], reference, rtol=0, atol=tolerance, err_msg=name)


def two_models(transport: Transport, names: tuple[str, str], *, shared: bool = False) -> tuple[list[Array], str]:
    """Two models, which are trained by one backward pass, with a reducer each or one for both."""
    as_torchrun_places_it(transport)
    (one, first), (two, second), (plain, _), (other, _) = make(names[0]), make(names[1]), make(None), make(None)
    if shared:
        two, _ = make(None)
        two.register_comm_hook(first, hook)
    for step in range(3):
        images, labels = batch(step, transport.rank)
        for left, right in ((one, two), (plain, other)):
            loss = nn.functional.cross_entropy(left(images) + right(images), labels)
            try:
                loss.backward()
            except (FiretrainError, RuntimeError) as error:
                return [], str(error)
    found = [torch.cat([p.grad.flatten() for p in model.parameters()]).numpy() for model in (one, plain, two, other)]
    for reducer in (first, second):
        assert reducer
        reducer.close()
    return found, ""


def pairs_of_models(transport: Transport, pairs: list[tuple[str, str]]) -> list[list[Array]]:
    return [two_models(transport, names)[0] for names in pairs]


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_models_share_a_backward_pass(ranks: int) -> None:
    """Their sums wait in a thread each, also where one is torch's and the other a plan's."""
    every = (*EXACT, *LOSSY)
    pairs = [("native", "native"), *zip(every, (*every[1:], every[0]), strict=True)]
    found = on_ranks(ranks, pairs_of_models, pairs, nodes=2)
    for number, names in enumerate(pairs):
        for one, plain, two, other in (of_rank[number] for of_rank in found):
            for name, summed, expected in ((names[0], one, plain), (names[1], two, other)):
                if name in EXACT:
                    np.testing.assert_allclose(summed, expected, rtol=0, atol=1e-6, err_msg=str(names))
            first = found[0][number]
            assert np.array_equal(one, first[0]) and np.array_equal(two, first[2]), names


def two_models_shared(transport: Transport) -> tuple[list[Array], str]:
    return two_models(transport, ("ring", "tree"), shared=True)


def test_a_reducer_for_two_models_is_refused() -> None:
    for _, error in on_ranks(2, two_models_shared):
        assert "give each model a Reducer of its own" in error


def kept(transport: Transport, name: str) -> tuple[int, int, int]:
    """The buckets of the first backward pass, of the fourth, and those of which something is kept then."""
    model, reducer = make(name)
    assert reducer
    counts = []
    for step in range(4):
        images, labels = batch(step, transport.rank)
        nn.functional.cross_entropy(model(images), labels).backward()
        counts.append(len(reducer._known))
    lossy: Any = reducer._reduction
    own = lossy._kept if name == "powersgd" else lossy._errors
    reducer.close()
    return counts[0], counts[-1], len(own)


@pytest.mark.parametrize("name", ["powersgd", "top-k"])
def test_what_lossy_reductions_keep_of_buckets_that_torch_has_replaced_is_released(name: str) -> None:
    for first, later, own in on_ranks(2, kept, name):
        assert first != later == own, (first, later, own)


def lose(transport: Transport, name: str, profile: str | None = None) -> tuple[str, str]:
    """The last rank is killed in a backward pass; the errors of that pass and of the next call."""
    model, reducer = make(name, timeout_s=5, profile=profile)
    assert reducer
    for step in range(1000):
        images, labels = batch(step, transport.rank)
        loss = nn.functional.cross_entropy(model(images), labels)
        if transport.rank + 1 == transport.size and step == 3:
            model.module.head.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            loss = nn.functional.cross_entropy(model(images), labels)
        try:
            loss.backward()
        except RuntimeError as error:
            try:
                reducer.sum_(torch.ones(2))
            except LostPeer as later:
                return str(error), str(later)
    return "", ""


@pytest.mark.parametrize("name", [*EXACT, *LOSSY])
def test_a_lost_rank_is_an_error_of_the_pass_and_of_all_later_calls(name: str) -> None:
    *others, _ = on_ranks(3, lose, name, doomed=2)
    for rank, (error, later) in enumerate(others):
        assert later and later in error
        assert f"rank {rank}" in later and "did not complete" in later


def refused(transport: Transport) -> str:
    reducer = Reducer("ring")
    try:
        reducer.sum_(torch.ones(3, dtype=torch.int64))
    except FiretrainError as error:
        return str(error)
    return ""


def test_numbers_of_another_dtype_are_refused_in_words() -> None:
    for error in on_ranks(2, refused):
        assert "sum_ was called with a tensor of torch.int64: reductions sum float32 and float64" in error


class Breaks(Reduction):
    """A reduction that fails when it is asked to start, in a way that was not thought of."""

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        raise KeyError("no link")


def broken(transport: Transport) -> list[str]:
    """What a pass and a later sum say of an error in the start of a reduction."""
    model, reducer = make("ring")
    assert reducer
    reducer.__dict__["_reduction"] = Breaks()
    said = []
    for call in (lambda: model(batch(0, transport.rank)[0]).sum().backward(), lambda: reducer.sum_(torch.ones(2))):
        try:
            call()
        except (FiretrainError, RuntimeError) as error:
            said.append(str(error))
    reducer.close()
    reducer.close()  # once more does nothing
    return said


def test_an_error_in_the_start_of_a_sum_is_raised_by_all_later_calls() -> None:
    for said in on_ranks(2, broken):
        assert len(said) == 2 and all("KeyError: 'no link'" in one for one in said), said


def unmeasured(transport: Transport) -> list[str]:
    """What `auto` says without a table of measured reductions."""
    said = []
    for name in ("auto", "powersgd:through=auto"):
        try:
            Reducer(name)
        except FiretrainError as error:
            said.append(str(error))
    return said


def test_auto_is_refused_without_measurements_of_these_ranks() -> None:
    for said in on_ranks(2, unmeasured):
        assert len(said) == 2 and all(
            "auto would measure during a backward pass: give it a profile" in one for one in said
        )


def chosen(transport: Transport, profile: str) -> set[str]:
    """The reductions that have summed the buckets of two backward passes; torch makes smaller ones after the first."""
    as_torchrun_places_it(transport)
    model, reducer = make("auto", profile=profile)
    assert reducer
    for step in range(2):
        images, labels = batch(step, transport.rank)
        nn.functional.cross_entropy(model(images), labels).backward()
    found = set(reducer._reduction.facts()["chosen"].values())
    reducer.close()
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_auto_sums_by_what_a_profile_found_the_fastest(ranks: int, tmp_path: Path) -> None:
    small, large = (
        Timing(reduction=name, bytes=1 << bits, median_s=1e-3) for name, bits in (("tree", 2), ("ring", 30))
    )
    slower = [
        Timing(reduction=one.reduction, bytes=other.bytes, median_s=1.0)
        for one, other in ((small, large), (large, small))
    ]
    world = World.even(1, ranks)
    table = TimingTable(transport="gloo", node_of=world.node_of, wire_dtype="float32", rows=(small, large, *slower))
    Profile().with_table(table, {}).save(tmp_path / "profile.json")
    profile = str(tmp_path / "profile.json")
    if ranks == 3:
        *others, _ = on_ranks(ranks, lose, "auto", profile, doomed=2)
        assert all(later and later in error for error, later in others)
    assert on_ranks(ranks, chosen, profile) == [{"ring", "tree"}] * ranks
    found = on_ranks(ranks, train, (None, "auto"), {"profile": profile})
    for plain, summed in found:
        assert np.array_equal(summed, found[0][1])
        np.testing.assert_allclose(summed, plain, rtol=0, atol=2e-7)
