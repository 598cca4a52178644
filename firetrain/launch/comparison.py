"""A comparison is a folder of runs, and this module prepares the folder.

DIR/comparison.yaml            the resolved comparison
DIR/2x1/                       an allocation: all trials that run on the same nodes, here two nodes of one rank each
DIR/2x1/trials/003-ring-r1/    a trial: an ordinary run of one config with one reduction
DIR/comparison.json            the results
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from firetrain.cluster import SystemClock
from firetrain.config.comparison import Comparison
from firetrain.config.files import exists, is_folder, read_yaml
from firetrain.config.validation import validate
from firetrain.errors import UserError
from firetrain.launch.trials import Allocation, Trial
from firetrain.provenance import provenance
from firetrain.records import COMPLETED, SUBMITTED, Run, user_command
from firetrain.records.file import write_whole
from firetrain.records.lock import NAME as LOCK


def prepare(
    comparison: Comparison, allocations: Sequence[Allocation], folder: Path, busy: Collection[Path] = ()
) -> None:
    """Create the folder, or prepare it for resuming: complete trials are kept, failed and unfinished ones are reset.

    Allocations in `busy` are running and left unchanged. UserError if the folder contains another comparison.
    """
    refuse_another(comparison, allocations, folder)
    for allocation in allocations:
        if not (allocation.path / "run.json").exists():
            _create(comparison, allocation, allocation.path, allocation.trials[0])
        if allocation.path not in busy and any(
            not (trial.path / "summary.json").exists() for trial in allocation.trials
        ):
            (allocation.path / "summary.json").unlink(missing_ok=True)
            (allocation.path / "STOP").unlink(missing_ok=True)
        for trial in allocation.trials:
            if not (trial.path / "run.json").exists():
                facts = {
                    "arm": trial.arm,
                    "strategy": trial.strategy,
                    "reduction": trial.reduction,
                    "repeat": trial.repeat,
                }
                _create(comparison, allocation, trial.path, trial, **facts)
            elif allocation.path not in busy and (run := Run.open(trial.path)).state != COMPLETED:
                _begin_again(run)
    write_whole(folder / "comparison.yaml", comparison.text())


def refuse_another(comparison: Comparison, allocations: Sequence[Allocation], folder: Path) -> None:
    """UserError if the folder contains something other than this (possibly unfinished) comparison."""
    path = folder / "comparison.yaml"
    if not exists(path):
        if is_folder(folder) and any(path.name != LOCK for path in folder.iterdir()):
            raise UserError(f"{folder} exists and is not a comparison: choose another folder with --into")
        return
    problem = f"{folder} contains another comparison"
    if validate(read_yaml(path), Comparison) != comparison:
        raise UserError(f"{problem} (see its comparison.yaml): choose another folder with --into, or remove it")
    for trial in (trial for allocation in allocations for trial in allocation.trials):
        if trial.loaded and exists(trial.path) and Run.open(trial.path).config() != trial.loaded.config:
            raise UserError(
                f"{problem}: the config of {trial.path.name} has changed since its creation; choose another folder with --into"
            )
        if trial.loaded is None and exists(trial.path) and user_command.script_has_changed(Run.open(trial.path)):
            raise UserError(
                f"{problem}: {user_command.script_of(comparison.command)} has changed since trials were run with it; choose "
                "another folder with --into"
            )


def _create(comparison: Comparison, allocation: Allocation, path: Path, trial: Trial, **more: object) -> None:
    """Create the folder of an allocation, or of a trial, which is described by `more` facts."""
    world, now = allocation.world, SystemClock().date()
    facts = {"world": str(world), "ranks": world.size, "machine": provenance(), "state": SUBMITTED, **more}
    if trial.loaded:
        Run.prepare(path, trial.loaded, now, facts)
        return
    steps = {"steps": comparison.steps, "untimed_steps": comparison.untimed_steps}
    facts |= {"node_of": list(world.node_of), "folder": comparison.folder, "compared": comparison.name, **steps}
    user_command.prepare(path, comparison.command, now, facts)


def _begin_again(run: Run) -> None:
    run.update(state=SUBMITTED, reason="")
    checkpoints = run.path / "checkpoints"
    if user_command.command_of(run):  # which would go on from them, in the middle of its steps
        for path in checkpoints.glob("*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if not any(checkpoints.glob("*.pt")):
        (run.path / "metrics.jsonl").unlink(missing_ok=True)
