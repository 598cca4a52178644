"""Chooses the executor of plans for a transport."""

from __future__ import annotations

from firetrain.reduction.context import Context
from firetrain.reduction.interface import Reduction
from firetrain.reduction.nccl_executor import NcclExecutor
from firetrain.reduction.tcp_executor import TcpExecutor
from firetrain.topology import Topology


def execute(topology: Topology, context: Context) -> Reduction:
    """A reduction that executes the plan of `topology` on the ranks of `context`, over NCCL or TCP.

    UserError if the topology does not fit these ranks.
    """
    transport = context.transport
    plan = topology(transport.world)
    if transport.members:
        plan = plan.on(transport.members)
    return NcclExecutor(plan, context) if transport.on_nccl else TcpExecutor(plan, context)
