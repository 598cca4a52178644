"""What happened when: the numbers and the times of a run, written to its record by rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

from firetrain.cluster import Clock
from firetrain.records import COMPLETED, Run
from firetrain.reduction.transport import Transport
from firetrain.training.evaluation import Score
from firetrain.training.stopwatch import Stopwatch

PARTS = ("data", "compute", "exposed_communication")


class Ledger:
    """Counts steps and images, and sums up where time goes, from `start` on.

    `mark` is the stopwatch's: called within a step with a name of PARTS. What passes between steps (logging, comparing
    checksums) is marked as "other".
    """

    def __init__(self, record: Run, transport: Transport, clock: Clock) -> None:
        self._record, self._transport, self._clock = record, transport, clock
        self._watch = Stopwatch(transport.device, clock)
        self.mark = self._watch.mark
        self.step = self.images = 0
        self._window = (0, 0)
        self._parts_s = dict.fromkeys(PARTS, 0.0)
        self._evaluation_s = self._checkpoint_s = self._elapsed_s = 0.0

    @property
    def _train_s(self) -> float:
        """Seconds up to the latest evaluation that were neither evaluation nor checkpoint."""
        return self._elapsed_s - self._evaluation_s - self._checkpoint_s

    def start(self) -> None:
        """Time-to-accuracy counts from here: the first step's start."""
        self._started_s, self._started = self._clock.now_s(), self._clock.date()

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
        speed = {"images_per_s": images / steps / step_s}
        self._append("step", line | speed | {f"{name}_s": seconds / steps for name, seconds in parts.items()})

    @contextmanager
    def evaluation(self, epoch: int) -> Iterator[list[Score]]:
        """Times an evaluation; who evaluates appends the score to the list."""
        before_s, scores = self._clock.now_s(), list[Score]()
        yield scores
        now_s = self._clock.now_s()
        self._evaluation_s += now_s - before_s
        self._elapsed_s = now_s - self._started_s
        times = {"evaluation_s": now_s - before_s, "train_s": self._train_s, "elapsed_s": self._elapsed_s}
        self._append("evaluation", {"step": self.step, "epoch": epoch, **asdict(scores[-1]), **times})

    @contextmanager
    def checkpoint(self, last: bool) -> Iterator[None]:
        """Times a checkpoint; the last one comes after the run's end, and is in no sum."""
        before_s = self._clock.now_s()
        yield
        if not last:
            self._checkpoint_s += self._clock.now_s() - before_s

    def summary(
        self, epochs: int, reached: bool, score: Score, bad_images: int, reduction: dict[str, Any]
    ) -> dict[str, Any]:
        """The run in numbers, with what its reduction has to say; rank 0 writes them to summary.json."""
        in_steps_s = sum(self._parts_s.values())
        facts = {
            "state": COMPLETED,
            "reached": reached,
            "top1": score.top1,
            "top5": score.top5,
            "epochs": epochs,
            "steps": self.step,
            "images": self.images,
            "world_size": self._transport.size,
            "nodes": len(self._transport.world.nodes),
            "time_to_accuracy_s": self._elapsed_s if reached else None,
            "elapsed_s": self._elapsed_s,
            "train_s": self._train_s,
            "evaluation_s": self._evaluation_s,
            "checkpoint_s": self._checkpoint_s,
            "startup_s": self._startup_s(),
            **{f"{name}_s": seconds for name, seconds in self._parts_s.items()},
            "images_per_s": self.images / in_steps_s,
            "bad_images": bad_images,
            "reduction": reduction,
        }
        if self._transport.rank == 0:
            self._record.write("summary.json", facts)
        return facts

    def _startup_s(self) -> float:
        """From the creation of the run's directory to the first step."""
        created = datetime.fromisoformat(self._record.facts()["created"])
        return (self._started - created).total_seconds()

    def _append(self, kind: str, line: dict[str, Any]) -> None:
        if self._transport.rank == 0:
            self._record.append({"kind": kind, **line})
