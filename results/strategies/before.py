"""How long a data-parallel step takes in another clone of firetrain, relative to this one; writes before.json.

Rounds of `firetrain bench step` in both clones in turn, the order changing from round to round. Two ranks with a thread each.
Usage: python results/strategies/before.py CLONE [ROUNDS]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np

HERE = Path(__file__).parent
# images in a batch, pixels on each side
SIZES = ((32, 32), (64, 64))


def main(before: Path, rounds: int) -> None:
    """Measure and write the ratios, with a 95 % interval of their median by bootstrap."""
    found = {}
    for images, pixels in SIZES:
        ratios = []
        for number in range(rounds):
            clones = [before, HERE.parents[1]]
            seconds = {clone: step_s(clone, images, pixels) for clone in (clones if number % 2 else clones[::-1])}
            ratios.append(seconds[clones[1]] / seconds[before])
            print(
                f"{images} images of {pixels} pixels: {seconds[before] * 1e3:.1f} ms before, {ratios[-1]:.3f}",
                flush=True,
            )
        draws = np.random.default_rng(0).choice(ratios, (10_000, rounds))
        low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
        found[f"{images} images of {pixels} pixels"] = {
            "ratios": ratios,
            "median": median(ratios),
            "interval": [low, high],
        }
        print(f"median {median(ratios):.3f} ({low:.3f} to {high:.3f})", flush=True)
    (HERE / "before.json").write_text(json.dumps(found, indent=1) + "\n")


def step_s(clone: Path, images: int, pixels: int) -> float:
    """Seconds of a step in a clone."""
    settings = ("model.name=squeezenet1_1", f"batch.global_size={images}", f"data.image_size={pixels}")
    words = ["bench", "step", "squeezenet-digits", "--ranks", "2", "--nodes", "2", "--reductions", "ring", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "firetrain", *words, *(word for one in settings for word in ("--set", one))],
        env={**os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}, check=True, capture_output=True, text=True,
        cwd=clone,
    )  # fmt: skip
    result = json.loads(done.stdout)
    return float(result["step_s"]["firetrain ring"]["median"])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 15)
