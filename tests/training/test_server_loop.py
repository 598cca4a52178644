"""A server over real connections applies what workers push, in the order in which it comes, and survives what they do."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from puppets import RATE, Theatre
from torch import Tensor

from firetrain import checkpoint
from firetrain.errors import FiretrainError
from firetrain.models.catalogue import make_model
from firetrain.parallel.batch_norm import statistics
from firetrain.records import Run
from firetrain.training.divergence import Diverged
from firetrain.training.stop import Stopped


def saved(run: Run) -> dict[str, Tensor]:
    path, _ = checkpoint.newest(run.path / "checkpoints")
    assert path is not None
    found: dict[str, Tensor] = checkpoint.load(path)["model"]
    return found


def test_the_lecture_s_timeline_over_connections() -> None:
    """Stamps 97, 98, 100, 99 at step 100: staleness 3, 3, 2, 4, and the recurrence W <- W - r g in this order.

    27 steps of four shares are 108 gradients.
    """
    theatre = Theatre.open("policy=async", 5, "target.max_steps=27")
    a, b, c, d = theatre.puppets()
    for one in (a, b, c, d):
        one.pull()
    start = a.weights.clone()
    for number in range(97):  # the first worker makes 97 updates alone; the others wait for their turn
        a.push(number % 3)
        a.pull()
    at_97 = a.weights.clone()
    torch.testing.assert_close(at_97, start - RATE / 16 * sum(number % 3 for number in range(97)))
    # b and the others still hold the first weights: they renew them, each at another time
    for one in (b, d, c):
        one.push(0.0)
        one.pull()
    assert [one.task["stamp"] for one in (a, b, c, d)] == [97, 98, 100, 99]
    before = c.weights.clone()
    for one, value in ((a, 1.0), (b, 2.0), (c, 4.0), (d, 8.0)):
        one.push(value)
        one.pull()  # so that the server has taken it before the next one comes
        before -= RATE / 16 * value
    for one in (a, b, c, d):
        one.push(0.0)
    for one in (a, b, c, d):
        assert one.pull() == {"stop": True}
    assert theatre.end() is None
    torch.testing.assert_close(
        torch.cat([value.flatten() for value in saved(theatre.run).values()]).sum(), before.sum()
    )
    first_pushes = {"0": 97, "97": 1, "98": 1, "99": 1}
    found = Counter(theatre.facts()["staleness"])
    found.subtract(first_pushes | {"3": 2, "2": 1, "4": 1})
    # the last four, for the weights after updates 101 to 104, are applied as updates 105 to 108, in any order
    assert theatre.facts()["updates"] == 108 and min(found.values()) >= 0 and found.total() == 4
    assert sum(int(staleness) * count for staleness, count in found.items()) == 12


def test_under_sync_nobody_goes_on_before_all_have_pushed() -> None:
    theatre = Theatre.open("policy=sync", 4, "target.max_steps=2")
    a, b, c = theatre.puppets()
    start = [one.pull() and one.weights.clone() for one in (a, b, c)][0]
    a.push(1.0, images=16)
    c.push(4.0, images=8)
    with pytest.raises(TimeoutError):
        a.pull(limit_s=0.3)
    b.push(1.0, images=8)
    for one in (a, b, c):
        assert one.pull()["stamp"] == 1
        torch.testing.assert_close(one.weights, start - RATE * (1.0 + 4.0 + 1.0) / 32)
    for one in (a, b, c):
        one.push(0.0)
    assert [one.pull() for one in (a, b, c)] == [{"stop": True}] * 3
    assert theatre.end() is None and theatre.facts()["staleness"] == {"0": 6}


@pytest.mark.parametrize("servers", [1, 2])
def test_late_gradients_of_backup_workers_are_dropped(servers: int) -> None:
    """Eight shares: three updates of two gradients each, and two gradients that come too late for theirs."""
    theatre = Theatre.open(f"policy=backup,spare=1,servers={servers}", servers + 3, "target.max_steps=4")
    a, b, late = theatre.puppets()
    for one in (a, b, late):
        one.pull()
    expected = a.weights - RATE * 4.0 / 32
    a.push(1.0)
    b.push(3.0)
    for one in (a, b):
        one.pull()
        torch.testing.assert_close(one.weights, expected)
    late.push(100.0)
    late.pull()
    for one in (a, b):
        one.push(0.0)
    for one in (a, b):
        one.pull()
    late.push(100.0)
    for one in (a, b):
        one.push(0.0)
    for one in (a, b, late):
        assert one.pull() == {"stop": True}
    assert theatre.end() is None
    assert theatre.facts()["dropped"] == 2 and theatre.facts()["updates"] == 3
    whole = torch.cat([value.flatten() for value in saved(theatre.run).values()])
    torch.testing.assert_close(whole.sort().values, expected.sort().values)


def test_a_resumed_run_still_drops_what_is_late() -> None:
    """The policy counts updates from the start of its attempt, and stamps go on from the checkpoint."""
    theatre = Theatre.open("policy=backup,spare=1", 4, "target.max_steps=4")
    for attempt in (1, 2):
        a, b, late = theatre.puppets()
        for one in (a, b, late):
            assert one.pull()["stamp"] == attempt - 1
        if attempt == 1:
            theatre.run.stop_mark.touch()
        for one in (a, b):
            one.push(1.0)
        if attempt == 1:
            assert [one.pull() for one in (a, b, late)] == [{"stop": True}] * 3
            assert isinstance(theatre.end(), Stopped)
            theatre = Theatre.open("policy=backup,spare=1", 4, "target.max_steps=4", run=theatre.run)
    late.push(100.0)
    for one in (a, b, late):
        assert one.pull()["stamp"] == 2
        one.push(0.0)
    assert theatre.end() is None and theatre.facts()["dropped"] >= 1 and theatre.facts()["updates"] == 3


def test_a_worker_s_mistake_ends_the_run_in_its_words() -> None:
    theatre = Theatre.open("policy=async", 3)
    a, _ = theatre.puppets()
    a.pull()
    a.say({"error": "5.png: not an image of a known format"})
    error = theatre.end()
    assert type(error) is FiretrainError and str(error) == "5.png: not an image of a known format"


def test_a_loss_that_is_not_finite_ends_the_run_and_sends_the_workers_home() -> None:
    theatre = Theatre.open("policy=async", 3)
    a, b = theatre.puppets()
    for one in (a, b):
        one.pull()
    a.push(0.0, loss=float("nan"))
    for one in (a, b):
        assert one.pull() == {"stop": True}
    error = theatre.end()
    assert isinstance(error, Diverged) and "diverged at step 1: the loss is nan" in str(error)


def test_a_stopped_run_goes_on_with_its_weights_and_its_order() -> None:
    theatre, used = Theatre.open("policy=async", 3, "target.max_steps=6"), Counter[int]()
    a, b = theatre.puppets()
    for one in (a, b):
        one.pull()
    for _ in range(3):
        used.update(a.task["numbers"])
        a.push(1.0)
        a.pull()
    theatre.run.stop_mark.touch()
    used.update(a.task["numbers"])
    a.push(1.0)  # the second step is complete
    assert a.pull() == {"stop": True}
    error = theatre.end()
    assert isinstance(error, Stopped) and "stopped after step 2" in str(error)
    before = torch.cat([value.flatten() for value in saved(theatre.run).values()]).double().sum()
    again = Theatre.open("policy=async", 3, "target.max_steps=6", run=theatre.run)
    c, d = again.puppets()
    for one in (c, d):
        assert one.pull()["stamp"] == 4
    torch.testing.assert_close(c.weights.double().sum(), before, rtol=1e-6, atol=1e-2)
    while "stop" not in c.task:
        used.update(c.task["numbers"])
        c.push(0.0)
        if used.total() == 11:
            break
        c.pull()
    used.update(d.task["numbers"])
    d.push(0.0)
    assert again.end() is None and used == Counter(range(12)) and again.facts()["updates"] == 12


@pytest.mark.parametrize("optimizer", [("optimizer.momentum=0.5",), ("optimizer.name=lamb",)])
def test_two_servers_have_the_weights_of_one(optimizer: tuple[str, ...]) -> None:
    """The same gradients: the checkpoints have the same bits, optimiser included."""
    options, found = ("target.max_steps=3", "optimizer.weight_decay=0.01", *optimizer), []
    for servers in (1, 2):
        theatre = Theatre.open(f"policy=sync,servers={servers}", servers + 2, *options)
        workers, draw = theatre.puppets(), torch.Generator().manual_seed(3)
        for _ in range(3):
            for one in workers:
                one.pull()
            for one in workers:
                one.push(torch.randn(one.weights.shape, generator=draw))
        assert theatre.end() is None
        path, _ = checkpoint.newest(theatre.run.path / "checkpoints")
        assert path is not None
        found.append(checkpoint.load(path))
    one, two = found
    assert all(torch.equal(value, two["model"][name]) for name, value in one["model"].items())
    assert one["optimizer"]["state"].keys() == two["optimizer"]["state"].keys()
    for number, state in one["optimizer"]["state"].items():
        assert state and all(torch.equal(value, two["optimizer"]["state"][number][key]) for key, value in state.items())
    steps = [[group.get("step") for group in many["optimizer"]["param_groups"]] for many in found]
    assert steps[0] == steps[1] == ([3, 3] if "optimizer.name=lamb" in optimizer else [None] * len(steps[0]))


def test_statistics_of_batch_norm_are_means_over_the_workers() -> None:
    theatre = Theatre.open(
        "policy=sync", 3, "target.max_steps=1", "model.batch_norm=true", "model.name=squeezenet_mini"
    )

    count = statistics(make_model(theatre.loaded.config.model, 10, 1)).numel()
    assert count
    a, b = theatre.puppets(count)
    for one in (a, b):
        one.pull()
    a.push(0.0, statistics=1.0)
    b.push(0.0, statistics=3.0)
    assert theatre.end() is None
    running = {name: value for name, value in saved(theatre.run).items() if "running" in name}
    assert running and all(bool((value == 2.0).all()) for value in running.values())


def test_an_epoch_that_ends_early_counts_as_under_data_parallel_training() -> None:
    theatre = Theatre.open("policy=async", 2, "target.max_steps=31")
    (a,) = theatre.puppets()
    while "stop" not in a.pull():
        a.push(0.0, images=48)
    assert theatre.end() is None and theatre.steps_per_epoch == 30
    assert [line["epoch"] for line in theatre.run.metrics("evaluation")] == [1, 2]
    assert theatre.run.summary()["epochs"] == 2
