"""How long a data-parallel step takes here, relative to another clone of firetrain; writes before.json.

Two trainings, one of each clone, on two ranks with a thread each, run by turns of a second: while one runs, the ranks of the
other are stopped by a signal. The machine's speed drifts by more than what is looked for, and two seconds see little of that.
Processes of one clone differ by a few per cent from start to start, so that all are started several times.
Usage: python results/strategies/before.py CLONE [STARTS]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

HERE = Path(__file__).parent
# images in a batch, pixels on each side
SIZES = ((32, 32), (64, 64))
TURN_S, TURNS = 1.0, 16


class Training:
    """A training of a clone, which is stopped unless it has its turn."""

    def __init__(self, clone: Path, images: int, pixels: int, folder: Path) -> None:
        settings = (
            "model.name=squeezenet1_1", f"batch.global_size={images}", f"data.image_size={pixels}", "reduction.name=ring",
            "log.every_steps=1", "target.top1=null", "target.max_epochs=1000", "target.evaluate_every_epochs=1000",
            "checkpoint.every_epochs=1000",
        )  # fmt: skip
        words = ["launch", "squeezenet-digits", "--nodes", "2", "--ranks-per-node", "1", "--results", str(folder)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "firetrain", *words, *(word for one in settings for word in ("--set", one))],
            env={**os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, cwd=clone,
        )  # fmt: skip
        while not self._lines(folder):
            time.sleep(0.5)
        (self._metrics,) = folder.glob("*/metrics.jsonl")
        listed = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=True)
        self._ranks = [int(pid) for pid in listed.stdout.split()]
        self._signal(signal.SIGSTOP)

    @staticmethod
    def _lines(folder: Path) -> int:
        return sum(path.read_bytes().count(b"\n") for path in folder.glob("*/metrics.jsonl"))

    def _signal(self, number: int) -> None:
        for rank in self._ranks:
            os.kill(rank, number)

    def turn_s(self) -> float:
        """Run for a turn, longer if a step takes longer; the median of its steps that were not interrupted, in seconds."""
        before = self._lines(self._metrics.parents[1])
        self._signal(signal.SIGCONT)
        time.sleep(TURN_S)
        while self._lines(self._metrics.parents[1]) < before + 2:  # the first step was interrupted
            time.sleep(0.05)
        self._signal(signal.SIGSTOP)
        rows = [json.loads(line) for line in self._metrics.read_text().splitlines()[before:]]
        return median(row["step_s"] for row in rows[1:] if row["kind"] == "step")

    def end(self) -> None:
        """End it, whatever it does."""
        self._signal(signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def main(before: Path, starts: int) -> None:
    """Measure and write the ratio of each start, with the mean of their logarithms and its standard error."""
    found = {}
    for images, pixels in SIZES:
        ratios = [ratio(before, images, pixels) for _ in range(starts)]
        logarithms = np.log(ratios)
        mean, error = np.mean(logarithms), np.std(logarithms, ddof=1) / np.sqrt(starts)
        name = f"{images} images of {pixels} pixels"
        found[name] = {"ratios": ratios, "mean": float(np.exp(mean)), "standard_error": float(error)}
        print(name, found[name], flush=True)
    (HERE / "before.json").write_text(json.dumps(found, indent=1) + "\n")


def ratio(before: Path, images: int, pixels: int) -> float:
    """The median ratio of the turns of two trainings that have just been started."""
    with tempfile.TemporaryDirectory() as folder:
        clones = (before, HERE.parents[1])
        trainings, ratios = list[Training](), list[float]()
        try:
            for number, clone in enumerate(clones):
                trainings.append(Training(clone, images, pixels, Path(folder) / str(number)))
            for turn in range(TURNS):
                seconds = {one: trainings[one].turn_s() for one in ((0, 1) if turn % 2 else (1, 0))}
                ratios.append(seconds[1] / seconds[0])
        finally:
            for one in trainings:
                one.end()
    return median(ratios)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 6)
