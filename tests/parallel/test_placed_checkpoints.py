"""Checkpoints know no strategy: what one strategy has saved, another one goes on with."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
import torch
from placed import config_of, trained, unpacked
from ranks import on_ranks

from firetrain.parallel.catalogue import make_worker
from firetrain.transport.transport import Transport


@pytest.mark.parametrize("optimizer", [("lars",), ("lamb", "optimizer.weight_decay=0.01")])
@pytest.mark.parametrize("strategy", ["tensor-parallel:split=alternate", "pipeline:stages=3"])
def test_a_run_goes_on_under_another_strategy(strategy: str, optimizer: Sequence[str]) -> None:
    options = [f"optimizer.name={optimizer[0]}", *optimizer[1:]]
    placed = [*options, f"strategy.name={strategy}"]
    (alone,) = on_ranks(1, trained, options, range(6))
    begun, *_ = on_ranks(3, trained, placed, range(3))
    for ranks, given in ((2, options), (1, options), (3, placed)):
        for one in on_ranks(ranks, trained, given, range(3, 6), begun["state"]):
            assert one["losses"] == pytest.approx(alone["losses"][3:], rel=1e-4)
    (begun,) = on_ranks(1, trained, options, range(3))
    for one in on_ranks(3, trained, placed, range(3, 6), begun["state"]):
        assert one["losses"] == pytest.approx(alone["losses"][3:], rel=1e-4)


def test_heads_without_weight_in_the_loss_are_saved_and_decay_as_on_one_process() -> None:
    heads = [
        "model.name=googlenet_paper",
        "data.image_size=32",
        "model.auxiliary_heads=true",
        "model.auxiliary_weight=0",
    ]
    (alone,) = on_ranks(1, trained, heads, range(2))
    placed = on_ranks(2, trained, [*heads, "strategy.name=one-weird-trick"], range(2))[0]
    theirs, ours = unpacked(alone)["model"], unpacked(placed)["model"]
    assert theirs.keys() == ours.keys() and any(name.startswith("aux") for name in theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5)


def bucket_bytes(transport: Transport, content: bytes, mib: str) -> int:
    state = torch.load(io.BytesIO(content), weights_only=True)
    config = config_of(f"reduction.bucket_mib={mib}", "strategy.name=one-weird-trick")
    worker = make_worker(config, 10, transport, {**state, "bucket_bytes": 12_345})
    found = int(worker.state()["bucket_bytes"])
    worker.close()
    return found


def test_a_resumed_run_keeps_its_bucket_size() -> None:
    begun = on_ranks(2, trained, ["strategy.name=one-weird-trick"], range(1))[0]
    assert on_ranks(2, bucket_bytes, begun["state"], "null") == [12_345, 12_345]
    assert on_ranks(2, bucket_bytes, begun["state"], "0.25") == [1 << 18, 1 << 18], "another was asked for"


def test_a_checkpoint_has_the_batches_that_batch_norm_has_counted_on_other_ranks() -> None:
    options = ["model.batch_norm=true", "strategy.name=pipeline:stages=2"]
    for one in on_ranks(2, trained, options, range(3)):
        if one["state"]:
            counts = [int(n) for name, n in unpacked(one)["model"].items() if name.endswith("num_batches_tracked")]
            assert counts == [3, 3], "of which rank 0 has computed one norm"


def test_batch_norm_goes_on_under_another_strategy_with_its_running_statistics() -> None:
    options = ["model.batch_norm=true", "strategy.name=pipeline:stages=2"]
    begun = on_ranks(2, trained, options, range(3))[0]
    on = on_ranks(2, trained, ["model.batch_norm=true"], range(0), begun["state"])[0]
    assert on["score"] == begun["score"] and unpacked(on)["model"].keys() == unpacked(begun)["model"].keys()
    for name, value in unpacked(begun)["model"].items():
        assert torch.equal(value, unpacked(on)["model"][name]), name
