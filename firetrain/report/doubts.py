"""Warnings about the validity of the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firetrain.config.known_failures import known_failures
from firetrain.report.clocks import ClockRule
from firetrain.report.groups import Group
from firetrain.report.history import Row
from firetrain.report.statistics import standard_error
from firetrain.words import counted

_SEEDS = 3
# allowed share of the time-to-accuracy between the last evaluation below the target and the first that met it
_BRACKET = 0.05
# maximum number of configs listed by name
_NAMED = 4


def doubts(groups: Sequence[Group], clock: ClockRule) -> list[str]:
    """The warnings, each with the groups that it applies to."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for text in (*_of_the_target(group, clock), *_of_the_recipe(group), *_recorded(group)):
            found.setdefault(text, []).append(group.label)
    return [f"{_whose(labels, len(groups))}: {text}" for text, labels in found.items()]


def _whose(labels: Sequence[str], groups: int) -> str:
    return ", ".join(labels) if len(labels) <= _NAMED else f"{len(labels)} of {groups} configs"


def _of_the_target(group: Group, clock: ClockRule) -> Iterator[str]:
    target = group.first.config.target.top1
    if target is None:
        return
    if group.ended and len(group.ended) < _SEEDS:
        yield f"only {counted(len(group.ended), 'run')}; use at least three seeds to estimate the variation"
    if missed := len(group.ended) - len(group.reached):
        yield f"{missed} of {counted(len(group.ended), 'run')} missed the target (counted as infinite time)"
    narrow = [one for one in group.reached if one.hit and one.hit["top1"] - target < _two_errors(target, one.hit)]
    if narrow and (hit := narrow[0].hit):
        yield (
            f"{len(narrow)} of {counted(len(group.reached), 'run')} met the target by less than two standard errors "
            f"({100 * _two_errors(target, hit):.1f} points, for {hit['images']} test images): another test set might differ"
        )
    below = sum(one.evaluations[-1]["top1"] < target for one in group.reached)
    if below:
        yield f"{below} of {counted(len(group.reached), 'run')} met the target and ended below it"
    wide = [share for one in group.reached if (share := _bracket(one.evaluations, target)) > _BRACKET]
    if wide:
        yield f"evaluations are rare: the target may have been met more than {_BRACKET:.0%} of the time earlier"
    if clock.name == "mlperf" and any(one.summary.get("attempts", 1) > 1 for one in group.reached):
        yield "some runs were interrupted: time in the queue was not counted, which MLPerf does not allow"


def _of_the_recipe(group: Group) -> Iterator[str]:
    config = group.first.config
    for failure in known_failures(config.model, config.batch, config.learning_rate, config.optimizer):
        yield failure.what


def _recorded(group: Group) -> Iterator[str]:
    """The warnings that the runs recorded."""
    for one in group.runs:
        for warning in dict.fromkeys(one.facts.get("warnings", [])):
            yield f"seed {one.config.seed}: {str(warning).partition('. ')[0]}"


def _two_errors(target: float, hit: Row) -> float:
    return 2 * standard_error(target, int(hit["images"]))


def _bracket(evaluations: Sequence[Row], target: float) -> float:
    """The share of the time-to-accuracy since the last evaluation below the target; 0 if the first evaluation met it."""
    before = None
    for row in evaluations:
        if row["top1"] >= target:
            whole_s = row["elapsed_s"]
            return float((whole_s - before["elapsed_s"]) / whole_s) if before and whole_s > 0 else 0.0
        before = row
    return 0.0
