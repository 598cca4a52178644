"""The server applies exactly what it is given: data-parallel steps under sync, the recurrence of stale gradients under async."""

from __future__ import annotations

import pytest
import torch
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


def test_no_gradient_is_lost_or_applied_twice() -> None:
    """With rate 1 and no momentum the weights move by the sum of all gradients that were kept."""
    for policy in ("async", "softsync:n=2", "ssp:staleness=1"):
        one, given = server(policy, workers=4, rate=1.0), gradients(16)
        before, images = one.weights.clone(), 2 if policy.startswith("softsync") else 1
        for number, gradient in enumerate(given):
            one.push(number % 4, one.updates, gradient, images=1)
        torch.testing.assert_close(one.weights, before - torch.stack(given).sum(0) / images)


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
