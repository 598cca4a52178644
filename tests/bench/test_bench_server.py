"""Pushes to a parameter server are timed beside a copy, and only if the weights are right."""

from __future__ import annotations

import json

import pytest
from command import Command

from firetrain.bench.server import bench_server
from firetrain.config import load_config
from firetrain.errors import FiretrainError
from firetrain.models.catalogue import make_model
from firetrain.parallel.shard import UpdatedShard

LENET = ("model.name=lenet", "data.image_size=28")
POLICIES = ("sync", "backup:spare=1", "ssp:staleness=3", "async:rate=staleness", "softsync:n=2")


def test_every_policy_is_timed_beside_a_copy(firetrain: Command) -> None:
    options = [word for one in LENET for word in ("--set", one)]
    command = ("bench", "server", "squeezenet-digits", *options, "--policies", ",".join(POLICIES), "--pushes", "40")
    found = json.loads(firetrain(*command, "--json").stdout)
    assert [one["policy"] for one in found] == list(POLICIES)
    model = make_model(load_config("squeezenet-digits", LENET).config.model, 10, seed=1)
    size_bytes = 4 * sum(one.numel() for one in model.parameters())
    assert {one["bytes"] for one in found} == {size_bytes}
    for one in found:
        assert one["decide_of_copy"] == pytest.approx(one["decide_s"] / one["copy_s"]) and one["apply_s"] > 0
    assert f"{size_bytes / 2**20:.1f} MiB a push, 8 workers" in firetrain(*command).stdout


def test_wrong_weights_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("squeezenet-digits", LENET).config
    monkeypatch.setattr(UpdatedShard, "take", lambda shard, order, values: None)
    with pytest.raises(FiretrainError, match="async: weights differ by .*: not timed"):
        list(bench_server(config, ["async"], 2, 10))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policies", "sync,average:every=2"], "under average:every=2 workers push weights"),
        (["--policies", "asynk"], "did you mean async?"),
        (["--policies", "backup:spare=8"], "spare is 8"),
    ],
)
def test_what_cannot_be_timed_is_told(options: list[str], told: str, firetrain: Command) -> None:
    done = firetrain("bench", "server", "squeezenet-digits", *options)
    assert done.returncode == 2 and told in done.stderr and not done.stdout
