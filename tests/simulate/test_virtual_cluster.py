"""Virtual time goes on as workers, links and a policy determine it, and is the same again for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrain.simulate.virtual_cluster import ServerLink, StepTimes, Taken, VirtualCluster
from firetrain.strategy.policy import find_policy

EXACT = StepTimes(jitter=0.0)


def trained(
    policy: str, workers: int, pushes: int, times: StepTimes = EXACT, link: ServerLink | None = None, seed: int = 1
) -> tuple[VirtualCluster, list[tuple[float, int]]]:
    """A cluster after some pushes of gradients that take 2 s on average, and the time and the worker of each."""
    cluster, machine = VirtualCluster(workers, times, link or ServerLink(), seed), find_policy(policy, workers)[0]
    stamps, updates, seen = dict.fromkeys(range(workers), 0), 0, list[tuple[float, int]]()

    def pull(worker: int) -> list[float]:
        stamps[worker] = updates
        return [2.0]

    def push(worker: int, seconds: float) -> Taken:
        nonlocal updates
        seen.append((seconds, worker))
        decision = machine.push(worker, stamps[worker])
        updates += decision.applies
        return Taken(decision.released, decision.applies)

    cluster.run(pull, push, lambda: len(seen) < pushes)
    return cluster, seen


def test_workers_that_are_equally_fast_never_wait() -> None:
    for policy in ("sync", "async", "ssp:staleness=0"):
        cluster, seen = trained(policy, workers=4, pushes=40)
        assert [seconds for seconds, _ in seen] == [2.0 * (1 + number // 4) for number in range(40)]
        assert cluster.idle_share() == pytest.approx(0.0)


def test_all_wait_for_one_that_is_slow_only_under_sync() -> None:
    slow = StepTimes(jitter=0.0, factors=(3.0, 1.0))
    sync, _ = trained("sync", workers=2, pushes=20, times=slow)
    free, _ = trained("async", workers=2, pushes=20, times=slow)
    assert sync.now_s == pytest.approx(60.0) and sync.idle_share() == pytest.approx(1 / 3)
    assert free.now_s == pytest.approx(30.0) and free.idle_share() < 0.05
    stale, seen = trained("ssp:staleness=2", workers=2, pushes=20, times=slow)
    ahead = [
        sum(worker == 1 for _, worker in seen[:end]) - sum(worker == 0 for _, worker in seen[:end]) for end in range(21)
    ]
    assert max(ahead) == 3 and free.now_s < stale.now_s < sync.now_s


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1))
def test_ssp_without_staleness_takes_as_long_as_sync(seed: int, workers: int, jitter: float, slow: float) -> None:
    times = StepTimes(jitter=jitter, slow_share=slow, slow_factor=5.0)
    (sync, first), (stale, second) = (
        trained(name, workers, 20 * workers, times, seed=seed) for name in ("sync", "ssp:staleness=0")
    )
    assert first == second and sync.idle_share() == stale.idle_share()


def test_workers_that_are_now_and_then_slow_idle_a_third_of_the_time_under_sync() -> None:
    sync, _ = trained("sync", 8, 400, StepTimes(jitter=0.3, slow_share=0.05, slow_factor=5.0))
    assert sync.idle_share() > 0.3


def test_messages_share_the_server_s_link() -> None:
    """Four pulls of 1 s take 4 s together, and so do the four pushes, which begin together."""
    link = ServerLink(size_bytes=10, latency_s=0.25, s_per_byte=0.1)
    cluster, seen = trained("sync", workers=4, pushes=4, link=link)
    assert [(one.began_s, one.ended_s) for one in cluster.spans] == [(4.25, 6.25)] * 4
    assert seen == [(10.5, worker) for worker in range(4)]
    halves, _ = trained("sync", workers=4, pushes=4, link=link.divided([30, 30], 2))
    assert halves.now_s == 0.5 * 4 + 0.25 + 2.0 + 0.5 * 4 + 0.25, (
        "each server has half of the bytes and a link of its own"
    )
    uneven, _ = trained("sync", workers=4, pushes=4, link=link.divided([90, 5, 5], 2))
    assert uneven.now_s == pytest.approx(0.9 * 4 + 0.25 + 2.0 + 0.9 * 4 + 0.25), "whole parameters have one server each"


def test_a_worker_s_own_link_carries_the_parts_of_all_servers() -> None:
    """Two workers at four servers: each pulls and pushes four quarters over its own link, as long as one whole message."""
    link = ServerLink(size_bytes=10, s_per_byte=0.1).divided([30] * 4, 4)
    cluster, _ = trained("sync", workers=2, pushes=2, link=link)
    assert cluster.now_s == pytest.approx(1.0 + 2.0 + 1.0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=7), st.floats(0.01, 3.0))
def test_a_message_that_meets_others_gives_them_their_shares_of_the_link(factors: list[float], alone_s: float) -> None:
    """Beside each message's remaining seconds, counted down between one beginning or end and the next."""
    workers = len(factors)
    link = ServerLink(size_bytes=1, s_per_byte=alone_s)
    _, seen = trained("sync", workers, workers, StepTimes(jitter=0.0, factors=tuple(factors)), link)
    begin_s = {worker: workers * alone_s + 2 * factor for worker, factor in enumerate(factors)}
    left_s, now_s, ended_s = dict[int, float](), 0.0, dict[int, float]()
    while begin_s or left_s:
        first_s = min(begin_s.values(), default=float("inf"))
        ends_s = now_s + min(left_s.values(), default=float("inf")) * len(left_s)
        next_s = min(first_s, ends_s)
        left_s = {worker: one - (next_s - now_s) / len(left_s) for worker, one in left_s.items()}
        now_s = next_s
        ended_s |= {worker: now_s for worker, one in left_s.items() if one < 1e-12}
        left_s = {worker: one for worker, one in left_s.items() if one >= 1e-12}
        left_s |= {worker: alone_s for worker, one in begin_s.items() if one <= now_s}
        begin_s = {worker: one for worker, one in begin_s.items() if one > now_s}
    assert {worker: seconds for seconds, worker in seen} == pytest.approx(ended_s)


def test_a_server_takes_no_push_while_it_updates_the_weights() -> None:
    """Four pushes at once: async updates four times, and the last worker goes on 4 s later; sync updates once."""
    link = ServerLink(update_s=1.0)
    free, seen = trained("async", workers=4, pushes=4, link=link)
    assert [seconds for seconds, _ in seen] == [2.0, 3.0, 4.0, 5.0]
    together, seen = trained("sync", workers=4, pushes=8, link=link)
    assert [seconds for seconds, _ in seen] == [2.0] * 4 + [5.0] * 4


def test_the_same_seed_gives_the_same_times_under_every_policy() -> None:
    times = StepTimes(jitter=0.5, slow_share=0.1, slow_factor=4.0)
    found = [trained(policy, 3, 60, times)[0] for policy in ("sync", "async", "async")]
    lasted = [[one.ended_s - one.began_s for one in cluster.spans if one.worker == 1][:15] for cluster in found]
    assert lasted[0] == pytest.approx(lasted[1]) and lasted[1] == lasted[2]
    assert (
        trained("async", 3, 60, times, seed=2)[1]
        != trained("async", 3, 60, times)[1]
        == trained("async", 3, 60, times)[1]
    )


def test_drawn_times_have_the_mean_and_the_share_of_slow_ones_that_were_asked_for() -> None:
    draw = StepTimes(jitter=0.2, slow_share=0.05, slow_factor=5.0).drawn(0, seed=3)
    times = [draw() for _ in range(20_000)]
    assert sum(times) / len(times) == pytest.approx(0.95 + 0.05 * 5, rel=0.02)
    assert sum(one > 2.5 for one in times) / len(times) == pytest.approx(0.05, abs=0.01)
