"""The links of the test cluster itself."""

from __future__ import annotations

import json

import pytest
from testbed import LINK, slurm


@pytest.mark.parametrize("node", range(1, 5))
def test_a_node_sends_and_receives_at_the_rate_that_was_asked_for(node: int) -> None:
    """Each end of its link has a token bucket, whose rate tc gives in bytes per second."""
    sent = slurm("tc", "-n", f"fire{node}", "-j", "qdisc", "show", "dev", "eth0")
    received = slurm("tc", "-j", "qdisc", "show", "dev", f"firebed{node}")
    for queues in map(json.loads, (sent, received)):
        (queue,) = queues
        assert queue["kind"] == "tbf"
        assert f"{queue['options']['rate'] * 8 / 1e9:g}gbit" == LINK
