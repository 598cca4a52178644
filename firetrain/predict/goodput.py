"""Goodput: the share of a cluster's time that is not lost to checkpoints and failures."""

from __future__ import annotations

import math

from firetrain.predict.question import Question

_LEAST = 1e-12


def goodput(ask: Question, nodes: int) -> float:
    """The share of the time that is not lost to checkpoints and failures (Young 1974, Daly 2006).

    Checkpoints are written at Young's interval sqrt(2 C M), with C seconds per checkpoint and M seconds between failures of any
    node; on average half an interval is repeated after each failure.
    """
    if ask.mtbf_h is None:
        return 1.0
    between_s = ask.mtbf_h * 3600 / nodes
    interval_s = checkpoint_interval_s(ask, nodes)
    return max(_LEAST, 1 - ask.checkpoint_s / interval_s - (interval_s / 2 + ask.checkpoint_s) / between_s)


def checkpoint_interval_s(ask: Question, nodes: int) -> float:
    """Seconds between two checkpoints, by Young's formula."""
    return math.sqrt(2 * ask.checkpoint_s * (ask.mtbf_h or math.inf) * 3600 / nodes)
