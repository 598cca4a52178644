"""Turn the recorded runs of a comparison into rows with intervals, places and efficiencies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from firetrain.config.sections.strategy import DATA_PARALLEL, method_of
from firetrain.config.spec import Spec
from firetrain.records import COMPLETED, FAILED, Run
from firetrain.records.bootstrap import interval, medians_of_medians
from firetrain.records.count import Count, PositiveCount
from firetrain.records.parts import OF_A_STEP
from firetrain.records.target import has_ended, or_never
from firetrain.records.user_command import command_of
from firetrain.report.statistics import median_estimate

# allowed relative difference of losses at one step: reductions add in different orders, so they round differently
LOSS_TOLERANCE = 1e-3
_LOSS_STEPS = 20


@dataclass(frozen=True)
class Compared:
    """One config with one reduction in one world. Times are in seconds, medians over repeats with 95 % intervals.

    `config`: name of the config, and of its arm if there are several.
    `strategy`: how the model is placed on the ranks.
    `value_s`: the compared time, of a step or to the target.
    `parts`: seconds of a step, by key of the part.
    `place`: 1 + the number of rows of the same config and world whose intervals lie wholly below this one's; None if the
    row is not ranked (see `note`).
    `efficiency_*`: images/s per rank or per node, relative to one rank or one node.
    `top1`, `epochs`: at the end of each complete repeat.
    `epochs_to_target`: None for a repeat that missed the target.
    `missed`: number of repeats that missed the target; their times are infinite, and null in comparison.json.
    `failed`, `unfinished`: number of repeats that failed, and that have not ended or not begun.
    """

    config: str
    reduction: str
    nodes: PositiveCount
    ranks: PositiveCount
    value_s: float | None
    low_s: float | None
    high_s: float | None
    parts: dict[str, float | None]
    images_per_s: float | None
    efficiency_one_rank: float | None
    efficiency_one_node: float | None
    loss_difference: float | None
    top1: tuple[float, ...]
    epochs: tuple[Count, ...]
    epochs_to_target: tuple[Count | None, ...]
    reached: Count
    repeats: Count
    place: Count | None
    note: str
    missed: Count = 0
    failed: Count = 0
    unfinished: Count = 0
    strategy: str = DATA_PARALLEL

    @property
    def method(self) -> str:
        """The reduction, after the strategy if that is not data-parallel."""
        return method_of(self.strategy, self.reduction)

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Compared:
        """Parse a row of comparison.json, where the parts of a step are keys of the row."""
        keys = [part.key for part in OF_A_STEP]
        rest = {key: value for key, value in line.items() if key not in keys}
        return cls(**rest, parts={key: line.get(key) for key in keys})

    def as_json(self) -> dict[str, Any]:
        """The row for comparison.json, with None for infinity, which JSON does not have."""
        whole = {**asdict(self), **self.parts}
        del whole["parts"]
        return {key: None if value == math.inf else value for key, value in whole.items()}


def compare_runs(allocation: Run, untimed: int, to_target: bool) -> list[Compared]:
    """The rows of one world, by config, each with the fastest reduction first."""
    runs = allocation.trials()
    by_method: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        facts = run.facts()
        name = " ".join(filter(None, [facts.get("compared") or run.config().name, facts.get("arm")]))
        by_method.setdefault((name, facts.get("strategy", DATA_PARALLEL), facts["reduction"]), []).append(run)
    rows = []
    for config in sorted({name for name, *_ in by_method}):
        own = {
            (strategy, reduction): found for (name, strategy, reduction), found in by_method.items() if name == config
        }
        losses = {method: _losses(found) for method, found in own.items()}
        truth = losses[min(losses, key=lambda method: (method[0] != DATA_PARALLEL, method[1] != "native"))]
        found = [
            _row(config, *method, found, losses[method], truth, untimed, to_target) for method, found in own.items()
        ]
        rows += sorted(with_places(found), key=lambda row: (row.place is None, row.value_s is None, row.value_s or 0.0))
    return rows


def _row(
    config: str,
    strategy: str,
    reduction: str,
    runs: Sequence[Run],
    losses: dict[Any, float],
    truth: dict[Any, float],
    untimed: int,
    to_target: bool,
) -> Compared:
    facts = runs[0].facts()
    # a command has no config: neither the images of its steps nor its losses are known
    config_used = None if command_of(runs[0]) else runs[0].config()
    done = [run for run in runs if run.state == COMPLETED]
    steps = [[line for line in run.metrics("step") if line["step"] > untimed] for run in done]
    steps = [lines for lines in steps if lines]
    summaries = [run.summary() for run in done]
    has_target = to_target and config_used is not None and config_used.target.top1 is not None
    times = [_hit_s(run) for run in runs if has_target and has_ended(run.state, run.facts().get("reason", ""))]
    reached = sum(time is not None for time in times)
    if to_target:
        value, low, high = _to_target(times)
    else:
        value, low, high = _interval([[line["step_s"] for line in lines] for lines in steps])
    step_s = _middle(steps, "step_s")
    parts = {part.key: _middle(steps, part.key) for part in OF_A_STEP}
    difference = _difference(losses, truth)
    missed = len(times) - reached
    failed = [run for run in runs if run.state == FAILED]
    unfinished = len(runs) - len(done) - len(failed)
    note = "; ".join(_notes(runs, failed, unfinished, done, difference, reduction, [len(lines) for lines in steps]))
    return Compared(
        config, reduction, config_used.cluster.nodes if config_used else max(facts["node_of"]) + 1, facts["ranks"],
        value, low, high, parts, config_used.batch.global_size / step_s if config_used and step_s else None, None, None,
        difference, tuple(one["top1"] for one in summaries if config_used and "top1" in one),
        tuple(one["epochs"] for one in summaries if config_used and "epochs" in one),
        tuple(one.get("epochs_to_target") for one in summaries if config_used), reached, len(runs), None, note, missed,
        len(failed), unfinished, strategy,
    )  # fmt: skip


def _hit_s(run: Run) -> float | None:
    """Seconds until the run first met its target; None if it never did."""
    target = run.config().target.top1 or math.inf
    return next((float(row["elapsed_s"]) for row in run.metrics("evaluation") if row["top1"] >= target), None)


def _to_target(seconds: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """(median, low, high) of the times of runs that have ended; the interval of a single run is unknown."""
    found = median_estimate([or_never(one) for one in seconds])
    if found is None:
        return None, None, None
    return found.value, *(found.interval or (None, None))


def _notes(
    runs: Sequence[Run],
    failed: Sequence[Run],
    unfinished: int,
    done: Sequence[Run],
    difference: float | None,
    reduction: str,
    timed: Sequence[int],
) -> Iterator[str]:
    """Notes of a row: why it is not ranked, failed or missing trials, fewer `timed` steps than asked, the choice of `auto`."""
    if difference is not None and difference > LOSS_TOLERANCE:
        yield f"losses differ by {difference:.1e}: not ranked"
    if failed:
        yield f"{len(failed)} of {len(runs)} failed: {failed[0].facts().get('reason') or 'see its log'}"
    if unfinished:
        yield f"{unfinished} of {len(runs)} not done"
    asked = runs[0].facts().get("steps", 0)  # of a command, which may end earlier
    if timed and min(timed) < asked:
        yield f"{min(timed)} of {asked} steps were timed: the script ended"
    chosen = [run.summary().get("reduction", {}).get("chosen") for run in done[:1]]
    if Spec.parse(reduction).name == "auto" and chosen and chosen[0]:
        yield "chose " + ", ".join(dict.fromkeys(chosen[0].values()))


def with_places(rows: Sequence[Compared]) -> list[Compared]:
    """The rows with their places; a reduction whose losses differ from native's, or with a single seed, is not ranked."""
    fair = [
        row
        for row in rows
        if row.value_s not in (None, math.inf)
        and row.low_s is not None
        and (row.loss_difference or 0.0) <= LOSS_TOLERANCE
    ]
    found = []
    for row in rows:
        place = 1 + sum(other.high_s < row.low_s for other in fair) if row in fair else None  # type: ignore[operator]
        found.append(replace(row, place=place))
    return found


def with_efficiency(rows: Iterable[Compared]) -> list[Compared]:
    """The rows with their efficiencies, relative to one rank alone and to one node with as many ranks."""
    rows = list(rows)
    found = []
    for row in rows:
        alone = next((r.images_per_s for r in rows if r.config == row.config and r.ranks == 1), None)
        same = [r for r in rows if r.config == row.config and r.nodes == 1 and r.ranks == row.ranks // row.nodes]
        alike = (r for r in same if (r.strategy, r.reduction) == (row.strategy, row.reduction))
        node = next(alike, same[0] if len(same) == 1 else None)
        one_rank = row.images_per_s / row.ranks / alone if row.images_per_s and alone else None
        one_node = None
        if row.images_per_s and node and node.images_per_s:
            one_node = row.images_per_s / row.nodes / node.images_per_s
        found.append(replace(row, efficiency_one_rank=one_rank, efficiency_one_node=one_node))
    return found


def _interval(trials: Sequence[Sequence[float]]) -> tuple[float | None, float | None, float | None]:
    """(median of the runs' medians, low, high); the interval of a single value is unknown."""
    if not trials:
        return None, None, None
    value = median(median(trial) for trial in trials)
    if sum(map(len, trials)) == 1:
        return value, None, None
    return value, *interval(medians_of_medians(trials))


def _middle(steps: Sequence[Sequence[dict[str, Any]]], key: str) -> float | None:
    """The median of the runs' medians; None if no run has this value."""
    found = [[line[key] for line in lines if key in line] for lines in steps]
    return median(median(values) for values in found if values) if any(found) else None


def _losses(runs: Sequence[Run]) -> dict[Any, float]:
    """The losses of the first steps, by (seed, step)."""
    found = {}
    for run in runs:
        if command_of(run):
            continue
        seed = run.config().seed
        for line in run.metrics("step"):
            if line["step"] <= _LOSS_STEPS:
                found[seed, line["step"]] = line["loss"]
    return found


def _difference(losses: dict[Any, float], truth: dict[Any, float]) -> float | None:
    common = losses.keys() & truth.keys()
    return max((abs(losses[key] / truth[key] - 1) for key in common), default=None)
