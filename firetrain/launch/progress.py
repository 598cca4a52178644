"""The progress of a run, read from its metrics."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from firetrain.cluster import duration
from firetrain.config.sections.target import TargetSection
from firetrain.records import Run

_PLAIN_EVERY_S = 10.0


class Progress(Protocol):
    """A display of a run that is updated by calls of `tick`."""

    def tick(self) -> None:
        """Read new metrics and show them."""

    def close(self) -> None:
        """Stop showing."""


def say(console: Console, text: str) -> None:
    """Print a line. The run goes on if nobody can read it: the terminal may be closed, or the reader of a pipe gone."""
    with suppress(OSError):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def progress(run: Run, target: TargetSection, console: Console) -> Progress:
    """A live line in a terminal, otherwise plain lines."""
    return LiveLine(run, target, console) if console.is_terminal else PlainLines(run, target, console)


class _Reader:
    """Reads the lines of a run's metrics that are new since it was made: not those of earlier attempts."""

    def __init__(self, run: Run) -> None:
        self._path = run.path / "metrics.jsonl"
        self._run = run
        self._size = -1
        self._seen = 0
        self.new()

    def new(self) -> list[dict[str, Any]]:
        size = self._path.stat().st_size if self._path.exists() else -1
        if size == self._size:
            return []
        self._size = size
        rows = [row for row in self._run.lines() if row["kind"] in ("step", "evaluation")]
        fresh, self._seen = rows[self._seen :], len(rows)
        return fresh


class LiveLine:
    """One line that is updated: step, loss, images/s, accuracy, time left to the last epoch."""

    def __init__(self, run: Run, target: TargetSection, console: Console) -> None:
        self._reader, self._target = _Reader(run), target
        self._step: dict[str, Any] = {}
        self._evaluation: dict[str, Any] = {}
        self._started_s = time.monotonic()
        self._live = Live(Text("starting"), console=console, transient=True, refresh_per_second=8)
        self._live.start()

    def tick(self) -> None:
        """Show the newest step."""
        for row in self._reader.new():
            if row["kind"] == "step":
                self._step = row
            else:
                self._evaluation = row
        waited_s = time.monotonic() - self._started_s
        text = describe(self._step, self._evaluation, self._target) if self._step else f"starting, {waited_s:.0f} s"
        self._live.update(Text(text, overflow="ellipsis", no_wrap=True))

    def close(self) -> None:
        """Remove the line."""
        self._live.stop()


class PlainLines:
    """A line per evaluation, and a step every ten seconds in between."""

    def __init__(self, run: Run, target: TargetSection, console: Console) -> None:
        self._reader, self._target, self._console = _Reader(run), target, console
        self._evaluation: dict[str, Any] = {}
        self._printed_s = time.monotonic()

    def tick(self) -> None:
        """Print new evaluations, and the newest step if nothing was printed for ten seconds."""
        step: dict[str, Any] = {}
        for row in self._reader.new():
            if row["kind"] == "step":
                step = row
                continue
            self._evaluation = row
            text = f"epoch {row['epoch']}: top-1 {row['top1']:.2%}, loss {row['loss']:.4f}, {row['elapsed_s']:.1f} s"
            self._print(text)
            step = {}
        if step and time.monotonic() - self._printed_s > _PLAIN_EVERY_S:
            self._print(describe(step, self._evaluation, self._target))

    def close(self) -> None:
        """Do nothing: printed lines stay."""

    def _print(self, text: str) -> None:
        self._printed_s = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def describe(step: dict[str, Any], evaluation: dict[str, Any], target: TargetSection) -> str:
    """A line of text about a step, and the newest evaluation if there is one."""
    parts = [
        f"epoch {step['epoch'] + 1}/{target.max_epochs}",
        f"step {step['step']}",
        f"loss {step['loss']:.4f}",
        f"{step['images_per_s']:,.0f} images/s",
    ]
    if evaluation:
        goal = f" of {target.top1:.2%}" if target.top1 else ""
        parts.append(f"top-1 {evaluation['top1']:.2%}{goal}")
        left = target.max_epochs - evaluation["epoch"]
        parts.append(f"at most {duration(left * evaluation['elapsed_s'] / evaluation['epoch'])} left")
    return " · ".join(parts)
