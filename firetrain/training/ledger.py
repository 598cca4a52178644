"""Counters and timings of a run over all attempts; rank 0 writes them to the run's record."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

import torch

from firetrain.cluster import Clock, World
from firetrain.errors import CannotWrite
from firetrain.records import ATTEMPT_BEGAN, COMPLETED, Run
from firetrain.records.parts import (
    BESIDE_STEPS,
    BETWEEN_STEPS,
    CHECKPOINT,
    COMPUTE,
    EVALUATION,
    LOST,
    OF_A_PLACEMENT,
    OF_A_STEP,
    OPENING,
    QUEUE,
    RESTART,
    SPENT,
    STARTUP,
    Part,
)
from firetrain.training.energy import Meter
from firetrain.training.evaluation import Score
from firetrain.training.stopwatch import Stopwatch
from firetrain.transport.transport import Transport


class Ledger:
    """Counts steps and images, and adds up the time of each part of a run.

    The clock is that of MLPerf, which starts before the data is accessed (`start`).

    - `began`: start time of this attempt (Unix seconds); default: when the job or launcher started.
    - `world`: of the run, if that is not the transport's.
    - `listeners`: called on rank 0 with each line that is written.
    - `failure`: first error of rank 0 while writing records or checkpoints.
    - `lap`: called at the end of each part of a step (OF_A_STEP), and before the next step with BETWEEN_STEPS.
    """

    def __init__(
        self, record: Run, transport: Transport, clock: Clock, began: float | None = None, world: World | None = None
    ) -> None:
        self._record, self._transport, self._clock = record, transport, clock
        self._world = world or transport.world
        self._stopwatch = Stopwatch(transport.device, clock)
        self.lap = self._stopwatch.lap
        self.step = self.images = 0
        self._window = (0, 0)
        self._parts_s = {part.key: 0.0 for part in OF_A_STEP if part not in OF_A_PLACEMENT}
        self._spent_s = {part.key: 0.0 for part in SPENT}
        self._elapsed_s = self._earlier_s = 0.0
        self._attempt_began = self._beginning() if began is None else began
        self._told_j = self._compute_before_s = 0.0
        self._resumed = False
        self._reached: dict[str, Any] = {}
        self._meter = Meter(transport.device)
        self._earlier_j = 0.0
        self.failure: CannotWrite | None = None
        self.listeners: list[Callable[[dict[str, Any]], None]] = []

    @property
    def _train_s(self) -> float:
        """Seconds in steps and between them, up to the latest evaluation."""
        return self._elapsed_s - sum(self._spent_s[part.key] for part in BESIDE_STEPS)

    def resume(self, clocks: dict[str, Any] | None) -> None:
        """Resume from the `state` in an earlier attempt's checkpoint, or from step 0 if there is no checkpoint (None).

        The steps of that attempt after the checkpoint are lost, but their time is counted.
        """
        if clocks is None:
            spent_s = self._spent_s | {STARTUP.key: self._recorded_s(STARTUP)}
            clocks = {"step": 0, "images": 0, "parts_s": self._parts_s, "spent_s": spent_s, "elapsed_s": 0.0}
        self.step, self.images = clocks["step"], clocks["images"]
        self._window = (self.step, self.images)
        self._parts_s, self._spent_s = dict(clocks["parts_s"]), dict(clocks["spent_s"])
        self._earlier_s = max([clocks["elapsed_s"], *(row.get("elapsed_s", 0.0) for row in self._record.lines())])
        # attempts after the checkpoint repeated their steps, but not the time in which they were started
        restarts_s = self._recorded_s(RESTART)
        again_s = max(0.0, restarts_s - self._spent_s[RESTART.key])
        self._spent_s[RESTART.key] += again_s
        self._spent_s[LOST.key] += self._earlier_s - clocks["elapsed_s"] - again_s
        self._spent_s[QUEUE.key] = max(self._spent_s[QUEUE.key], self._recorded_s(QUEUE))
        self._reached = dict(clocks.get("reached", {}))
        self._compute_before_s = self._parts_s[COMPUTE.key]
        self._told_j = self._earlier_j = clocks.get("energy_j", 0.0) if self._transport.rank == 0 else 0.0
        metrics = self._record.path / "metrics.jsonl"
        last_sign = metrics.stat().st_mtime if metrics.exists() else self._attempt_began
        self._spent_s[QUEUE.key] += max(0.0, self._attempt_began - last_sign)
        self._resumed = True

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint that `resume` needs."""
        return {
            "step": self.step,
            "images": self.images,
            "parts_s": dict(self._parts_s),
            "spent_s": dict(self._spent_s),
            "elapsed_s": self._now_s(),
            "reached": dict(self._reached),
            "energy_j": self._told_j,
        }

    def start(self) -> None:
        """Start the clock of time-to-accuracy, before the data is accessed; in later attempts, continue it."""
        waited_s = max(0.0, self._clock.date().timestamp() - self._attempt_began)
        if self._resumed:
            self._spent_s[RESTART.key] += waited_s
            self._earlier_s += waited_s
            attempt = {"attempt": self._record.attempts - 1, "step": self.step, "elapsed_s": self._earlier_s}
            self._append("attempt", attempt | self._spent_s)
        else:
            self._spent_s[STARTUP.key] = waited_s
            created = datetime.fromisoformat(self._record.facts()["created"]).timestamp()
            self._spent_s[QUEUE.key] = max(0.0, self._attempt_began - created)
        self._started_s, self._started_j = self._clock.now_s(), self._meter.joules()

    def put_off(self, took_s: float) -> None:
        """Count seconds after `start` as start-up: what does not access data is initialisation (MLPerf), as compilation is."""
        if not self._resumed:
            self._spent_s[STARTUP.key] += took_s
            self._started_s += took_s

    def first_step(self) -> None:
        """Note that data and model are ready, and the first step of this attempt begins."""
        self._spent_s[(RESTART if self._resumed else OPENING).key] += self._clock.now_s() - self._started_s

    def start_epoch(self) -> None:
        """Begin an epoch; the time since the last step belongs to no step."""
        self._stopwatch.start()

    def count_step(self, images: int) -> None:
        """Count a completed step of `images` images."""
        self.step += 1
        self.images += images

    def log_steps(self, epoch: int, loss: float, rate: float) -> None:
        """Write a line about the steps since the previous line: mean times and speed, and the latest loss."""
        parts_s = {part.key: seconds for part, seconds in self._spans().items() if part is not BETWEEN_STEPS}
        for key, seconds in parts_s.items():
            self._parts_s[key] = self._parts_s.get(key, 0.0) + seconds
        steps, images = self.step - self._window[0], self.images - self._window[1]
        self._window = (self.step, self.images)
        step_s = sum(parts_s.values()) / steps
        line = {"step": self.step, "epoch": epoch, "loss": loss, "learning_rate": rate, "step_s": step_s}
        speed = {"images_per_s": images / steps / step_s, "elapsed_s": self._now_s()}
        self._append("step", line | speed | {key: seconds / steps for key, seconds in parts_s.items()})

    def _spans(self) -> dict[Part, float]:
        """Seconds of each part of a step since the last call."""
        return self._stopwatch.totals()

    def note_noise(self, epoch: int, scale: float, signal: float, noise: float) -> None:
        """Write a line about an epoch's gradient noise scale (in images), with |G|^2 and tr(S)."""
        values = {"noise_scale": scale, "gradient_squared": signal, "noise_trace": noise}
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        self._append("noise", {"step": self.step, "epoch": epoch, **finite})

    @contextmanager
    def evaluation(self, epoch: int) -> Iterator[list[Score]]:
        """Context manager: time an evaluation; the caller appends the score to the yielded list."""
        before_s, scores = self._clock.now_s(), list[Score]()
        yield scores
        took_s = self._clock.now_s() - before_s
        self._spent_s[EVALUATION.key] += took_s
        self._elapsed_s = self._now_s()
        times = {
            EVALUATION.key: took_s,
            "train_s": self._train_s,
            "elapsed_s": self._elapsed_s,
            "images_seen": self.images,
        }
        totals = {f"total_{key}": seconds for key, seconds in self._spent_s.items()}
        line = {"step": self.step, "epoch": epoch, **asdict(scores[-1]), **times, **totals, **self._over_ranks()}
        self._append("evaluation", line)

    def _over_ranks(self) -> dict[str, Any]:
        """Reduce over ranks: the rank with the longest compute time in this attempt, and the mean compute time.

        Also the total energy, if every GPU reports it.
        """
        own = torch.zeros(self._transport.size + 2, dtype=torch.float64, device=self._transport.device)
        own[self._transport.rank] = self._parts_s[COMPUTE.key] - self._compute_before_s
        energy_j = self._energy_j()
        own[-2], own[-1] = energy_j or 0.0, energy_j is not None
        *compute_s, joules, metered = self._transport.sum(own).tolist()
        self._told_j = joules
        slowest = max(range(len(compute_s)), key=compute_s.__getitem__)
        found = {"slowest_rank": slowest, "slowest_compute_s": compute_s[slowest]}
        found["mean_compute_s"] = sum(compute_s) / len(compute_s)
        return found | ({"energy_j": joules} if metered == len(compute_s) else {})

    def _energy_j(self) -> float | None:
        """Joules of this rank's GPU in this attempt; rank 0 adds the total of earlier attempts. None if not counted."""
        now_j = self._meter.joules()
        return None if now_j is None or self._started_j is None else self._earlier_j + now_j - self._started_j

    def note_reached(self, epoch: int) -> None:
        """Note that the latest evaluation, after `epoch` epochs, has reached the target; only the first time is kept."""
        if not self._reached:
            self._reached = {"time_to_accuracy_s": self._elapsed_s, "epochs_to_target": epoch}

    @contextmanager
    def checkpoint(self, last: bool) -> Iterator[None]:
        """Context manager: time a checkpoint. The last one is written after the end of the run, and is not counted."""
        before_s = self._clock.now_s()
        yield
        if not last:
            self._spent_s[CHECKPOINT.key] += self._clock.now_s() - before_s

    def summary(self, epochs: int, score: Score, bad_images: int, reduction: dict[str, Any]) -> dict[str, Any]:
        """The run's summary, with the worker's facts (`reduction`); rank 0 writes it to summary.json."""
        in_steps_s = sum(self._parts_s.values())
        facts = {
            "state": COMPLETED,
            "reached": bool(self._reached),
            "top1": score.top1,
            "top5": score.top5,
            "epochs": epochs,
            "steps": self.step,
            "images": self.images,
            "world_size": self._world.size,
            "nodes": len(self._world.nodes),
            "time_to_accuracy_s": self._reached.get("time_to_accuracy_s"),
            "epochs_to_target": self._reached.get("epochs_to_target"),
            "elapsed_s": self._elapsed_s,
            "train_s": self._train_s,
            "attempts": self._record.attempts,
            **self._spent_s,
            **self._parts_s,
            "images_per_s": self.images / in_steps_s,
            "bad_images": bad_images,
            "reduction": reduction,
        }
        with self.writing():
            if self._transport.rank == 0:
                self._record.write("summary.json", facts)
        return facts

    def _now_s(self) -> float:
        """Seconds on the clock over all attempts, without the time between attempts."""
        return self._earlier_s + self._clock.now_s() - self._started_s

    def _recorded_s(self, part: Part) -> float:
        """The seconds of a part so far, from the lines of earlier attempts, also of those without a checkpoint; 0 without any."""
        rows = self._record.lines({"attempt", "evaluation"})
        return max(
            (row.get(part.key if row["kind"] == "attempt" else f"total_{part.key}", 0.0) for row in rows), default=0.0
        )

    def _beginning(self) -> float:
        """The start time of this attempt's job or launcher (Unix seconds)."""
        if ATTEMPT_BEGAN in os.environ:
            return float(os.environ[ATTEMPT_BEGAN])
        if self._record.attempts > 1:
            return self._clock.date().timestamp()
        return datetime.fromisoformat(self._record.facts()["created"]).timestamp()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context manager: store a write error in `failure` instead of raising, because all ranks must stop together."""
        try:
            yield
        except CannotWrite as error:
            self.failure = self.failure or error

    def _append(self, kind: str, line: dict[str, Any]) -> None:
        if self._transport.rank != 0:
            return
        row = {"kind": kind, **line}
        with self.writing():
            self._record.append(row)
        for listen in self.listeners:
            listen(row)
