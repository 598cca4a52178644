"""A reducer without DistributedDataParallel: sums of single tensors, its process group, its end, and mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.distributed.distributed_c10d import _world as groups_of_this_process

from firetrain.ddp import Reducer, hook
from firetrain.errors import FiretrainError, LostPeer
from firetrain.transport.transport import Transport


def loop(transport: Transport) -> tuple[list[Any], bool]:
    """Sums without DistributedDataParallel; then the script's own process group still works."""
    reducer = Reducer("ring")
    whole = [reducer.sum_(torch.full((3, 5), 1.0 + transport.rank)), reducer.sum_(torch.ones(7, dtype=torch.bfloat16))]
    view = torch.zeros(4, 6).T  # not contiguous
    view += transport.rank
    whole.append(reducer.sum_(view))
    reducer.close()
    mine = torch.ones(1)
    dist.all_reduce(mine)
    return [one.tolist() for one in whole], mine.item() == transport.size


def test_single_tensors_are_summed_in_place_and_the_process_group_stays() -> None:
    for (first, short, view), stays in on_ranks(3, loop):
        assert first == [[6.0] * 5] * 3 and short == [3.0] * 7 and view == [[3.0] * 4] * 6 and stays


def differing(transport: Transport, what: str) -> str:
    try:
        name = "tree" if what == "name" and transport.rank == 0 else "ring"
        Reducer(name, wire_dtype="bfloat16" if what == "wire" and transport.rank else "float32")
    except FiretrainError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("what", "told"), [("name", "(ring in float32, tree in float32)"), ("wire", "(ring in bfloat16, ring in float32)")]
)
def test_ranks_whose_reducers_differ_are_told(what: str, told: str) -> None:
    assert all(told in found and "FIRETRAIN_REDUCTION" in found for found in on_ranks(3, differing, what))


def odd_sums(transport: Transport) -> tuple[str, float]:
    """A tensor that cannot be summed, and sums in inference mode before others; the reducer goes on."""
    reducer, told = Reducer("ring"), ""
    try:
        reducer.sum_(torch.ones(3, dtype=torch.int64))
    except FiretrainError as error:
        told = str(error)
    with pytest.raises(FiretrainError, match="share memory, as expand leaves them: clone it"):
        reducer.sum_(torch.ones(1).expand(3))
    with torch.inference_mode():
        reducer.sum_(torch.ones(5))
    torch.set_default_dtype(torch.bfloat16)
    found = (
        reducer.sum_(torch.full((5,), 2.0, dtype=torch.float32)) + reducer.sum_(torch.ones(6, dtype=torch.float32))[:5]
    )
    torch.set_default_dtype(torch.float32)
    reducer.close()
    return told, found[0].item()


def test_a_tensor_that_cannot_be_summed_does_not_end_the_reducer() -> None:
    for told, total in on_ranks(2, odd_sums):
        assert told.startswith("sum_ was called with a tensor of torch.int64") and total == 6.0


def in_groups(transport: Transport) -> float:
    """Pairs of ranks, each with a process group of the script, sum at the same time."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    reducer = Reducer("halving-doubling", group=pairs[transport.rank // 2])
    found = reducer.sum_(torch.full((100,), float(transport.rank)))
    reducer.close()
    return found[-1].item()


def outside(transport: Transport) -> str:
    """What a rank is told that is in no group of the script's."""
    group = dist.new_group([0])
    try:
        Reducer("ring", group=group).close()
    except FiretrainError as error:
        return str(error)
    return ""


def test_a_rank_outside_the_process_group_is_told_so() -> None:
    assert on_ranks(2, outside) == ["", "rank 1 is not in the process group: only its ranks may make this call"]


def test_a_reducer_sums_over_a_process_group() -> None:
    assert on_ranks(4, in_groups) == [1.0, 1.0, 5.0, 5.0]


def again_and_again(transport: Transport) -> tuple[list[float], int]:
    """Sums of reducers of some ranks that are made one after the other, and in how many different numbers of groups a rank is."""
    group = dist.new_group([0, 1])
    found: list[float] = []
    groups: list[int] = []
    for _ in range(0 if transport.rank == 2 else 30):
        reducer = Reducer("ring", group=group, timeout_s=20)
        found.append(float(reducer.sum_(torch.ones(5))[0]))
        reducer.close()
        groups.append(len(groups_of_this_process.pg_map))
    return found, len(set(groups))


def test_reducers_of_some_ranks_may_be_made_one_after_the_other() -> None:
    assert on_ranks(3, again_and_again, limit_s=60) == [([2.0] * 30, 1), ([2.0] * 30, 1), ([], 0)]


def in_other_orders(transport: Transport) -> list[float]:
    """Reducers of some ranks that are closed in other orders on each, beside one of all ranks that is closed before them."""
    group, whole = dist.new_group([0, 1]), Reducer("ring")
    found = []
    if transport.rank < 2:
        both = [Reducer("ring", group=group, timeout_s=20) for _ in range(2)]
    whole.close()
    for _ in range(3 if transport.rank < 2 else 0):
        both.append(Reducer("ring", group=group, timeout_s=20))
        found += [float(one.sum_(torch.ones(5))[0]) for one in both]
        for one in both[:: 1 - 2 * transport.rank]:
            one.close()
        both = [Reducer("ring", group=group, timeout_s=20) for _ in range(2)]
    return found


def test_reducers_of_some_ranks_may_be_closed_in_any_order() -> None:
    assert on_ranks(3, in_other_orders, limit_s=60) == [[2.0] * 9, [2.0] * 9, []]


def left_waiting(transport: Transport) -> float:
    """The seconds until a rank learns that the other rank of its group makes no reducer."""
    group = dist.new_group([0, 1])
    if transport.rank > 0:
        dist.barrier()
        return 0
    began_s = time.monotonic()
    with pytest.raises(LostPeer):
        Reducer("ring", group=group, timeout_s=3)
    took_s = time.monotonic() - began_s
    dist.barrier()
    return took_s


def test_a_rank_does_not_wait_longer_for_the_others_of_its_group_than_its_limit() -> None:
    took_s, *_ = on_ranks(3, left_waiting, limit_s=60)
    assert 2 < took_s < 15


def after_another_beginning(transport: Transport, reduction: str) -> str:
    """The script makes its process groups again before it closes its reducer."""
    reducer = Reducer(reduction)
    reducer.sum_(torch.ones(3))
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    reducer.close()
    dist.destroy_process_group()
    return "closed"


@pytest.mark.parametrize("reduction", ["ring", "native", "hierarchical"])
def test_a_script_may_begin_again_before_it_closes_its_reducer(reduction: str) -> None:
    assert on_ranks(2, after_another_beginning, reduction) == ["closed"] * 2


def in_unequal_groups(transport: Transport) -> float:
    """Ranks of a group that are in unequal numbers of groups, of which torch makes names."""
    dist.new_group([0, 1])
    group = dist.new_group([1, 2])
    if transport.rank == 0:
        return 0.0
    reducer = Reducer("ring", group=group)
    found = reducer.sum_(torch.full((100,), float(transport.rank)))
    reducer.close()
    return found[-1].item()


def test_the_ranks_of_a_group_may_be_in_unequal_numbers_of_groups() -> None:
    assert on_ranks(3, in_unequal_groups, limit_s=40) == [0.0, 3.0, 3.0]


def among_others(transport: Transport) -> tuple[float, float]:
    """A sum of the reducer while one of the script's own is under way, which all ranks end in another order."""
    reducer = Reducer("ring")
    own, given = torch.full((1 << 20,), 1.0 + transport.rank), torch.ones(1 << 20)
    pending = dist.all_reduce(own, async_op=True)
    if transport.rank == 0:
        pending.wait()
    reducer.sum_(given)
    pending.wait()
    reducer.close()
    return own[-1].item(), given[-1].item()


def test_sums_do_not_mix_with_those_of_the_script() -> None:
    assert on_ranks(3, among_others) == [(6.0, 3.0)] * 3


def ended_by_the_script(transport: Transport) -> float:
    """The script ends all process groups before its reducer is closed, as at the end of a process."""
    reducer = Reducer("hierarchical:inner=native")
    found = reducer.sum_(torch.ones(9))[-1].item()
    dist.destroy_process_group()
    reducer.close()
    return found


def test_a_script_may_end_all_process_groups_before_its_reducer() -> None:
    assert on_ranks(4, ended_by_the_script, nodes=2) == [4.0] * 4


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("make_it", "told"),
    [(lambda: Reducer("rings"), "unknown reduction 'rings', did you mean ring?"),
     (lambda: Reducer("ring", wire_dtype="int8"), "unknown wire dtype 'int8'"),
     (lambda: Reducer(torch.nn.Linear(2, 2)),  # type: ignore[arg-type]
      "takes the name of a reduction, such as 'ring' (got Linear); a model is given to DistributedDataParallel"),
     (lambda: Reducer("ring", timeout_s=-1), "timeout_s must be a number from 1 to 1e+06 (got -1)"),
     (lambda: Reducer("ring", "world"), "group must be a process group of torch.distributed (got 'world')"),  # type: ignore[arg-type]
     (lambda: Reducer("ring").sum_([1.0]), "sum_ takes a tensor (got list)"),  # type: ignore[arg-type,return-value]
     (lambda: Reducer("ring").sum_(torch.eye(2).to_sparse()), "sum_ takes dense tensors (got one of torch.sparse_coo)"),  # type: ignore[return-value]
     (lambda: hook(None, None), "the hook needs a reducer: model.register_comm_hook(Reducer(), hook) (got None)")],  # type: ignore[arg-type,return-value]
)  # fmt: skip
def test_mistakes_are_told_in_words(make_it: Callable[[], Reducer], told: str, alone: None) -> None:
    with pytest.raises(FiretrainError, match=re.escape(told)):
        make_it()


def test_without_a_process_group_it_says_what_to_call_and_works_when_that_was_called() -> None:
    reducer = Reducer("ring")  # Lightning makes the process group later
    with pytest.raises(FiretrainError, match=r"call torch\.distributed\.init_process_group before"):
        reducer.sum_(torch.ones(1))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert reducer.sum_(torch.ones(1)).item() == 1
    reducer.close()
    dist.destroy_process_group()


def test_a_closed_reducer_says_so(alone: None) -> None:
    reducer = Reducer("ring")
    reducer.close()
    with pytest.raises(FiretrainError, match="this Reducer is closed"):
        reducer.sum_(torch.ones(1))


def test_the_environment_names_the_reduction(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRETRAIN_REDUCTION", "no-such-one")
    with pytest.raises(FiretrainError, match="unknown reduction 'no-such-one'"), nullcontext():
        Reducer()


AT_EXIT = """\
import torch, torch.distributed as dist
from firetrain import ddp
closed = ddp.Reducer.close
ddp.Reducer.close = lambda self: (print(f"closes, waits: {not self._is_closed}"), closed(self))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
kept, left = ddp.Reducer("ring"), ddp.Reducer("ring")
left.close()
"""


def test_a_script_that_ends_closes_its_reducers_once() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["closes, waits: True"] * 2, done.stderr
