"""The simulated machine: how long gradients and messages take, by a profile of a real one or without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.predict.costs import Costs
from firetrain.predict.question import WhatIf
from firetrain.records.profile import Profile
from firetrain.simulate.virtual_cluster import ServerLink, StepTimes


class Machine(NamedTuple):
    """How the times of gradients vary, the servers and the link of each, and the mean seconds of a gradient over some images."""

    times: StepTimes
    link: ServerLink
    gradient_s: Callable[[int], float]
    servers: int = 1


def assumed(share: int) -> Machine:
    """A machine on which a gradient over `share` images takes a second, and messages take no time."""
    return Machine(StepTimes(), ServerLink(), lambda images: images / share)


def measured(config: Config, profile: Profile, share: int, servers: int) -> Machine:
    """The machine of a profile; UserError if it has no steps of the config's model, or cannot tell those of `share` images."""
    costs = Costs(profile, model_label(config.model, config.data), WhatIf())
    link = costs.undrawn.alone  # the others are measured while all pairs of ranks send at once

    def gradient_s(images: int) -> float:
        return float(costs.passes_s(images, config.batch.per_rank_max)[0][0])

    gradient_s(share)  # so that a mistake is reported before training starts
    return Machine(
        StepTimes(jitter=costs.last.jitter.value),
        ServerLink(costs.last.gradient_bytes, float(link.latency_s), float(link.s_per_byte), costs.last.update_s.value),
        gradient_s,
        servers,
    )
