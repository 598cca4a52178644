"""What happened when: the numbers and the times of a run over all its attempts, written to its record by rank 0."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

import torch

from firetrain.cluster import Clock
from firetrain.errors import CannotWrite
from firetrain.records import ATTEMPT_BEGAN, COMPLETED, Run
from firetrain.reduction.transport import Transport
from firetrain.training.energy import Meter
from firetrain.training.evaluation import Score
from firetrain.training.stopwatch import Stopwatch

PARTS = ("data", "compute", "exposed_communication")
# before the clock: waiting for the job to begin (each time), starting processes and joining them (the first time); on the
# clock: from before the data is touched to the first step, evaluation, checkpoints, getting to a later attempt's first step;
# lost_s: of steps that were done again after a failure
SPENT = ("queue_s", "startup_s", "opening_s", "evaluation_s", "checkpoint_s", "restart_s", "lost_s")
_NOT_TRAINING = ("opening_s", "evaluation_s", "checkpoint_s", "restart_s")


class Ledger:
    """Counts steps and images, and sums up where time goes, from `start` on: MLPerf's clock, which runs when data is touched.

    `began`: when this attempt did, in seconds since 1970, if it is not its job's or its launcher's beginning.

    `failure`: the first thing that rank 0 could not write. `mark` is the stopwatch's: called within a step with a name of
    PARTS. What passes between steps (logging, comparing checksums) is marked as "other".
    """

    def __init__(self, record: Run, transport: Transport, clock: Clock, began: float | None = None) -> None:
        self._record, self._transport, self._clock = record, transport, clock
        self._watch = Stopwatch(transport.device, clock)
        self.mark = self._watch.mark
        self.step = self.images = 0
        self._window = (0, 0)
        self._parts_s = dict.fromkeys(PARTS, 0.0)
        self._spent_s = dict.fromkeys(SPENT, 0.0)
        self._elapsed_s = self._earlier_s = 0.0
        self._attempt_began = self._beginning() if began is None else began
        self._told_j = self._compute_before_s = 0.0
        self._resumed = False
        self._reached: dict[str, Any] = {}
        self._meter = Meter(transport.device)
        self._earlier_j = 0.0
        self.failure: CannotWrite | None = None

    @property
    def _train_s(self) -> float:
        """Seconds up to the latest evaluation that went into steps, and between them."""
        return self._elapsed_s - sum(self._spent_s[part] for part in _NOT_TRAINING)

    def resume(self, clocks: dict[str, Any] | None) -> None:
        """Go on from what `state` told an earlier attempt's checkpoint, or anew after one that left none.

        What that attempt did after the checkpoint is lost, but its time was spent.
        """
        if clocks is None:
            spent_s = self._spent_s | {"startup_s": self._first_startup_s()}
            clocks = {"step": 0, "images": 0, "parts_s": self._parts_s, "spent_s": spent_s, "elapsed_s": 0.0}
        self.step, self.images = clocks["step"], clocks["images"]
        self._window = (self.step, self.images)
        self._parts_s, self._spent_s = dict(clocks["parts_s"]), dict(clocks["spent_s"])
        self._earlier_s = max([clocks["elapsed_s"], *(row.get("elapsed_s", 0.0) for row in self._record.lines())])
        self._spent_s["lost_s"] += self._earlier_s - clocks["elapsed_s"]
        self._reached = dict(clocks.get("reached", {}))
        self._compute_before_s = self._parts_s["compute"]
        self._told_j = self._earlier_j = clocks.get("energy_j", 0.0) if self._transport.rank == 0 else 0.0
        metrics = self._record.path / "metrics.jsonl"
        last_sign = metrics.stat().st_mtime if metrics.exists() else self._attempt_began
        self._spent_s["queue_s"] += max(0.0, self._attempt_began - last_sign)
        self._resumed = True

    def state(self) -> dict[str, Any]:
        """What `resume` needs."""
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
        """Time-to-accuracy counts from here, before the data is touched, whenever the run was begun; later attempts go on."""
        waited_s = max(0.0, self._clock.date().timestamp() - self._attempt_began)
        if self._resumed:
            self._spent_s["restart_s"] += waited_s
            self._earlier_s += waited_s
            attempt = {"attempt": self._record.attempts - 1, "step": self.step, "elapsed_s": self._earlier_s}
            self._append("attempt", attempt | self._spent_s)
        else:
            self._spent_s["startup_s"] = waited_s
            created = datetime.fromisoformat(self._record.facts()["created"]).timestamp()
            self._spent_s["queue_s"] = max(0.0, self._attempt_began - created)
        self._started_s, self._started_j = self._clock.now_s(), self._meter.joules()

    def note_compiled(self, took_s: float) -> None:
        """Compiling touches no data: it is start-up, whenever it comes (MLPerf's allowance for initialisation)."""
        if not self._resumed:
            self._spent_s["startup_s"] += took_s
            self._started_s += took_s

    def first_step(self) -> None:
        """The data is open and the model made: this attempt's first step comes now."""
        self._spent_s["restart_s" if self._resumed else "opening_s"] += self._clock.now_s() - self._started_s

    def start_epoch(self) -> None:
        """What passed since the last step belongs to none."""
        self._watch.start()

    def count_step(self, images: int) -> None:
        """A step of `images` images is done."""
        self.step += 1
        self.images += images

    def log_steps(self, epoch: int, loss: float, rate: float) -> None:
        """A line for the steps since the last one: mean times and speed, and the latest loss."""
        parts = self._watch.totals()
        parts.pop("other", None)
        for name, seconds in parts.items():
            self._parts_s[name] += seconds
        steps, images = self.step - self._window[0], self.images - self._window[1]
        self._window = (self.step, self.images)
        step_s = sum(parts.values()) / steps
        line = {"step": self.step, "epoch": epoch, "loss": loss, "learning_rate": rate, "step_s": step_s}
        speed = {"images_per_s": images / steps / step_s, "elapsed_s": self._now_s()}
        self._append("step", line | speed | {f"{name}_s": seconds / steps for name, seconds in parts.items()})

    def note_noise(self, epoch: int, scale: float, signal: float, noise: float) -> None:
        """A line for an epoch's gradient noise scale, in images, with |G|^2 and tr(S)."""
        values = {"noise_scale": scale, "gradient_squared": signal, "noise_trace": noise}
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        self._append("noise", {"step": self.step, "epoch": epoch, **finite})

    @contextmanager
    def evaluation(self, epoch: int) -> Iterator[list[Score]]:
        """Times an evaluation; who evaluates appends the score to the list."""
        before_s, scores = self._clock.now_s(), list[Score]()
        yield scores
        took_s = self._clock.now_s() - before_s
        self._spent_s["evaluation_s"] += took_s
        self._elapsed_s = self._now_s()
        times = {
            "evaluation_s": took_s,
            "train_s": self._train_s,
            "elapsed_s": self._elapsed_s,
            "images_seen": self.images,
        }
        totals = {f"total_{part}": seconds for part, seconds in self._spent_s.items()}
        line = {"step": self.step, "epoch": epoch, **asdict(scores[-1]), **times, **totals, **self._over_ranks()}
        self._append("evaluation", line)

    def _over_ranks(self) -> dict[str, Any]:
        """What only all ranks together know: which one computed longest in this attempt, and the joules of all GPUs, where they
        are told."""
        own = torch.zeros(self._transport.size + 2, dtype=torch.float64, device=self._transport.device)
        own[self._transport.rank] = self._parts_s["compute"] - self._compute_before_s
        energy_j = self._energy_j()
        own[-2], own[-1] = energy_j or 0.0, energy_j is not None
        *compute_s, joules, told = self._transport.sum(own).tolist()
        self._told_j = joules
        slowest = max(range(len(compute_s)), key=compute_s.__getitem__)
        found = {"slowest_rank": slowest, "slowest_compute_s": compute_s[slowest]}
        found["mean_compute_s"] = sum(compute_s) / len(compute_s)
        return found | ({"energy_j": joules} if told == len(compute_s) else {})

    def _energy_j(self) -> float | None:
        """Of this rank's GPU since the run's start; rank 0's holds what all had drawn by the checkpoint that it went on from."""
        now_j = self._meter.joules()
        return None if now_j is None or self._started_j is None else self._earlier_j + now_j - self._started_j

    def note_reached(self, epoch: int) -> None:
        """The latest evaluation, after `epoch` epochs, met the target; the first one that does counts."""
        if not self._reached:
            self._reached = {"time_to_accuracy_s": self._elapsed_s, "epochs_to_target": epoch}

    @contextmanager
    def checkpoint(self, last: bool) -> Iterator[None]:
        """Times a checkpoint; the last one comes after the run's end, and is in no sum."""
        before_s = self._clock.now_s()
        yield
        if not last:
            self._spent_s["checkpoint_s"] += self._clock.now_s() - before_s

    def summary(self, epochs: int, score: Score, bad_images: int, reduction: dict[str, Any]) -> dict[str, Any]:
        """The run in numbers, with what its reduction has to say; rank 0 writes them to summary.json."""
        in_steps_s = sum(self._parts_s.values())
        facts = {
            "state": COMPLETED,
            "reached": bool(self._reached),
            "top1": score.top1,
            "top5": score.top5,
            "epochs": epochs,
            "steps": self.step,
            "images": self.images,
            "world_size": self._transport.size,
            "nodes": len(self._transport.world.nodes),
            "time_to_accuracy_s": self._reached.get("time_to_accuracy_s"),
            "epochs_to_target": self._reached.get("epochs_to_target"),
            "elapsed_s": self._elapsed_s,
            "train_s": self._train_s,
            "attempts": self._record.attempts,
            **self._spent_s,
            **{f"{name}_s": seconds for name, seconds in self._parts_s.items()},
            "images_per_s": self.images / in_steps_s,
            "bad_images": bad_images,
            "reduction": reduction,
        }
        with self.writing():
            if self._transport.rank == 0:
                self._record.write("summary.json", facts)
        return facts

    def _now_s(self) -> float:
        """Seconds since the run's start, over all attempts, without the time between them."""
        return self._earlier_s + self._clock.now_s() - self._started_s

    def _first_startup_s(self) -> float:
        """Of an attempt that left no checkpoint: as its evaluations told, if there was one."""
        return max((row.get("total_startup_s", 0.0) for row in self._record.lines({"evaluation"})), default=0.0)

    def _beginning(self) -> float:
        """When this attempt's job began, in seconds since 1970; a launcher on this machine begins with the run itself."""
        if ATTEMPT_BEGAN in os.environ:
            return float(os.environ[ATTEMPT_BEGAN])
        if self._record.attempts > 1:
            return self._clock.date().timestamp()
        return datetime.fromisoformat(self._record.facts()["created"]).timestamp()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What rank 0 cannot write is kept as `failure`: the other ranks have to hear of it before any of them may leave."""
        try:
            yield
        except CannotWrite as error:
            self.failure = self.failure or error

    def _append(self, kind: str, line: dict[str, Any]) -> None:
        with self.writing():
            if self._transport.rank == 0:
                self._record.append({"kind": kind, **line})
