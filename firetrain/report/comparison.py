"""What came of a comparison: each reduction's step time and its parts, or its time-to-accuracy, with what can be said of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from firetrain.config.files import read_bytes
from firetrain.config.spec import Spec
from firetrain.errors import CannotCreate, UserError
from firetrain.records import COMPLETED, Run
from firetrain.records.file import write_whole
from firetrain.report.grid import Grid
from firetrain.report.statistics import median as over_seeds
from firetrain.report.target import has_ended, in_words, interval_in_words, seconds_or_never

VERSION = 3
# of what was compared before runs that missed their target counted
_STEPS_ONLY = 2
_MOST_BYTES = 256 << 20
PARTS = ("compute_s", "exposed_communication_s", "data_s")
# losses of two reductions at one step: they add in another order, and round differently
LOSS_TOLERANCE = 1e-3
_LOSS_STEPS = 20
_DRAWS = 1000


@dataclass(frozen=True)
class Row:
    """One config with one reduction in one world. Times are in seconds, medians over repeats with 95 % intervals.

    `value_s` is what is compared: a step's time, or the time-to-accuracy. `place` counts from 1 those reductions of the same
    config and world whose intervals lie wholly below this one's, and is None for what is not ranked: see `note`.
    Efficiencies are of images/s per rank, against one rank and against one node. `top1` and `epochs` are those at the end of each
    repeat that is complete, `epochs_to_target` those after which it was reached, None where it was not; with variants of a
    config, `config` is its name and the variant's. `missed` repeats ended without their target: infinite times, which
    comparison.json has as null.
    """

    config: str
    reduction: str
    nodes: int
    ranks: int
    value_s: float | None
    low_s: float | None
    high_s: float | None
    compute_s: float | None
    exposed_communication_s: float | None
    data_s: float | None
    images_per_s: float | None
    efficiency_one_rank: float | None
    efficiency_one_node: float | None
    loss_difference: float | None
    top1: tuple[float, ...]
    epochs: tuple[int, ...]
    epochs_to_target: tuple[int | None, ...]
    reached: int
    repeats: int
    place: int | None
    note: str
    missed: int = 0


def collect(folder: Path) -> dict[str, Any]:
    """comparison.json: the rows, and what they were measured with; JSON-ready. UserError if `folder` is no comparison."""
    if not (folder / "comparison.yaml").exists():
        raise UserError(f"{folder} holds no comparison (no comparison.yaml in it)")
    from firetrain.config.comparison import Comparison
    from firetrain.config.files import read_yaml
    from firetrain.config.load import validate

    path = folder / "comparison.yaml"
    comparison = validate(read_yaml(path), Comparison)
    groups = [Run.open(path.parent) for path in sorted(folder.glob("*x*/run.json"), key=_shape)]
    rows = [row for group in groups for row in _rows(group, comparison.untimed_steps, comparison.steps is None)]
    first = groups[0].facts()["machine"]
    return {
        "version": VERSION,
        "name": comparison.name,
        "measure": "time-to-accuracy" if comparison.steps is None else "step time",
        "comparison": comparison.model_dump(mode="json"),
        "rows": [_as_json(row) for row in _with_efficiency(rows)],
        "groups": [_group_facts(group) for group in groups],
        "machine": {key: first[key] for key in ("firetrain", "commit", "python", "packages", "processor", "cores")},
    }


def _as_json(row: Row) -> dict[str, Any]:
    """JSON has no infinity."""
    return {key: None if value == math.inf else value for key, value in asdict(row).items()}


def save(comparison: dict[str, Any], folder: Path) -> Path:
    """Write comparison.json; CannotCreate if that fails."""
    path = folder / "comparison.json"
    write_whole(path, json.dumps(comparison, indent=1) + "\n", kind=CannotCreate)
    return path


def load(path: Path) -> dict[str, Any]:
    """A comparison.json; UserError says what is wrong with it."""
    try:
        content: dict[str, Any] = json.loads(read_bytes(path, _MOST_BYTES, "comparison"))
        steps_only = content["version"] == _STEPS_ONLY and content["measure"] == "step time"
        if content["version"] != VERSION and not steps_only:
            raise UserError(f"{path} is of version {content['version']}, this firetrain reads version {VERSION}")
        TypeAdapter(list[Row]).validate_python([asdict(row) for row in rows_of(content)])
        if not isinstance(content["measure"], str) or not isinstance(content["comparison"], dict):
            raise ValueError("measure or comparison is none")
    except RecursionError:
        raise UserError(f"{path} is not a comparison's results: nested too deep") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a comparison's results: {error}") from None
    return content


def rows_of(comparison: dict[str, Any]) -> list[Row]:
    """Its rows."""
    return [Row(**row) for row in comparison["rows"]]


def grid(comparison: dict[str, Any]) -> Grid:
    """The rows as texts, with a gap between worlds."""
    to_target = comparison["measure"] == "time-to-accuracy"
    lines: list[list[str]] = []
    before = None
    for row in rows_of(comparison):
        if before and before != (row.config, row.ranks, row.nodes):
            lines.append([])
        before = (row.config, row.ranks, row.nodes)
        lines.append(cells(row, to_target))
    return Grid(headings(to_target), lines, names=3)


def headings(to_target: bool) -> list[str]:
    """Of the columns."""
    value = (
        ["TTA s", "95 %", "reached", "top-1 %", "epochs", "to target"]
        if to_target
        else ["step ms", "95 %", "compute", "exposed", "data"]
    )
    return ["config", "nodes x ranks", "reduction", "place", *value, "images/s", "of 1 rank", "of 1 node", "note"]


def cells(row: Row, to_target: bool) -> list[str]:
    """A row as text: milliseconds for steps, seconds to the target."""
    scale, form = (1, "{:.1f}") if to_target else (1e3, "{:.1f}")

    def time(seconds: float | None) -> str:
        return "-" if seconds is None else form.format(seconds * scale)

    value_s = seconds_or_never(row.value_s) if row.missed else row.value_s
    told = "-" if value_s is None else in_words(value_s, time)
    interval = "-"
    if row.low_s is not None and value_s != math.inf:
        interval = interval_in_words(row.low_s, seconds_or_never(row.high_s), time)
    if to_target:
        accuracies = " ".join(f"{100 * top1:.1f}" for top1 in row.top1) or "-"
        epochs = " ".join(map(str, row.epochs)) or "-"
        after = " ".join("-" if count is None else str(count) for count in row.epochs_to_target) or "-"
        value = [f"{row.reached} of {row.repeats}", accuracies, epochs, after]
    else:
        value = [time(getattr(row, part)) for part in PARTS]
    share = ["-" if x is None else f"{x:.0%}" for x in (row.efficiency_one_rank, row.efficiency_one_node)]
    speed = "-" if row.images_per_s is None else f"{row.images_per_s:,.0f}"
    place = "-" if row.place is None else str(row.place)
    return [
        row.config, f"{row.nodes} x {row.ranks // row.nodes}", row.reduction, place, told, interval, *value, speed,
        *share, row.note,
    ]  # fmt: skip


def remarks(comparison: dict[str, Any]) -> list[str]:
    """What a reader of the table has to know."""
    if comparison["measure"] == "time-to-accuracy":
        first = "time-to-accuracy over seeds: medians, with runs that missed as infinitely slow; 95 % intervals by bootstrap"
    else:
        first = (
            "step time over repeats: medians; 95 % intervals by bootstrap, parts drawn first and then steps within them"
        )
    return [
        first,
        "place: 1 + how many reductions are surely faster; of one place: no difference seen, the intervals overlap",
        f"losses are held against native's (the first's if it is not there) step by step, relative: within {LOSS_TOLERANCE:g}",
        "compute, exposed communication and data are rank 0's, each a median by itself: they need not add up to the step",
    ]


def _rows(group: Run, untimed: int, to_target: bool) -> list[Row]:
    """The rows of one world, configs together, fastest first."""
    runs = [Run(path) for path in sorted((group.path / "parts").iterdir())]
    arms: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        facts = run.facts()
        name = " ".join(filter(None, [run.config().name, facts.get("arm")]))
        arms.setdefault((name, facts["reduction"]), []).append(run)
    rows = []
    for config in sorted({name for name, _ in arms}):
        own = {reduction: found for (name, reduction), found in arms.items() if name == config}
        losses = {reduction: _losses(found) for reduction, found in own.items()}
        truth = losses["native" if "native" in losses else next(iter(losses))]
        found = [_row(config, *arm, losses[arm[0]], truth, untimed, to_target) for arm in own.items()]
        rows += sorted(_placed(found), key=lambda row: (row.place is None, row.value_s is None, row.value_s or 0.0))
    return rows


def _row(
    config: str,
    reduction: str,
    runs: Sequence[Run],
    losses: dict[Any, float],
    truth: dict[Any, float],
    untimed: int,
    to_target: bool,
) -> Row:
    facts = runs[0].facts()
    config_used = runs[0].config()
    done = [run for run in runs if run.facts()["state"] == COMPLETED]
    steps = [[line for line in run.metrics("step") if line["step"] > untimed] for run in done]
    steps = [lines for lines in steps if lines]
    summaries = [run.summary() for run in done]
    has_target = to_target and config_used.target.top1 is not None
    ended = (
        [run for run in runs if has_ended(run.facts()["state"], str(run.facts().get("reason", "")))]
        if has_target
        else []
    )
    times = [_hit_s(run) for run in ended]
    reached = sum(time is not None for time in times)
    if to_target:
        value, low, high = _to_target(times)
    else:
        value, low, high = _interval([[line["step_s"] for line in lines] for lines in steps])
    step_s = _middle(steps, "step_s")
    compute_s, exposed_s, data_s = (_middle(steps, part) for part in PARTS)
    difference = _difference(losses, truth)
    missed = len(ended) - reached
    note = _note(runs, done, difference, reduction)
    return Row(
        config, reduction, config_used.cluster.nodes, facts["ranks"], value, low, high, compute_s, exposed_s, data_s,
        config_used.batch.global_size / step_s if step_s else None, None, None, difference,
        tuple(one["top1"] for one in summaries), tuple(one["epochs"] for one in summaries),
        tuple(one.get("epochs_to_target") for one in summaries), reached, len(runs), None, note, missed,
    )  # fmt: skip


def _hit_s(run: Run) -> float | None:
    """When it first met its target, whatever became of it afterwards."""
    target = run.config().target.top1 or math.inf
    return next((float(row["elapsed_s"]) for row in run.metrics("evaluation") if row["top1"] >= target), None)


def _to_target(seconds: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """(median, its 95 % interval) of the times of runs that have ended; one alone has [value, value]."""
    found = over_seeds([seconds_or_never(one) for one in seconds])
    if found is None:
        return None, None, None
    low, high = (found.value if end is None else end for end in (found.low, found.high))
    return found.value, low, high


def _note(runs: Sequence[Run], done: Sequence[Run], difference: float | None, reduction: str) -> str:
    """Why it is not ranked, if so; what else is to be known."""
    failed = [run for run in runs if run.facts()["state"] == "failed"]
    notes = []
    if difference is not None and difference > LOSS_TOLERANCE:
        notes.append(f"losses differ by {difference:.1e}: not ranked")
    if failed:
        notes.append(f"{len(failed)} of {len(runs)} failed: {failed[0].facts().get('reason') or 'see its log'}")
    if missing := len(runs) - len(done) - len(failed):
        notes.append(f"{missing} of {len(runs)} not done")
    chosen = [run.summary().get("reduction", {}).get("chosen") for run in done[:1]]
    if Spec.parse(reduction).name == "auto" and chosen and chosen[0]:
        notes.append("chose " + ", ".join(dict.fromkeys(chosen[0].values())))
    return "; ".join(notes)


def _placed(rows: Sequence[Row]) -> list[Row]:
    """With places. A reduction whose losses are not native's has none."""
    fair = [
        row for row in rows if row.value_s not in (None, math.inf) and (row.loss_difference or 0.0) <= LOSS_TOLERANCE
    ]
    placed = []
    for row in rows:
        place = 1 + sum(other.high_s < row.low_s for other in fair) if row in fair else None  # type: ignore[operator]
        placed.append(Row(**{**asdict(row), "place": place}))
    return placed


def _with_efficiency(rows: Iterable[Row]) -> list[Row]:
    rows = list(rows)
    found = []
    for row in rows:
        alone = next((r.images_per_s for r in rows if r.config == row.config and r.ranks == 1), None)
        same = [r for r in rows if r.config == row.config and r.nodes == 1 and r.ranks == row.ranks // row.nodes]
        node = next((r for r in same if r.reduction == row.reduction), same[0] if len(same) == 1 else None)
        one_rank = row.images_per_s / row.ranks / alone if row.images_per_s and alone else None
        one_node = None
        if row.images_per_s and node and node.images_per_s:
            one_node = row.images_per_s / row.nodes / node.images_per_s
        found.append(Row(**{**asdict(row), "efficiency_one_rank": one_rank, "efficiency_one_node": one_node}))
    return found


def _interval(parts: Sequence[Sequence[float]]) -> tuple[float | None, float | None, float | None]:
    """(median of the parts' medians, its 95 % interval). One part has no interval: it is told as [value, value]."""
    if not parts:
        return None, None, None
    value = median(median(part) for part in parts)
    draws = np.random.default_rng(1)
    arrays = [np.asarray(part) for part in parts]
    found = []
    for _ in range(_DRAWS):
        chosen = [arrays[number] for number in draws.integers(len(arrays), size=len(arrays))]
        found.append(np.median([np.median(draws.choice(array, len(array))) for array in chosen]))
    low, high = np.percentile(found, [2.5, 97.5])
    return value, float(low), float(high)


def _middle(steps: Sequence[Sequence[dict[str, Any]]], key: str) -> float | None:
    """The median of the parts' medians."""
    return median(median(line[key] for line in lines) for lines in steps) if steps else None


def _losses(runs: Sequence[Run]) -> dict[Any, float]:
    """By (seed, step), of the first steps."""
    found = {}
    for run in runs:
        seed = run.config().seed
        for line in run.metrics("step"):
            if line["step"] <= _LOSS_STEPS:
                found[seed, line["step"]] = line["loss"]
    return found


def _difference(losses: dict[Any, float], truth: dict[Any, float]) -> float | None:
    common = losses.keys() & truth.keys()
    return max((abs(losses[key] / truth[key] - 1) for key in common), default=None)


def _group_facts(group: Run) -> dict[str, Any]:
    facts = group.facts()
    kept = ("world", "state", "hosts", "link", "jobs", "gpu", "nccl", "site", "slurm")
    return {"shape": group.path.name, **{key: facts[key] for key in kept if key in facts}}


def _shape(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in path.parent.name.split("x"))
