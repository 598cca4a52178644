"""Times are exact with an exact clock, which only the test moves."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch

from firetrain.cluster import Identity, World
from firetrain.config import load_config
from firetrain.records import Run
from firetrain.records.parts import BETWEEN_STEPS, COMPUTE, DATA, EXPOSED
from firetrain.training.evaluation import Score
from firetrain.training.ledger import Ledger
from firetrain.training.server_ledger import ServerLedger
from firetrain.transport.transport import Transport

SCORE = Score(top1=0.75, top5=1.0, loss=0.5, images=8)
BEGINNING = datetime(2026, 1, 2, tzinfo=timezone.utc)


class HandClock:
    """A clock that advances only in `wait`."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_s(self) -> float:
        return 1000.0 + self.passed_s

    def date(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.passed_s)

    def wait(self, seconds: float) -> None:
        self.passed_s += seconds


def begun(folder: Path) -> tuple[HandClock, Run, Transport]:
    """A clock, a new run, and the transport of one rank."""
    clock = HandClock()
    run = Run.create(folder, load_config("quickstart"), clock.date(), {})
    return clock, run, Transport("gloo", Identity(), World.even(1, 1), torch.device("cpu"), 1.0)


def test_every_second_is_in_its_part(tmp_path: Path) -> None:
    clock, run, transport = begun(tmp_path)
    ledger = Ledger(run, transport, clock)
    clock.wait(7)  # start-up
    ledger.start()
    clock.wait(5)
    ledger.put_off(5)
    clock.wait(2)  # data and model
    ledger.first_step()
    for epoch in (1, 2):
        ledger.start_epoch()
        for _ in range(2):
            for part, seconds in ((DATA, 1), (COMPUTE, 4), (EXPOSED, 2), (COMPUTE, 1)):
                clock.wait(seconds)
                ledger.lap(part)
            ledger.count_step(10)
            clock.wait(0.5)
            ledger.lap(BETWEEN_STEPS)
        ledger.log_steps(epoch - 1, loss=1.5, rate=0.1)
        with ledger.evaluation(epoch) as scores:
            clock.wait(20)
            scores.append(SCORE)
        ledger.note_reached(epoch)
        with ledger.checkpoint(last=epoch == 2):
            clock.wait(3)
    summary = ledger.summary(2, score=SCORE, bad_images=0, reduction={"name": "ring"})
    # two epochs of two steps of 8.5 s, two evaluations of 20 s, one checkpoint of 3 s before the end
    assert summary["elapsed_s"] == 2 + 2 * 17 + 2 * 20 + 3
    assert (summary["time_to_accuracy_s"], summary["epochs_to_target"]) == (39, 1), "the first time counts"
    assert (summary["train_s"], summary["evaluation_s"], summary["checkpoint_s"]) == (34, 40, 3)
    assert (summary["data_s"], summary["compute_s"], summary["exposed_communication_s"]) == (4, 20, 8)
    assert (summary["startup_s"], summary["opening_s"]) == (7 + 5, 2) and summary["images_per_s"] == 40 / 32
    (step,) = run.metrics("step")[:1]
    assert (step["step"], step["step_s"], step["images_per_s"], step["compute_s"]) == (2, 8, 10 / 8, 5)
    first, second = run.metrics("evaluation")
    assert (first["elapsed_s"], first["train_s"], first["evaluation_s"]) == (39, 17, 20)
    assert (second["elapsed_s"], second["train_s"]) == (79, 34)
    assert run.summary() == summary


def test_an_attempt_that_left_no_checkpoint_is_done_again_and_its_time_counts(tmp_path: Path) -> None:
    clock, run, transport = begun(tmp_path)

    def epoch(ledger: Ledger) -> None:
        ledger.start_epoch()
        clock.wait(10)
        ledger.lap(COMPUTE)
        ledger.count_step(8)
        ledger.log_steps(0, loss=1.5, rate=0.1)
        with ledger.evaluation(1) as scores:
            clock.wait(2)
            scores.append(SCORE)

    first = Ledger(run, transport, clock)
    clock.wait(5)
    first.start()
    first.first_step()
    epoch(first)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # killed while it wrote
    clock.wait(100)  # in the queue again
    again = Ledger(run, transport, clock, began=clock.date().timestamp())
    again.resume(None)
    clock.wait(3)
    again.start()
    again.first_step()
    epoch(again)
    assert [row["step"] for row in run.metrics("step")] == [1] == [row["step"] for row in run.metrics("evaluation")]
    summary = again.summary(1, score=SCORE, bad_images=0, reduction={})
    # the work of the first attempt is lost, but its time is counted; waiting time is not
    assert summary["elapsed_s"] == 12 + 3 + 12 and summary["lost_s"] == 12 and summary["restart_s"] == 3
    assert (summary["startup_s"], summary["images"]) == (5, 8)


def test_the_start_of_an_attempt_that_left_no_checkpoint_is_a_restart_and_no_repeated_step(tmp_path: Path) -> None:
    clock, run, transport = begun(tmp_path)
    ledger, saved = Ledger(run, transport, clock), dict[str, Any]()
    for attempt in range(3):
        if attempt:
            clock.wait(100)  # in the queue
            ledger = Ledger(run, transport, clock, began=clock.date().timestamp())
            ledger.resume(saved)
        clock.wait(5)
        ledger.start()
        ledger.first_step()
        saved = saved or ledger.state()
        ledger.start_epoch()
        clock.wait(2)
        ledger.lap(COMPUTE)
        ledger.count_step(8)
        ledger.log_steps(0, loss=1.5, rate=0.1)
        with ledger.evaluation(1) as scores:
            scores.append(SCORE)
    summary = ledger.summary(1, score=SCORE, bad_images=0, reduction={})
    # the first two attempts trained the step of 2 s that the third one repeated
    assert (summary["restart_s"], summary["lost_s"], summary["elapsed_s"]) == (10, 4, 16)


def test_under_a_server_the_clock_starts_when_the_last_worker_opens_its_data(tmp_path: Path) -> None:
    clock, run, transport = begun(tmp_path)
    ledger = ServerLedger(run, transport, clock, None, World.even(1, 3), servers=1)
    ledger.start()
    clock.wait(7)
    ledger.greet(opening_s=8)  # this worker began before the server
    ledger.greet(opening_s=2)
    ledger.first_step()
    with ledger.evaluation(1) as scores:
        clock.wait(3)
        scores.append(SCORE)
    (line,) = run.metrics("evaluation")
    assert (line["total_startup_s"], line["total_opening_s"], line["elapsed_s"]) == (5, 2, 5)


def test_workers_of_a_server_wait_for_evaluations_in_no_step(tmp_path: Path) -> None:
    """Two workers report 3 and 1 s of computing and 2 and 6 s of waiting, of which an evaluation took 2 s of each."""
    clock, run, transport = begun(tmp_path)
    ledger = ServerLedger(run, transport, clock, None, World.even(1, 3), servers=1)
    ledger.start()
    ledger.first_step()
    with ledger.evaluation(1) as scores:
        clock.wait(2)
        scores.append(SCORE)
    ledger.take(0, {COMPUTE.key: 3.0, EXPOSED.key: 2.0}, images=8)
    ledger.take(1, {COMPUTE.key: 1.0, EXPOSED.key: 6.0}, images=4)
    ledger.step = 1
    clock.wait(4)
    ledger.log_steps(1, 0.5, 0.1)
    (step,) = run.metrics("step")
    assert step[COMPUTE.key] == 2.0 and step[EXPOSED.key] == 2.0 and step["step_s"] == 4.0
    assert step["images_per_s"] == 3.0 and step["elapsed_s"] == 6.0
    with ledger.evaluation(1) as scores:
        scores.append(SCORE)
    last = run.metrics("evaluation")[-1]
    assert (last["slowest_rank"], last["slowest_compute_s"], last["mean_compute_s"]) == (1, 3.0, 2.0)
    facts = ledger.summary(1, SCORE, 0, {})
    assert facts["world_size"] == 3 and facts["train_s"] == 4.0 and facts["images"] == 12
