"""Run the trials of a comparison's allocation one after another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from firetrain.cluster import SystemClock
from firetrain.errors import FiretrainError
from firetrain.launch.verdict import endings, first_failure
from firetrain.records import COMPLETED, FAILED, RUNNING, Run
from firetrain.records.file import write_whole


def unfinished(allocation: Run) -> list[Run]:
    """The trials that are neither complete nor failed."""
    return [run for run in allocation.trials() if run.facts()["state"] not in (COMPLETED, FAILED)]


def run_allocation(allocation: Run, start: Callable[[], str]) -> None:
    """Run the ranks until every trial is complete or has failed; they are restarted after a trial that ends them.

    `start` runs all ranks until they end and returns the error message, empty if there is none. FiretrainError if they exit
    before starting a trial.
    """
    while before := unfinished(allocation):
        wrong = start()
        for run in unfinished(allocation):
            if run.facts()["state"] == RUNNING:
                run.update(
                    state=FAILED,
                    ended=SystemClock().date().isoformat(),
                    reason=wrong or "its ranks exited before it was complete",
                )
        after = unfinished(allocation)
        if after and not wrong:
            return  # the ranks were asked to stop
        if len(after) == len(before):
            raise FiretrainError(f"{allocation.path}: the ranks exited before starting a trial: {wrong}")
    failed = [run.name for run in allocation.trials() if run.facts()["state"] == FAILED]
    allocation.write("summary.json", {"state": COMPLETED, "trials": len(allocation.trials()), "failed": failed})
    allocation.update(state=COMPLETED, ended=SystemClock().date().isoformat())


def main() -> None:
    """For job scripts: `FOLDER -- COMMAND`. COMMAND starts all ranks; each start after the first is a new attempt."""
    allocation, command = Run.open(Path(sys.argv[1])), sys.argv[3:]
    code, starts = 0, 0

    def start() -> str:
        nonlocal code, starts
        starts += 1
        attempt = Path(os.environ["FIRETRAIN_ATTEMPT"])
        if starts > 1:
            attempt = allocation.path / f"attempt-{allocation.attempts}"
            for name in ("logs", "ranks"):
                (attempt / name).mkdir(parents=True)
            write_whole(attempt / "job", os.environ["SLURM_JOB_ID"] + "\n")
            os.environ["FIRETRAIN_ATTEMPT"] = str(attempt)
        code = subprocess.run(command, check=False).returncode
        first = first_failure(endings(attempt))
        return f"{first}; its log: {allocation.log(first.rank)}" if first else f"exit code {code}" if code else ""

    try:
        run_allocation(allocation, start)
    except FiretrainError as error:
        print(f"firetrain: {error}", file=sys.stderr)
    raise SystemExit(code if unfinished(allocation) else 0)


if __name__ == "__main__":
    main()
