"""What a parameter server may do is never broken, whatever the order of pushes: thousands of random schedules."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrain.errors import UserError
from firetrain.strategy.policy import Policy, StaleSync
from firetrain.strategy.policy import find_policy as find


def find_policy(text: str, workers: int) -> Policy:
    return find(text, workers)[0]


class Schedule:
    """Workers that push in a random order, as soon as they are released; what the server did."""

    def __init__(self, policy: Policy, workers: int, seed: int, pushes: int = 200) -> None:
        self.policy, self.draw = policy, random.Random(seed)
        self.updates, self.group = 0, list[int]()
        self.stamps = dict.fromkeys(range(workers), 0)
        self.staleness, self.sizes, self.dropped = list[int](), list[int](), 0
        self.pushed, self.gaps = Counter[int](), list[int]()
        for _ in range(pushes):
            if not self.stamps:
                raise AssertionError("all workers wait for each other")
            self.push(self.draw.choice(sorted(self.stamps)))

    def push(self, worker: int) -> None:
        stamp = self.stamps.pop(worker)
        decision = self.policy.push(worker, stamp)
        self.pushed[worker] += 1
        if isinstance(self.policy, StaleSync):
            self.gaps.append(max(self.policy.iterations.values()) - min(self.policy.iterations.values()))
        if decision.keeps:
            self.staleness.append(self.updates - stamp)
            self.group.append(worker)
        else:
            self.dropped += 1
        if decision.applies:
            self.sizes.append(len(self.group))
            self.updates, self.group = self.updates + 1, []
        assert not set(decision.released) & set(self.stamps), "it has been released before"
        self.stamps |= dict.fromkeys(decision.released, self.updates)


seeds, counts = st.integers(0, 2**32), st.integers(1, 12)
thousand = settings(max_examples=1000, deadline=None)


@thousand
@given(seeds, counts)
def test_under_sync_every_update_has_one_gradient_of_each_worker_and_none_is_stale(seed: int, workers: int) -> None:
    found = Schedule(find_policy("sync", workers), workers, seed)
    assert set(found.staleness) == {0} and set(found.sizes) == {workers} and found.dropped == 0
    assert max(found.pushed.values()) - min(found.pushed[one] for one in range(workers)) <= 1


@thousand
@given(seeds, st.integers(2, 12), st.data())
def test_with_spare_workers_updates_have_the_first_gradients_and_late_ones_are_dropped(
    seed: int, workers: int, data: st.DataObject
) -> None:
    spare = data.draw(st.integers(1, workers - 1))
    found = Schedule(find_policy(f"backup:spare={spare}", workers), workers, seed)
    assert set(found.staleness) == {0} and set(found.sizes) <= {workers - spare}
    assert found.dropped + len(found.staleness) == 200 and len(found.staleness) - sum(found.sizes) == len(found.group)


@thousand
@given(seeds, counts, st.integers(0, 5))
def test_under_ssp_no_worker_is_more_iterations_ahead_than_allowed(seed: int, workers: int, staleness: int) -> None:
    found = Schedule(find_policy(f"ssp:staleness={staleness}", workers), workers, seed)
    assert (
        max(found.gaps) == found.policy.largest_gap <= staleness + 1 and found.dropped == 0 and set(found.sizes) == {1}
    )


@thousand
@given(seeds, counts)
def test_ssp_with_a_large_staleness_is_async(seed: int, workers: int) -> None:
    stale, free = (Schedule(find_policy(name, workers), workers, seed) for name in ("ssp:staleness=1000", "async"))
    assert (stale.staleness, stale.pushed, stale.sizes) == (free.staleness, free.pushed, free.sizes)


@thousand
@given(seeds, counts, st.data())
def test_softsync_applies_as_many_gradients_at_once_as_asked_for(seed: int, workers: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, workers))
    found = Schedule(find_policy(f"softsync:n={n}", workers), workers, seed)
    assert set(found.sizes) == {workers // n} and found.dropped == 0


@thousand
@given(seeds, counts)
def test_an_update_of_async_makes_every_gradient_under_way_one_staler(seed: int, workers: int) -> None:
    """So that the mean staleness is workers - 1, but for what is still under way at the end."""
    found = Schedule(find_policy("async", workers), workers, seed)
    under_way = sum(found.updates - stamp for stamp in found.stamps.values())
    assert found.updates == 200 and sum(found.staleness) + under_way == 200 * (workers - 1)


def test_the_mean_staleness_of_async_is_one_less_than_the_number_of_workers() -> None:
    for workers in (1, 2, 8):
        found = Schedule(find_policy("async", workers), workers, seed=1, pushes=20_000)
        assert mean(found.staleness) == pytest.approx(workers - 1, rel=0.01)


def test_one_iteration_at_a_time_without_staleness() -> None:
    """With staleness 0 a worker goes on when all others have done as many iterations, as under sync."""
    stale, sync = find_policy("ssp:staleness=0", 3), find_policy("sync", 3)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        released = [(stale.push(worker, 0).released, worker) for worker in order]
        assert [one for one, _ in released] == [(), (), (0, 1, 2)]
    assert [sync.push(worker, 0).released for worker in (2, 0, 1)] == [(), (), (0, 1, 2)]


def test_a_rate_may_be_staleness_aware_under_every_policy() -> None:
    for text in ("sync", "backup:spare=1", "async", "softsync:n=2", "ssp:staleness=3"):
        separator = "," if ":" in text else ":"
        assert [find(one, 4)[1] for one in (text, f"{text}{separator}rate=staleness")] == [False, True]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(("async", "softsync:n=2", "ssp:staleness=0", "ssp:staleness=2", "backup:spare=2")),
    st.integers(4, 8), st.randoms(use_true_random=False),
)  # fmt: skip
def test_whoever_dies_and_returns_somebody_can_go_on(text: str, workers: int, draw: random.Random) -> None:
    """Only who waits is released, somebody always computes, and under ssp the gap keeps its limit."""
    policy, updates = find_policy(text, workers), 0
    computing, waiting, dead = dict.fromkeys(range(workers), 0), set[int](), set[int]()
    for _ in range(60):
        happens, released = draw.choice(("push", "push", "push", "lose", "join")), tuple[int, ...]()
        if happens == "lose" and policy.goes_on and len(dead) < workers - 1:
            worker = draw.choice(sorted(computing.keys() | waiting))
            computing.pop(worker, None)
            waiting.discard(worker)
            dead.add(worker)
            released = policy.lose(worker)
        elif happens == "join" and dead:
            worker = draw.choice(sorted(dead))
            dead.discard(worker)
            policy.join(worker)
            computing[worker] = updates
        else:
            worker = draw.choice(sorted(computing))
            decision = policy.push(worker, computing.pop(worker))
            waiting.add(worker)
            updates, released = updates + decision.applies, decision.released
        assert set(released) <= waiting
        waiting.difference_update(released)
        computing |= dict.fromkeys(released, updates)
        assert computing, f"all of {sorted(waiting)} wait"
        if isinstance(policy, StaleSync):
            gap = max(policy.iterations.values()) - min(policy.iterations.values())
            assert gap <= int(text[-1]) + 1


def test_a_worker_that_dies_does_not_keep_the_others_waiting() -> None:
    stale = find_policy("ssp:staleness=1", 3)
    assert [stale.push(0, 0).released, stale.push(1, 0).released, stale.push(0, 1).released] == [(0,), (1,), ()]
    assert stale.lose(2) == (0,), "the slowest was the one that died"
    stale.join(2)
    assert stale.push(0, 2).released == () and stale.push(2, 3).released == (2,)
    spare = find_policy("backup:spare=1", 3)
    spare.push(0, 0)
    assert spare.goes_on and spare.lose(2) == () and not spare.goes_on
    assert spare.push(1, 0).released == (0, 1)
    with pytest.raises(UserError, match="no backup worker is left, and every update needs all of the others"):
        spare.lose(1)
    assert not find_policy("sync", 3).goes_on and find_policy("async", 3).lose(1) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("asink", "unknown policy 'asink', did you mean async?"),
        ("ssp", "ssp: give its staleness, for instance ssp:staleness=1"),
        ("backup:spare=4", "spare is 4, but at least one of 4 workers is needed"), ("softsync:n=5", "n is 5, expected 1 to 4"),
        ("ssp:staleness=-1", "staleness is -1, expected 0 or more"), ("sync:spare=1", "sync has no parameters"),
        ("average:every=0", "every is 0, expected 1"),
        ("average:every=2,rate=staleness", "rate=staleness would do nothing"),
        ("ssp:staleness=few", "staleness is 'few'"), ("async:rate=fast", "rate is 'fast', expected staleness, or nothing"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_told(text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        find_policy(text, workers=4)
    assert told in str(error.value)
