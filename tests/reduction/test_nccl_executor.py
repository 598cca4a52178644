"""Plans in waves: what a rank issues together, and what is said of a wave that does not complete."""

from __future__ import annotations

import pytest

from firetrain.cluster import World
from firetrain.reduction.native import _choice
from firetrain.reduction.nccl_executor import _name, _unfinished, _waves
from firetrain.topology import find_topology
from firetrain.topology.program import program
from firetrain.transport.watchdog import Collective

LENGTH = 1000


class End:
    """The end of a wave on a device."""

    def __init__(self, reached: bool) -> None:
        self._reached = reached

    def query(self) -> bool:
        return self._reached


@pytest.mark.parametrize("name", ["ring", "tree", "direct", "hierarchical", "pipelined-tree", "parameter-server"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_both_ends_of_every_message_are_issued_in_the_same_wave_and_order(name: str, ranks: int) -> None:
    world = World.even(1, ranks) if ranks % 2 else World.even(2, ranks // 2)
    plan = find_topology(name)(world)
    waves = {rank: _waves(program(plan, rank, LENGTH, 300, 4)) for rank in range(ranks)}
    for one in range(ranks):
        for other in range(ranks):
            sent = [s.message for _, sends in waves[one] for s in sends if s.message.target == other]
            received = [r.message for receives, _ in waves[other] for r in receives if r.message.source == one]
            assert sent == received, "NCCL matches the messages of a pair by their order"
            assert [message.wave for message in sent] == sorted(message.wave for message in sent)


@pytest.mark.parametrize("align", [1, 4])
def test_messages_begin_where_vectorised_kernels_can(align: int) -> None:
    plan = find_topology("ring")(World.even(1, 3))
    starts = [m.message.start for rank in range(3) for m in program(plan, rank, 1003, 1003, align).sends]
    assert all(start % align == 0 for start in starts)
    assert any(start % 4 for start in starts) is (align == 1)


def test_the_first_wave_that_is_not_complete_is_named_with_its_transfers() -> None:
    plan = find_topology("ring")(World.even(1, 4))
    waves = _waves(program(plan, 1, LENGTH, LENGTH))
    assert len(waves) == 6
    ends = [End(number < 2) for number in range(6)]
    said = _unfinished(ends, waves)
    assert said == _name(2, waves[2]) and said.startswith("wave 3, transfers [")
    numbers = [int(word) for word in said.partition("[")[2].rstrip("]").split(", ")]
    assert {plan.transfers[number].source for number in numbers} == {0, 1}
    assert all(1 in (plan.transfers[number].source, plan.transfers[number].target) for number in numbers)


def test_if_the_device_catches_up_meanwhile_the_last_wave_is_named() -> None:
    waves = _waves(program(find_topology("tree")(World.even(1, 2)), 0, LENGTH, LENGTH))
    assert _unfinished([End(True)] * len(waves), waves) == _name(len(waves) - 1, waves[-1])


def test_older_versions_of_nccl_know_no_prefix_for_the_collective() -> None:
    assert _choice("ring", (2, 24, 0)) == "allreduce:ring" and _choice("ring", (2, 23, 4)) == "ring"


def test_a_collective_of_the_library_is_issued_work_for_the_watchdog() -> None:
    class Work:
        completed = False

        def is_completed(self) -> bool:
            return self.completed

    work = Work()
    issued = Collective(work)  # type: ignore[arg-type]
    assert not issued.query()
    work.completed = True
    assert issued.query()
