"""A check of the GPU command fails if what it finds is wrong, and keeps what it has found."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from firetrain.bench.gpu import (
    compilation,
    facts,
    gradients,
    hook,
    inputs,
    kernels,
    links,
    lost,
    optimizers,
    ranks,
    reductions,
    steps,
    strategies,
    throughput,
)
from firetrain.ddp import Reducer
from firetrain.errors import FiretrainError
from firetrain.transport import timing

CPU = torch.device("cpu")


def until_it_fails(check: Iterator[tuple[str, Any]]) -> tuple[dict[str, Any], str]:
    """What a check yields, and its error."""
    found: dict[str, Any] = {}
    with pytest.raises(FiretrainError) as error:
        for name, value in check:
            found[name] = value
    return found, str(error.value)


@pytest.mark.parametrize("check", [gradients, strategies])
def test_a_difference_between_ranks_and_one_rank_is_told_with_its_case(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [{"lenet ring": 1e-7, "alexnet ring": 0.5}] * 2
    monkeypatch.setattr(check, "on_ranks_sharing", lambda *arguments: ("nccl", cases))
    found, told = until_it_fails(check.verify(CPU))
    assert found == {"transport": "nccl", **cases[0]} and "alexnet ring" in told and "lenet" not in told


@pytest.mark.parametrize("check", [gradients, strategies])
def test_numbers_that_are_none_are_differences(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "on_ranks_sharing", lambda *arguments: ("nccl", [{"lenet ring": float("nan")}]))
    assert "lenet ring" in until_it_fails(check.verify(CPU))[1]


@pytest.mark.parametrize("check", [gradients, strategies])
def test_a_rank_that_fails_makes_the_check_fail_with_its_words(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [{"lenet ring": 1e-7}, {"lenet ring": 1e-7, "error": "RuntimeError: unspecified launch failure"}]
    monkeypatch.setattr(check, "on_ranks_sharing", lambda *arguments: ("nccl", cases))
    found, told = until_it_fails(check.verify(CPU))
    assert found["lenet ring"] == 1e-7 and told == "RuntimeError: unspecified launch failure"


def test_a_sum_that_comes_after_the_gradients_were_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "Late", Reducer)  # sums of one rank that nothing doubles
    found, told = until_it_fails(hook.verify(CPU))
    assert found == {"late sums": 1.0} and "did not wait for late sums: 1 times the gradient" in told


def test_a_wrong_sum_of_any_rank_makes_the_check_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "step 1, bucket 0: 3 of 65536 elements are wrong"
    cases = [{"ring float32": "right", "tree float32": "right"}, {"ring float32": wrong, "tree float32": "right"}]
    monkeypatch.setattr(reductions, "on_ranks_sharing", lambda *arguments: ("nccl", cases))
    found, told = until_it_fails(reductions.verify(CPU))
    assert found["cases"] == {"ring float32": wrong, "tree float32": "right"} and told == "wrong: ring float32"


def test_strategies_are_not_run_where_gloo_would_have_to_exchange_memory_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [{"skipped": "Gloo does not exchange activations that are on a GPU"}] * 4
    monkeypatch.setattr(strategies, "on_ranks_sharing", lambda *arguments: ("gloo on the host", cases))
    assert dict(strategies.verify(CPU)) == {"transport": "gloo on the host", **cases[0]}


def test_an_optimiser_that_steps_differently_on_the_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[str]()
    rightly = optimizers._steps

    def differently(name: str, device: torch.device) -> list[torch.Tensor]:
        taken.append(name)
        return [1.001 * one if taken == ["sgd", "sgd", "lars", "lars"] else one for one in rightly(name, device)]

    monkeypatch.setattr(optimizers, "_steps", differently)
    found, told = until_it_fails(optimizers.verify(CPU))
    assert found["sgd"] == 0.0 and found["lars"] == pytest.approx(1e-3, rel=0.1) and told.startswith("lars: weights")


def test_a_step_that_makes_the_host_wait_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "models", lambda device: ("lenet", "lenet", "lenet"))
    monkeypatch.setattr(steps, "_synchronisations", lambda *arguments: ["loop.py:7"])
    found, told = until_it_fails(steps.verify(CPU))
    assert found["lenet sgd"]["synchronisations"] == ["loop.py:7"] and told.startswith("a step made the host wait")


def test_an_epoch_whose_steps_make_the_host_wait_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for once in a run, such as its last loss, does not count."""
    monkeypatch.setattr(steps, "models", lambda device: ("lenet", "lenet", "lenet"))
    monkeypatch.setattr(
        steps, "_waits_of_a_run", lambda device, augmentation, count: Counter({"log.py:3": 1, "loader.py:9": count})
    )
    found, told = until_it_fails(steps.verify(CPU))
    assert found["epoch with shift-flip"] == {"synchronisations_of_more_steps": ["loader.py:9"]}
    assert told.startswith("a step made the host wait")


def test_a_model_that_is_compiled_again_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(compilation, "_graphs", lambda: next(counts))
    monkeypatch.setattr("firetrain.parallel.data_parallel.DataParallel.warm_up", lambda *arguments: None)
    monkeypatch.setattr(torch, "compile", lambda module, **options: module)
    found, told = until_it_fails(compilation.verify(CPU))
    assert found["model"]["graphs_afterwards"] == 1 and told.startswith("model: 1 graphs after the warm-up")


def test_a_case_that_fails_does_not_keep_the_others_from_being_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory is a result; any other error makes the check fail in the end."""

    def case(device: torch.device, model: str, count: int, mode: str, precision: str, most: float) -> dict[str, Any]:
        if model == "googlenet":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if model == "squeezenet_mini" and precision == "tf32":
            raise RuntimeError("no kernel image")
        return {"images_per_s": 1.0}

    monkeypatch.setattr(throughput, "_case", case)
    monkeypatch.setattr(throughput, "most_images_per_s", lambda *arguments: 1.0)
    found, told = until_it_fails(throughput.measure(CPU))
    assert len(found) == 6 and told == "failed: squeezenet_mini 2 eager tf32"
    assert found["googlenet 2 eager tf32"] == {"error": "CUDA out of memory"}
    assert found["lenet 2 eager tf32"] == {"images_per_s": 1.0}


def test_steps_are_timed_several_in_a_row_and_the_first_one_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, now_s = list[int](), [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now_s[0])

    def step() -> None:
        calls.append(len(calls))
        now_s[0] += {1: 100.0, 5: 7.0}.get(len(calls), 1.0)

    assert facts.steady_s(step, CPU, calls=3, tries=3) == 1.0 and len(calls) == 10
    assert facts.fastest_s(step, CPU, tries=2) == 1.0 and len(calls) == 13


def test_an_input_is_as_fast_as_its_batches_come_although_some_are_loaded_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loader that needs 10 ms for each batch of four images, with three batches ahead; training takes no time."""
    monkeypatch.setattr(inputs, "take_step", lambda worker, batch: None)
    monkeypatch.setattr(inputs, "prefetched", lambda batches, device, stream: ahead(batches))

    class Slow:
        def batches(self, shares: Any, epoch: int) -> Iterator[int]:
            for number in range(12):
                time.sleep(0.01)
                yield number

    def ahead(batches: Iterator[int]) -> Iterator[int]:
        waiting: queue.Queue[int | None] = queue.Queue(maxsize=3)

        def load() -> None:
            for batch in batches:
                waiting.put(batch)
            waiting.put(None)

        threading.Thread(target=load, daemon=True).start()
        while waiting.qsize() < 3:
            time.sleep(0.001)
        while (batch := waiting.get()) is not None:
            yield batch

    found = inputs.images_per_s(None, Slow(), 48, 4, CPU)  # type: ignore[arg-type]
    assert 200 < found < 410, "four images in 10 ms"


def test_a_copy_from_pageable_memory_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU nothing is copied, so that another operation stands for such a copy."""
    monkeypatch.setattr(kernels, "models", lambda device: ("lenet",))
    monkeypatch.setattr(kernels, "_PAGEABLE", "conv")
    found, told = until_it_fails(kernels.measure(CPU))
    assert list(found) == ["lenet"] and told.startswith("lenet: a step copies from pageable memory: aten::")


@pytest.mark.parametrize(
    "error", ["RuntimeError: unspecified launch failure", "no result after the start; exit code 1"]
)
def test_the_cause_is_told_before_what_other_ranks_lack(error: str) -> None:
    others = {"error": "no result after native 4096; exit code None"}
    with pytest.raises(FiretrainError, match=error):
        ranks.raise_errors(
            [others, {"a": 1}, {"error": error}] if error.startswith("Runtime") else [{"error": error}, others]
        )
    ranks.raise_errors([{"a": 1}, {}])


def test_a_rank_that_goes_on_without_its_peer_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for told in ("went on", "no result after a sum; exit code None"):
        monkeypatch.setattr(lost, "on_ranks_sharing", lambda *a, told=told, **b: ("nccl", [{"error": told}, {}]))
        assert "did not notice that rank 1 had died" in until_it_fails(lost.verify(CPU))[1]
    ended = "no result after a sum; exit code 69"
    monkeypatch.setattr(lost, "on_ranks_sharing", lambda *a, **b: ("nccl", [{"error": ended}, {}]))
    assert dict(lost.verify(CPU)) == {"transport": "nccl", "rank 0": ended}


def test_links_of_one_gpu_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "is_gpu", lambda device: True)
    monkeypatch.setattr(links, "visible_gpus", lambda: 1)
    ((name, why),) = links.measure(torch.device("cuda", 0))
    assert name == "skipped" and why.startswith("one GPU")


def test_ranks_end_before_their_check_does(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float]()

    def collect(results: Any, processes: Any, limit_s: float, first_s: float) -> list[dict[str, Any]]:
        limits.append(limit_s)
        return [{} for _ in processes]

    monkeypatch.setattr(ranks, "_collect", collect)
    monkeypatch.setattr(ranks, "_ends_s", float("inf"))
    ranks.on_ranks(no_cases, CPU, 1)
    ranks.ends_at(time.monotonic() + 25.0)
    ranks.on_ranks(no_cases, CPU, 1)
    assert limits[0] == 90.0 and 10.0 < limits[1] <= 16.0


def no_cases(transport: Any) -> Iterator[tuple[str, Any]]:
    yield from ()


def test_photographs_for_the_check_are_of_two_classes_and_of_the_size_asked_for(tmp_path: Path) -> None:
    root = inputs._write_photos(tmp_path, 5, 64)
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg")) == [
        "test/a/6.jpg", "test/b/5.jpg", "train/a/0.jpg", "train/a/2.jpg", "train/a/4.jpg", "train/b/1.jpg", "train/b/3.jpg",
    ]  # fmt: skip
    with Image.open(root / "train" / "a" / "0.jpg") as photo:
        assert photo.size == (64, 64)


def test_kernels_are_sorted_by_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "models", lambda device: ("lenet",))
    ((model, rows),) = kernels.measure(CPU)
    assert model == "lenet" and len(rows) == 15
    assert [row["us"] for row in rows] == sorted((row["us"] for row in rows), reverse=True)
    assert {row["calls"] % 3 for row in rows} == {0}, "three steps are watched"
