"""A simulated parameter server trains as data-parallel training does under sync, and as its policies say otherwise."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command

from firetrain.cluster import Identity, World
from firetrain.config import load_config
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.order import Samples
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.flat import flat, flat_gradient
from firetrain.parallel.shard import UpdatedShard
from firetrain.parallel.tickets import samples_of
from firetrain.records.outcome import Outcome
from firetrain.records.profile import Profile
from firetrain.report.simulated import load
from firetrain.simulate.machine import Machine, assumed, measured
from firetrain.simulate.simulation import Simulation, outcomes
from firetrain.simulate.virtual_cluster import ServerLink, StepTimes
from firetrain.transport.transport import Transport

SMALL = (
    "model.name=lenet", "data.image_size=28", "batch.global_size=30", "target.top1=null", "learning_rate.warmup_epochs=0",
    "learning_rate.base=0.0005",
)  # fmt: skip
STRAGGLERS = StepTimes(jitter=0.2, slow_share=0.05, slow_factor=5.0)


@cache
def digits() -> Dataset:
    return open_dataset(load_config("squeezenet-digits").config.data)


def simulation(policy: str, workers: int, *more: str, times: StepTimes = STRAGGLERS, epochs: int = 1) -> Simulation:
    config = load_config("squeezenet-digits", [*SMALL, f"target.max_epochs={epochs}", *more]).config
    return Simulation(config, digits(), policy, workers, Machine(times, ServerLink(), lambda images: 1.0))


def simulated(policy: str, workers: int, *more: str, epochs: int = 1) -> Outcome:
    return simulation(policy, workers, *more, epochs=epochs).run()


def data_parallel(steps: int, *more: str, gradients: list[torch.Tensor] | None = None) -> torch.Tensor:
    """The weights after some steps of ordinary training on one rank; the gradient of each step is added to `gradients`."""
    config = load_config("squeezenet-digits", [*SMALL, "target.max_epochs=1", "cluster.ranks_per_node=1", *more]).config
    one = simulation("sync", 1, *more)
    transport = Transport("gloo", Identity(), World.even(1, 1), torch.device("cpu"), 60.0)
    worker = make_worker(config, 10, transport, {})
    for step, samples in enumerate(islice(shares_of_epoch(one), steps)):
        worker.backward(one._images.training_batches([samples], 0), [samples], 0)
        worker.finish(float(len(samples)))
        if gradients is not None:
            gradients.append(flat_gradient(worker.model))
        worker.update(one._schedule.rate(step))
    return flat(worker.model)


def shares_of_epoch(one: Simulation) -> Iterator[Samples]:
    """The images of every share of the first epoch."""
    config, images = one._config, len(digits().train.labels)
    for number in range(one._per_epoch):
        yield samples_of(number, images, config.batch.global_size, config.seed, one._shares)[1]


@pytest.mark.parametrize(
    ("policy", "workers"), [("sync", 1), ("async", 1), ("ssp:staleness=2", 1), ("average:every=5", 1), ("sync", 4), ("sync", 7)]
)  # fmt: skip
def test_one_worker_or_sync_is_data_parallel_training(policy: str, workers: int) -> None:
    """Also with shares of 5 and 4 images."""
    one = simulation(policy, workers)
    one._cluster.run(one._pull, one._push, lambda: one._tickets.used < 20 * workers)
    expected = data_parallel(20)
    torch.testing.assert_close(one._server.weights, expected, rtol=0.0, atol=1e-6 if workers > 1 else 0.0)


# without a max pooling, in which rounding decides between two equal pixels
SMOOTH = """
from torch import nn


def smooth(classes):
    return nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.Tanh(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(128, classes))
"""


@pytest.mark.parametrize("workers", [4, 7])
@pytest.mark.parametrize("seed", range(1, 6))
def test_all_gradients_of_sync_are_those_of_data_parallel_training(workers: int, seed: int, tmp_path: Path) -> None:
    (tmp_path / "smooth.py").write_text(SMOOTH)
    own = (f"model.name={tmp_path}/smooth.py:smooth", "model.stem=null", f"seed={seed}", "learning_rate.base=0.05")
    one, found, expected = simulation("sync", workers, *own), list[torch.Tensor](), list[torch.Tensor]()
    shard = one._server.shard
    assert isinstance(shard, UpdatedShard)
    shard._optimizer.register_step_pre_hook(lambda *_: found.append(shard._gradient.clone()))
    one._cluster.run(one._pull, one._push, lambda: one._tickets.used < 20 * workers)
    weights = data_parallel(20, *own, gradients=expected)
    assert len(found) == len(expected) == 20 and max(gradient.abs().max() for gradient in expected) > 0.1
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=0.0, atol=1e-6)
    torch.testing.assert_close(one._server.weights, weights, rtol=0.0, atol=1e-6)
    plain = (*own, "optimizer.momentum=0")
    averaged = simulation("average:every=1", workers, *plain)
    averaged._cluster.run(averaged._pull, averaged._push, lambda: averaged._server.updates < 20)
    torch.testing.assert_close(averaged._server.weights, data_parallel(20, *plain), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("workers", [4, 7])
def test_averages_after_every_step_are_data_parallel_training_without_momentum(workers: int) -> None:
    plain = ("optimizer.momentum=0", "seed=2")  # with some seeds, rounding decides between two pixels of a pool
    one = simulation("average:every=1", workers, *plain)
    one._cluster.run(one._pull, one._push, lambda: one._server.updates < 20)
    torch.testing.assert_close(one._server.weights, data_parallel(20, *plain), rtol=0.0, atol=1e-6)


def test_weights_are_averaged_after_the_steps_that_were_asked_for() -> None:
    """Of 48 steps of 2 workers: after 20, 40 and 48; or once, at the end. Rarer messages take less time."""
    often, rarely, once = (simulated(f"average{every}", 2) for every in (":every=1", ":every=20", ""))
    assert [(one.updates, one.gradients, one.curve[-1].updates) for one in (often, rarely, once)] == [
        (48, 96, 48), (3, 96, 3), (1, 96, 1),
    ]  # fmt: skip
    assert often.seconds > rarely.seconds > once.seconds and often.mean_staleness == once.mean_staleness == 0.0
    assert often.curve != rarely.curve != once.curve
    twice = simulated("average:every=40", 2, epochs=2)
    assert [point.updates for point in twice.curve] == [2, 3], "at the first average after each epoch"


@pytest.mark.parametrize("policy", ["sync", "backup:spare=2", "async", "softsync:n=4", "ssp:staleness=1"])
def test_every_image_is_used_once_an_epoch(policy: str) -> None:
    one = simulation(policy, 6)
    used: Counter[int] = Counter(int(sample) for share in shares_of_epoch(one) for sample in share)
    assert set(used.values()) == {1} and len(used) == len(digits().train.labels)
    found = one.run()
    assert found.gradients == one._per_epoch == found.dropped + sum(found.staleness.values())


def test_the_same_seed_gives_the_same_bits() -> None:
    first, again, other = (simulated("async", 4, f"seed={seed}") for seed in (1, 1, 2))
    assert first == again and first.curve != other.curve


def test_ssp_without_a_limit_has_the_bits_of_async() -> None:
    stale, free = (simulation(policy, 4) for policy in ("ssp:staleness=1000000", "async"))
    assert stale.run().curve == free.run().curve
    assert torch.equal(stale._server.weights, free._server.weights)
    assert stale._server.facts()["largest_gap"] > 1 and "largest_gap" not in free._server.facts()


def test_stale_gradients_save_time() -> None:
    found = {policy: simulated(policy, 8) for policy in ("sync", "backup:spare=1", "ssp:staleness=3", "async")}
    seconds = [one.seconds for one in found.values()]
    assert seconds[0] > seconds[1] and seconds[0] > seconds[2] > seconds[3]
    idle = [one.idle_share for one in found.values()]
    assert idle[0] > 0.4 > idle[2] > idle[3] and idle[3] < 0.05
    assert found["sync"].mean_staleness == 0.0 and found["async"].mean_staleness == pytest.approx(7, rel=0.03)
    assert found["backup:spare=1"].dropped > 0 == found["async"].dropped


def test_training_ends_when_the_target_is_reached() -> None:
    found = simulated("sync", 2, "target.top1=0.2", epochs=30)
    assert found.target_s == found.seconds and found.curve[-1].top1 >= 0.2 > max(
        (p.top1 for p in found.curve[:-1]), default=0
    )
    assert simulated("sync", 2, "target.top1=1.0").target_s is None


def test_training_ends_after_the_steps_that_were_asked_for() -> None:
    """Of 48 steps in an epoch, with two gradients each; the weights are evaluated at the end only."""
    found = simulated("async", 2, "target.max_steps=5")
    assert found.gradients == found.updates == 10 and len(found.curve) == 1
    rarely = simulated("sync", 2, "target.evaluate_every_epochs=2", epochs=3)
    assert [point.updates for point in rarely.curve] == [96, 144]


def test_nothing_is_computed_after_the_last_share() -> None:
    """Of 48 steps with 4 workers, of which the fast ones find no share at the end, all gradients arrive."""
    one = simulation("async", 4, times=StepTimes(jitter=0.0, factors=(1.0, 1.0, 1.0, 30.0)))
    computed = [0, 0, 0, 0]

    def pull(worker: int) -> list[float]:
        gradients = Simulation._pull(one, worker)
        computed[worker] += len(gradients)
        return gradients

    one._cluster.run(pull, one._push, lambda: not one._over)
    assert sum(computed) == one._tickets.used == one._tickets.total == 48 * 4


def test_workers_that_average_share_the_images_of_a_step() -> None:
    """The shares of a step are dealt in turn, as to real workers: each worker has one of every step."""
    one = simulation("average:every=3", 2)
    assert one._drawn == {0: [0, 2, 4], 1: [1, 3, 5]}


def test_weights_that_diverge_are_told_without_numbers_that_json_lacks() -> None:
    found = simulated("async", 2, "learning_rate.base=1e6", "target.max_steps=6")
    assert found.curve[-1].loss is None
    json.dumps(found.as_json(), allow_nan=False)


def test_the_command_compares_policies_over_seeds(firetrain: Command, tmp_path: Path) -> None:
    options = [word for one in (*SMALL, "target.max_epochs=1", "target.top1=0.05") for word in ("--set", one)]
    command = ("simulate", "squeezenet-digits", *options, "--workers", "3", "--stragglers", "0.05x5", "--seeds", "1,2")
    done = firetrain(*command, "--policies", "sync,backup:spare=1,async:rate=staleness", "--plots", "plots")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert [row[0] for row in rows] == ["sync", "backup:spare=1", "async:rate=staleness"] and "2 of 2" in done.stdout
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{name}{suffix}"
        for name in ("accuracy", "staleness", "workers", "backup-workers")
        for suffix in (".svg", ".png")
    }
    printed = firetrain(*command, "--policies", "sync", "--json").stdout
    found = json.loads(printed)
    assert [one["seed"] for one in found] == [1, 2] and np.isfinite([one["idle_share"] for one in found]).all()
    (tmp_path / "simulated.json").write_text(printed)
    assert json.loads(json.dumps([one.as_json() for one in load(tmp_path / "simulated.json")])) == found


def test_a_gradient_over_more_images_takes_longer() -> None:
    """Of four workers with two backup ones, each computes half of the batch in place of a quarter."""
    config = load_config("squeezenet-digits", [*SMALL, "batch.global_size=32", "target.max_epochs=1"]).config
    machine = assumed(8)._replace(times=StepTimes(jitter=0.0))
    sync, spare = outcomes(config, ["sync", "backup:spare=2"], 4, [1], machine)
    assert sync.seconds_per_update == pytest.approx(1.0) and spare.seconds_per_update == pytest.approx(2.0, rel=0.01)
    uneven = simulation("backup:spare=1", 4, "batch.global_size=32", times=StepTimes(jitter=0.0))
    uneven._gradient_s = float
    uneven._cluster.run(uneven._pull, uneven._push, lambda: uneven._server.updates < 3)
    ended_s = [one.ended_s for one in uneven._cluster.spans]
    assert ended_s[:4] == [10.0, 10.0, 11.0, 11.0], "shares of 32 images have 10, 11 and 11"
    profile = Profile.find("titan-k20")
    costs = load_config("googlenet-firecaffe", ["batch.global_size=1024"]).config
    measured_s = [measured(costs, profile, 32, 1).gradient_s(images) for images in (32, 64)]
    assert measured_s[1] > 1.5 * measured_s[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policies", "asink"], "unknown policy 'asink', did you mean async?"), (["--workers", "64"], "give each at least one"),
        (["--policies", "backup:spare=8"], "spare is 8, but at least one of 8 workers"),
        (["--stragglers", "0.05"], "separated by 'x'"), (["--stragglers", "5x0.05"], "expected a share of at most 1"),
        (["--slow", "8:2"], "workers are numbered from 0 to 7"),
        (["--slow", "0:2,0:3"], "--slow 0:3: expected one factor of at least 1 for each worker"),
        (["--slow", "1:0"], "--slow 1:0: expected one factor of at least 1"),
        (["--set", "strategy.name=parameter-server"], "takes its policies from --policies: leave out strategy.name and "),
        (["--set", "compile=true"], "simulate does not support compile: true, as parameter servers do not"),
        (["--set", "log.noise_scale=true"], "simulate does not support log.noise_scale: true"),
        (["--set", "strategy.name=pipeline"], "simulate times data-parallel training, and strategy.name is pipeline"),
        (["--seeds", "1,1"], "expected different whole numbers"),
        (["--servers", "2"], "--servers: only with --profile"), (["--profile", "titan-k20"], "the profile has no steps of"),
        (["--set", "strategy.name=one-weird-trick"], "simulate times data-parallel training"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_words(options: list[str], told: str, firetrain: Command) -> None:
    done = firetrain("simulate", "squeezenet-digits", "--workers", "8", *options)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr
