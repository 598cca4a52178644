"""The simulated machine, by a profile of a real one."""

from __future__ import annotations

from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.predict.costs import Costs
from firetrain.predict.question import WhatIf
from firetrain.records.profile import Profile
from firetrain.simulate.virtual_cluster import ServerLink, StepTimes


def measured(config: Config, profile: Profile, workers: int, servers: int) -> tuple[StepTimes, ServerLink]:
    """How long a worker's gradient takes, and the server's link, by a profile; UserError if it has no steps of the model."""
    costs = Costs(profile, model_label(config.model, config.data), WhatIf())
    mean_s = float(costs.compute_s(-(-config.batch.global_size // workers))[0])
    link = costs.undrawn.between
    size_bytes = costs.last.gradient_bytes
    return (
        StepTimes(mean_s, costs.last.jitter.value),
        ServerLink(size_bytes, float(link.latency_s), float(link.s_per_byte), servers),
    )
