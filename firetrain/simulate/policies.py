"""Simulates several policies with several seeds, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.data.catalogue import open_dataset
from firetrain.errors import UserError
from firetrain.predict.costs import Costs
from firetrain.predict.question import WhatIf
from firetrain.records.profile import Profile
from firetrain.simulate.outcome import Outcome
from firetrain.simulate.simulation import Simulation
from firetrain.simulate.virtual_cluster import ServerLink, StepTimes
from firetrain.strategy.policy import find_policy


def outcomes(
    config: Config, policies: Sequence[str], workers: int, seeds: Sequence[int], times: StepTimes, link: ServerLink
) -> Iterator[Outcome]:
    """What comes of each policy with each seed; UserError, before anything is trained, for one that does not suit the workers."""
    if config.batch.global_size < workers:
        raise UserError(f"{workers} workers share a batch of {config.batch.global_size} images: give each at least one")
    for policy in policies:
        find_policy(policy, workers)
    dataset = open_dataset(config.data)
    for policy in policies:
        for seed in seeds:
            yield Simulation(config.model_copy(update={"seed": seed}), dataset, policy, workers, times, link).run()


def measured(config: Config, profile: Profile, workers: int, shards: int) -> tuple[StepTimes, ServerLink]:
    """How long a worker's gradient takes, and the server's link, by a profile; UserError if it has no steps of the model."""
    costs = Costs(profile, model_label(config.model, config.data), WhatIf())
    mean_s = float(costs.compute_s(-(-config.batch.global_size // workers))[0])
    link = costs.undrawn.between
    size_bytes = costs.last.gradient_bytes
    return (
        StepTimes(mean_s, costs.last.jitter.value),
        ServerLink(size_bytes, float(link.latency_s), float(link.s_per_byte), shards),
    )
