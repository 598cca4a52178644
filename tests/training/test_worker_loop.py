"""A worker of a parameter server, that trains a real model, as its server sees it."""

from __future__ import annotations

from puppets import Theatre


def test_a_worker_that_computes_for_longer_than_the_timeout_is_not_taken_for_a_hanging_one() -> None:
    """The signs of life that the server sends meanwhile do not keep the worker from sending its own."""
    long = ("target.max_steps=1", "batch.global_size=1437", "batch.per_rank_max=1", "cluster.timeout_s=2")
    theatre = Theatre.open("policy=async", 2, *long)
    theatre.work(0)
    assert theatre.end() is None and theatre.facts()["updates"] == 1
