"""Strategies are timed side by side; what they send is what the placement and the plans predict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import network
import pytest
import torch
from command import Command
from needs import need
from ranks import on_ranks

from firetrain.bench import strategies
from firetrain.bench.strategies import bench_strategies
from firetrain.config import load_config
from firetrain.errors import FiretrainError
from firetrain.transport.transport import Transport

SMALL = ("squeezenet-digits", "--set", "model.name=lenet", "--set", "data.image_size=28", "--set", "batch.global_size=12",
         "--set", "reduction.name=ring", "--steps", "1", "--repeats", "2")  # fmt: skip


def test_every_strategy_is_timed_beside_the_first_one_and_torch(firetrain: Command) -> None:
    names = "data-parallel,one-weird-trick,pipeline:stages=2,micro_batches=4"
    done = firetrain("bench", "strategies", *SMALL, "--strategies", names, "--against", "ddp", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    whole, trick, pipeline, ddp = found["strategies"].values()
    ours, theirs = whole["step_s"], ddp["step_s"]
    assert whole["speedup"]["median"] == 1.0
    assert ours["min"] / theirs["max"] <= ddp["speedup"]["median"] <= ours["max"] / theirs["min"]
    assert trick["exchange_s"] > 0 == trick["bubble_s"] and pipeline["bubble_s"] > 0 == pipeline["exchange_s"]
    for facts in (whole, trick, pipeline):
        spent = sum(facts[key] for key in ("compute_s", "exchange_s", "bubble_s", "exposed_communication_s"))
        assert 0.5 * facts["step_s"]["min"] < spent < 1.1 * facts["step_s"]["max"]
    assert max(found["differences"].values()) < 1e-3


def test_the_idle_time_of_a_pipeline_includes_that_of_a_stage_that_ends_early(firetrain: Command) -> None:
    """The median of two repeats is their mean: compute, idle time and reduction add up to the step of the slowest rank."""
    one = ("--steps", "1", "--repeats", "2", "--set", "batch.global_size=96")
    done = firetrain("bench", "strategies", *SMALL, *one, "--strategies", "pipeline:stages=2", "--json")
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)["strategies"].values()
    spent = sum(facts[key] for key in ("compute_s", "bubble_s", "exposed_communication_s"))
    assert spent == pytest.approx(facts["step_s"]["median"], rel=0.1)


def test_torch_s_one_weird_trick_changes_alexnet_s_weights_alike(firetrain: Command) -> None:
    """The other references are in test_torch_references.py."""
    sizes = ("--set", "model.name=alexnet", "--set", "model.stem=small", "--set", "batch.global_size=4")
    times = ("--steps", "1", "--repeats", "2")
    compared = ("--strategies", "one-weird-trick", "--against", "dtensor")
    done = firetrain("bench", "strategies", "squeezenet-digits", *sizes, *times, *compared, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["differences"]["DTensor and DistributedDataParallel"] < 1e-2


@pytest.mark.parametrize(
    ("references", "told"),
    [
        ("ddp,pipelining:micro_batches=5", "torch needs equal micro-batches: 12 images cannot be divided into 5"),
        ("pipelining", "6 images cannot be divided into 4"),
        ("pipelining:schedule=zb", "unknown schedule 'zb' (valid: 1f1b, gpipe)"),
        ("ddp:micro_batches=2", "ddp has no parameters (micro_batches=2)"),
        ("fsdp", "unknown reference 'fsdp' (valid: ddp"),
    ],
)
def test_a_peer_that_cannot_be_is_refused_in_words(references: str, told: str, firetrain: Command) -> None:
    batch = ("--set", "batch.global_size=6") if references == "pipelining" else ()
    done = firetrain("bench", "strategies", *SMALL, *batch, "--strategies", "data-parallel", "--against", references)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def differing(transport: Transport) -> str:
    """A strategy whose step is done twice changes the weights differently, and is not timed."""
    config = load_config("squeezenet-digits", ["model.name=lenet", "data.image_size=28", "batch.global_size=12"]).config
    made, ours = list[str](), strategies._ours

    def doubled(*arguments: Any) -> strategies.StrategyContender:
        one, number = ours(*arguments), len(made)
        made.append(one.name)
        step = one.step
        if number:
            one.step = lambda: (step(), step())[0]
        return one

    strategies._ours = doubled
    try:
        bench_strategies(config, transport, ["data-parallel", "one-weird-trick"], 1, 2)
    except FiretrainError as error:
        return str(error)
    return "timed"


def test_a_strategy_that_trains_differently_is_not_timed() -> None:
    for told in on_ranks(2, differing):
        assert told.startswith("the weights change differently than under data-parallel: one-weird-trick by ")


def test_the_bytes_on_the_wire_are_those_that_are_predicted() -> None:
    need(network.missing())
    names = "data-parallel,one-weird-trick,tensor-parallel:split=alternate,pipeline:stages=3,micro_batches=2"
    command = [sys.executable, str(Path(network.__file__)), "--nodes", "3", "--rate", "1gbit", sys.executable, "-m", "firetrain",
               "bench", "strategies", *SMALL, "--strategies", names, "--json"]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])["strategies"]
    assert len(found) == 4
    for name, facts in found.items():
        for sent, expected in zip(facts["sent_bytes"], facts["expected_bytes"], strict=True):
            # headers of packets, acknowledgements, and the small collectives of a step
            assert expected <= sent <= 1.05 * expected + 30_000, (name, facts["sent_bytes"], facts["expected_bytes"])
    assert torch.tensor(found["one-weird-trick"]["expected_bytes"]).max() < max(
        found["data-parallel"]["expected_bytes"]
    )
