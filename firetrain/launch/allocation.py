"""Run the trials of a comparison's allocation one after another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from firetrain.cluster import SystemClock
from firetrain.errors import FiretrainError, UserError
from firetrain.launch.verdict import endings, first_failure
from firetrain.records import COMPLETED, FAILED, RUNNING, SUBMITTED, Run
from firetrain.records.file import write_whole
from firetrain.records.script_steps import RUN, variables_of_trial
from firetrain.records.user_command import command_of, complete, digest_of_script, script_has_changed

NO_STEPS = """the script has used no Reducer, so that its steps are not known: add two lines after DistributedDataParallel
    from firetrain.ddp import Reducer, hook
    model.register_comm_hook(Reducer(), hook)"""
_CHANGED = "the script has changed since trials before this one: compare again, with --into another folder"
_TOO_FEW = "the script ended after step {}, and the first {} are not timed: lower --warmup-steps"


def unfinished(allocation: Run) -> list[Run]:
    """The trials that are neither complete nor failed."""
    return [run for run in allocation.trials() if run.state not in (COMPLETED, FAILED)]


def run_allocation(allocation: Run, start: Callable[[], str]) -> None:
    """Run the ranks until every trial is complete or has failed; they are restarted after a trial that ends them.

    `start` runs all ranks until they end and returns the error message, empty if there is none. FiretrainError if they exit
    before starting a trial.
    """
    while before := unfinished(allocation):
        wrong = start()
        for run in unfinished(allocation):
            if run.state == RUNNING:
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
    _complete(allocation)


def run_commands(allocation: Run, start: Callable[[Run], str]) -> None:
    """Run the command of every unfinished trial until the ranks are asked to stop. `start` as above, for one trial.

    UserError after a trial whose script has recorded no steps, as the others would not either.
    """
    for trial in unfinished(allocation):
        trial.update(state=RUNNING, script=digest_of_script(trial))
        began_s = time.monotonic()
        wrong = _CHANGED if any(map(script_has_changed, allocation.trials())) else start(trial)
        if allocation.stop_mark.exists():
            trial.update(state=SUBMITTED)
            return
        seen, untimed = len(trial.metrics("step")), trial.facts()["untimed_steps"]
        wrong = wrong or (NO_STEPS if not seen else _TOO_FEW.format(seen, untimed) if seen <= untimed else "")
        if not wrong:
            complete(trial, SystemClock().date(), time.monotonic() - began_s)
            continue
        trial.update(state=FAILED, ended=SystemClock().date().isoformat(), reason=_in_a_line(wrong))
        if wrong == NO_STEPS:
            raise UserError(wrong)
    _complete(allocation)


def _in_a_line(wrong: str) -> str:
    """What was wrong without the quoted log, of which only the last line is kept."""
    if wrong == NO_STEPS:
        return "; ".join(line.strip() for line in wrong.splitlines())
    first, _, rest = wrong.partition("\n")
    last = rest.rpartition("  | ")[2].strip()
    return f"{first}; its log ends with: {last}" if last else first


def _complete(allocation: Run) -> None:
    failed = [run.name for run in allocation.trials() if run.state == FAILED]
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

    def start_trial(trial: Run) -> str:
        os.environ.update({RUN: str(trial.path), **variables_of_trial(trial)})
        return start()

    try:
        if command_of(allocation) is None:
            run_allocation(allocation, start)
        else:
            run_commands(allocation, start_trial)
    except FiretrainError as error:
        print(f"firetrain: {error}", file=sys.stderr)
        raise SystemExit(code or error.exit_code) from None
    raise SystemExit(code if unfinished(allocation) else 0)


if __name__ == "__main__":
    main()
