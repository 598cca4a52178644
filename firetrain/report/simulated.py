"""Simulated policies of a parameter server: reading what `simulate --json` printed, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from firetrain.config.files import read_bytes
from firetrain.errors import UserError
from firetrain.records.outcome import Outcome
from firetrain.records.target import or_never
from firetrain.report.statistics import median_estimate
from firetrain.report.tables import Table

_MOST_BYTES = 256 << 20


def load(path: Path) -> list[Outcome]:
    """The outcomes in a file; UserError if it has none."""
    from pydantic import TypeAdapter, ValidationError

    text = read_bytes(path, _MOST_BYTES, "simulation")
    try:
        found = TypeAdapter(list[Outcome]).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "text"
        raise UserError(f"{path} is not what firetrain simulate --json prints: {where}: {first['msg']}") from None
    if not found or any(not one.curve or not one.workers for one in found):
        raise UserError(f"{path} is not what firetrain simulate --json prints: a policy without an evaluation")
    return found


def by_policy(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes of all seeds, by policy."""
    policies = dict.fromkeys(one.policy for one in found)
    return {policy: [one for one in found if one.policy == policy] for policy in policies}


def of_outcomes(found: Sequence[Outcome]) -> Table:
    """A row for each policy: medians over seeds, with their intervals if there are several.

    `largest`: the largest staleness of all seeds.
    """
    rows = [_row(policy, own) for policy, own in by_policy(found).items()]
    note = "target s: virtual seconds; idle: share of the workers' time in which they do not compute"
    return Table("simulated policies", rows, 1, [note])


def _row(policy: str, own: Sequence[Outcome]) -> dict[str, Any]:
    with_target = own[0].target is not None
    times = median_estimate([or_never(one.target_s) for one in own]) if with_target else None
    estimates = {
        "top-1": median_estimate([one.curve[-1].top1 for one in own]),
        "idle": median_estimate([100 * one.idle_share for one in own]),
        "staleness": median_estimate([one.mean_staleness for one in own]),
        "dropped": median_estimate([one.dropped for one in own]),
    }
    values = {key: one.value for key, one in estimates.items() if one}
    intervals = {key: one.interval for key, one in estimates.items() if one}
    return {
        "policy": policy,
        "target s": times.value if times else None,
        "95 %": times.interval if times else None,
        "reached": f"{sum(one.target_s is not None for one in own)} of {len(own)}" if with_target else None,
        "top-1": values["top-1"],
        "top-1 95 %": intervals["top-1"],
        "idle %": values["idle"],
        "idle 95 %": intervals["idle"],
        "staleness": values["staleness"],
        "staleness 95 %": intervals["staleness"],
        "largest": max(max(one.staleness, default=0) for one in own),
        "dropped": values["dropped"],
        "dropped 95 %": intervals["dropped"],
        "updates": median(one.updates for one in own),
        "ms an update": 1e3 * median(one.seconds_per_update for one in own),
    }
