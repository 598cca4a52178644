"""Kills a worker of an asynchronous run at a random moment, again and again: does every run reach its target?

Usage: python results/asynchronous/kills.py [RUNS]
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMMAND = (
    "launch", "squeezenet-digits", "--ranks-per-node", "4", "--set", "model.name=lenet", "--set", "target.top1=0.95", "--set",
    "learning_rate.base=0.002", "--set", "target.max_epochs=60", "--set",
    "strategy.name=parameter-server:policy=async,rate=staleness",
)  # fmt: skip


def main(runs: int) -> None:
    """Write what became of each run."""
    found = [killed(number) for number in range(runs)]
    (HERE / "kills.json").write_text(json.dumps(found, indent=1) + "\n")
    print(
        f"{sum(one['reached'] for one in found)} of {runs} reached the target; {sum(one['workers_lost'] for one in found)} lost"
    )


def killed(number: int) -> dict[str, Any]:
    """One run, of which a worker is killed within 1.2 s after its first logged step."""
    draw = random.Random(number)
    rank, after_s = draw.randint(1, 3), draw.uniform(0.0, 1.2)
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "firetrain", *COMMAND, "--set", f"seed={number + 1}", "--results", name]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(Path(name).glob("*/metrics.jsonl")) and process.poll() is None:
            time.sleep(0.05)
        time.sleep(after_s)
        pid = process_of(rank, name)
        if pid:
            os.kill(pid, signal.SIGKILL)
        code = process.wait()
        summaries = [json.loads(path.read_text()) for path in Path(name).glob("*/summary.json")]
    facts = summaries[0]["reduction"] if summaries else {}
    one = {
        "rank": rank, "after_s": after_s, "exit_code": code, "reached": bool(summaries and summaries[0]["reached"]),
        "workers_lost": facts.get("workers_lost", 0), "top1": summaries[0]["top1"] if summaries else None,
    }  # fmt: skip
    print(one, flush=True)
    return one


def process_of(rank: int, results: str) -> int | None:
    """The process of a rank of the run in this folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        variables = dict(word.partition(b"=")[::2] for word in words)
        if variables.get(b"FIRETRAIN_RANK") == str(rank).encode() and variables.get(
            b"FIRETRAIN_RENDEZVOUS", b""
        ).startswith(results.encode()):
            return int(entry.name)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
