"""The server applies exactly what it is given: data-parallel steps under sync, the recurrence of stale gradients under async."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from firetrain.parallel.server import Server
from firetrain.parallel.shard import UpdatedShard
from firetrain.strategy.policy import find_policy


def server(policy: str, workers: int, rate: float = 0.1, momentum: float = 0.0) -> Server:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    machine, aware = find_policy(policy, workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    return Server(UpdatedShard(model, optimizer), machine, lambda gradients: rate, staleness_aware=aware)


def gradients(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(8, generator=draw) for _ in range(count)]


def test_the_lecture_s_timeline() -> None:
    """At step 100 gradients come with stamps 97, 98, 100, 99: staleness 3, 3, 2, 4, applied in this order."""
    one, given = server("async", workers=4), gradients(104)
    for number in range(100):
        one.push(0, number, given[number], images=1)
    one.staleness.clear()
    expected, seen = one.weights.clone(), []
    for stamp, gradient in zip((97, 98, 100, 99), given[100:], strict=True):
        seen.append(one.updates - stamp)
        assert one.push(1, stamp, gradient, images=1) == (1,)
        expected = expected - 0.1 * gradient
        torch.testing.assert_close(one.weights, expected)
    assert seen == [3, 3, 2, 4] and one.updates == 104 and dict(one.staleness) == {3: 2, 2: 1, 4: 1}


def test_under_sync_an_update_is_the_mean_over_all_images() -> None:
    """Shares of 3, 1 and 4 images, whose gradients are sums over their images."""
    one, (a, b, c) = server("sync", workers=3), gradients(3)
    before = one.weights.clone()
    assert one.push(2, 0, c, images=4) == () == one.push(0, 0, a, images=3) and torch.equal(one.weights, before)
    assert one.push(1, 0, b, images=1) == (0, 1, 2)
    torch.testing.assert_close(one.weights, before - 0.1 * (a + b + c) / 8)


def test_late_gradients_are_dropped_and_change_nothing() -> None:
    one, (a, b, late) = server("backup:spare=1", workers=3), gradients(3)
    one.push(0, 0, a, images=2)
    assert one.push(2, 0, b, images=2) == (0, 2)
    after = one.weights.clone()
    assert one.push(1, 0, late, images=2) == (1,) and torch.equal(one.weights, after)
    assert one.dropped == 1 and dict(one.staleness) == {0: 2} and one.updates == 1


def test_an_empty_share_changes_nothing_although_there_is_momentum() -> None:
    one, (a, b) = server("async", workers=2, momentum=0.9), gradients(2)
    one.push(0, 0, a, images=2)
    after = one.weights.clone()
    assert one.push(1, 0, torch.zeros_like(b), images=0) == (1,) and torch.equal(one.weights, after)
    one.push(0, 1, b, images=1)
    torch.testing.assert_close(one.weights, after - 0.1 * (0.9 * a / 2 + b))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_staleness_aware_rate_divides_stale_gradients(momentum: float) -> None:
    plain, aware = (server(f"async{rate}", 2, momentum=momentum) for rate in ("", ":rate=staleness"))
    given, stamps = gradients(4), (0, 0, 0, 3)
    for gradient, stamp in zip(given, stamps, strict=True):
        factor = 1 / max(1, plain.updates - stamp)
        plain.push(0, stamp, gradient * factor, images=1)
        aware.push(0, stamp, gradient, images=1)
    torch.testing.assert_close(plain.weights, aware.weights)


POLICIES = ("sync", "backup:spare=1", "backup:spare=3", "async", "softsync:n=2", "softsync:n=4", "ssp:staleness=1")


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_no_gradient_is_lost_or_applied_twice(policy: str, draw: random.Random) -> None:
    """In any order of pushes weights move by the mean of those that an update has; each is a digit of its own."""
    workers, digits = 4, 24
    one, machine = server(policy, workers, rate=1.0), find_policy(policy, workers)[0]
    stamps, kept, applied, dropped = dict.fromkeys(range(workers), 0), list[int](), list[int](), 0
    one.weights.zero_()
    for digit in range(digits):
        worker = draw.choice(sorted(stamps))
        stamp = stamps.pop(worker)
        decision = machine.push(worker, stamp)
        size = (
            workers // 2 if policy == "softsync:n=2" else machine.shares if policy.startswith(("sync", "backup")) else 1
        )
        gradient = torch.zeros(8)
        gradient[digit % 8] = size * 10 ** (digit // 8)
        released = one.push(worker, stamp, gradient, images=1)
        assert released == decision.released
        kept += [digit] if decision.keeps else []
        dropped += not decision.keeps
        if decision.applies:
            applied, kept = applied + kept, []
        stamps |= dict.fromkeys(released, one.updates)
    expected = torch.zeros(8)
    for digit in applied:
        expected[digit % 8] -= 10 ** (digit // 8)
    torch.testing.assert_close(one.weights, expected)
    assert one.dropped == dropped + len(kept) and sum(one.staleness.values()) == len(applied)


def test_the_model_s_parameters_are_the_server_s_weights() -> None:
    model = nn.Linear(3, 2)
    expected = torch.cat([one.detach().flatten() for one in model.parameters()])
    one = Server(
        UpdatedShard(model, torch.optim.SGD(model.parameters(), lr=1.0)),
        find_policy("async", 1)[0],
        lambda gradients: 1.0,
    )
    assert torch.equal(one.weights, expected)
    one.weights.zero_()
    assert all(not parameter.any() for parameter in model.parameters())


def test_a_gradient_counts_as_dropped_until_an_update_has_it() -> None:
    """Updates of softsync:n=1 have two gradients here; a run may end between them."""
    one, (a, b, c) = server("softsync:n=1", workers=2), gradients(3)
    one.push(0, 0, a, images=2)
    assert one.dropped == 1 and not one.staleness
    one.push(1, 0, b, images=2)
    assert one.dropped == 0 and dict(one.staleness) == {0: 2} and one.updates == 1
    one.push(0, 0, c, images=2)
    assert one.facts()["dropped"] == 1 and one.facts()["staleness"] == {"0": 2}
