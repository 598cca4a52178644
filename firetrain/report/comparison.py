"""Collect the results of a comparison from its runs, and store them in comparison.json."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from firetrain.config.comparison import Comparison
from firetrain.config.files import read_bytes, read_yaml
from firetrain.config.validation import validate
from firetrain.errors import CannotCreate, UserError
from firetrain.records import Run
from firetrain.records.file import write_whole
from firetrain.report.compared import Compared, compare_runs, with_efficiency

VERSION = 3
# version 2 did not count missed targets; its comparisons of step times are still valid
_STEPS_ONLY = 2
_MOST_BYTES = 256 << 20
# name of an allocation's folder: nodes x ranks per node; others are copies that a user has made
_SHAPE = re.compile(r"\d{1,9}x\d{1,9}")


def collect(folder: Path) -> dict[str, Any]:
    """The content of comparison.json: rows, config and machine. UserError if `folder` is not a comparison."""
    if not (folder / "comparison.yaml").exists():
        raise UserError(f"{folder} is not a comparison (no comparison.yaml in it)")
    path = folder / "comparison.yaml"
    comparison = validate(read_yaml(path), Comparison)
    folders = [path.parent for path in folder.glob("*x*/run.json") if _SHAPE.fullmatch(path.parent.name)]
    allocations = [Run.open(path) for path in sorted(folders, key=_shape)]
    rows = [
        row
        for allocation in allocations
        for row in compare_runs(allocation, comparison.untimed_steps, comparison.steps is None)
    ]
    first = allocations[0].facts()["machine"]
    return {
        "version": VERSION,
        "name": comparison.name,
        "measure": "time-to-accuracy" if comparison.steps is None else "step time",
        "comparison": comparison.model_dump(mode="json"),
        "rows": [row.as_json() for row in with_efficiency(rows)],
        "groups": [_allocation_facts(allocation) for allocation in allocations],
        "machine": {key: first[key] for key in ("firetrain", "commit", "python", "packages", "processor", "cores")},
    }


def save(comparison: dict[str, Any], folder: Path) -> Path:
    """Write comparison.json; CannotCreate if that fails."""
    path = folder / "comparison.json"
    write_whole(path, json.dumps(comparison, indent=1) + "\n", kind=CannotCreate)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read and check a comparison.json; UserError with the reason if it is not valid."""
    try:
        content: Any = json.loads(read_bytes(path, _MOST_BYTES, "comparison"))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        steps_only = content["version"] == _STEPS_ONLY and content["measure"] == "step time"
        if content["version"] != VERSION and not steps_only:
            raise UserError(f"{path} has version {content['version']}, but this firetrain reads version {VERSION}")
        if not all(isinstance(row, dict) for row in content["rows"]):
            raise ValueError("a row is no JSON object")
        rows = TypeAdapter(list[Compared]).validate_python([asdict(row) for row in rows_of(content)])
        if not isinstance(content["measure"], str) or not isinstance(content["comparison"], dict):
            raise ValueError("measure or comparison has the wrong type")
    except RecursionError:
        raise UserError(f"{path} is not a comparison's results: nested too deep") from None
    except (ValueError, KeyError, TypeError) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else error
        raise UserError(f"{path} is not a comparison's results: {text}") from None
    return {**content, "rows": [row.as_json() for row in rows]}


def rows_of(comparison: dict[str, Any]) -> list[Compared]:
    """The parsed rows of a comparison."""
    return [Compared.from_json(row) for row in comparison["rows"]]


def incomplete(comparison: dict[str, Any]) -> list[Compared]:
    """The rows of which a trial failed or is missing."""
    return [row for row in rows_of(comparison) if row.failed or row.unfinished]


def _allocation_facts(allocation: Run) -> dict[str, Any]:
    facts = allocation.facts()
    kept = ("world", "state", "hosts", "link", "jobs", "gpu", "nccl", "site", "slurm")
    return {"shape": allocation.path.name, **{key: facts[key] for key in kept if key in facts}}


def _shape(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in path.name.split("x"))
