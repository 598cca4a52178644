"""The time of each reduction in closed form, for worlds of any size.

- n: bytes; p: ranks; g: ranks per node; m: nodes; L = ceil(log2 p)
- a, b: seconds per message and per byte of a link; a1, b1 inside a node; a2, b2 between nodes, shared by the node's ranks
- c: seconds per added byte
- o: seconds between two messages of one rank

With one level of links they equal the sum over the plan's messages (see tests): for powers of two if they have a logarithm,
and without incast and congestion. Double and pipelined tree, and all formulas with two levels of links, are approximations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from firetrain.config.spec import Spec
from firetrain.errors import UserError, unknown
from firetrain.predict.network import LinkCost, Network, Seconds, Shape

# the libraries' own reductions: Gloo uses rings for large buffers; NCCL chooses its algorithm
AS_RINGS = ("native", "horovod")


@dataclass(frozen=True)
class Formula:
    """The time of a reduction, as text and as a function of shape, bytes and network.

    `in_pieces`: chunks are cut into pieces, so that the plan is pipelined.
    """

    text: str
    seconds: Callable[[Shape, float, Network], Seconds]
    in_pieces: bool = False


def find_formula(name: str) -> Formula:
    """The formula of a reduction, by name with parameters; UserError lists the reductions that have one."""
    spec = Spec.parse(name)
    parameters = dict(spec.parameters)
    if spec.name in AS_RINGS and not parameters:
        return FORMULAS["ring"]
    unpriced = set(parameters) - ({"inner", "outer"} if spec.name == "hierarchical" else set())
    if spec.name not in FORMULAS or unpriced or parameters.get("inner", "ring") != "ring":
        raise UserError(unknown("formula for the reduction", name, FORMULAS))
    outer = str(parameters.get("outer", "ring"))
    return FORMULAS[spec.name] if outer == "ring" else _hierarchical_with(outer)


def _flat(shape: Shape, network: Network, links: float = 1) -> LinkCost:
    """The cost of the slowest link, which determines the time of symmetric patterns; `links`: see `Network.uplink`."""
    return network.inside if shape.nodes == 1 else network.between.slower(network.uplink(shape.nodes, links))


def _ring(shape: Shape, n: float, network: Network) -> Seconds:
    p = shape.ranks
    chunk = n / p
    hop = _flat(shape, network)
    round_s: Seconds
    if shape.nodes > 1 and shape.per_node > 1:
        # time of a round: the largest of the busiest link, the mean hop and the gap
        crossing = 1 / shape.per_node
        mean = crossing * hop(chunk) + (1 - crossing) * network.inside(chunk)
        round_s = np.maximum(np.maximum(chunk * hop.s_per_byte, mean), network.gap_s)
    else:
        round_s = network.hop(hop, chunk)
    return 2 * (p - 1) * round_s + (p - 1) * chunk * network.s_per_added_byte


def _tree(shape: Shape, n: float, network: Network) -> Seconds:
    inside, outside = _levels(shape)
    hops: Seconds
    near = min(outside, (network.leaf_nodes - 1).bit_length())
    far = network.alone.slower(network.uplink(shape.nodes, 1))
    hops = inside * network.hop(network.inside, n) + near * network.hop(network.alone, n)
    hops = hops + (outside - near) * network.hop(far, n)
    return 2 * hops + (inside + outside) * n * network.s_per_added_byte


def _halving_doubling(shape: Shape, n: float, network: Network) -> Seconds:
    p = shape.ranks
    levels = p.bit_length() - 1
    core = 1 << levels
    total: Seconds = 0.0
    for level in range(levels):
        part = n / 2 ** (level + 1)
        near = 2**level < shape.per_node
        leaves = 2**level >= shape.per_node * network.leaf_nodes  # all nodes communicate with other leaf switches
        link = network.inside if near else _flat(shape, network, network.leaf_nodes if leaves else 0)
        shared = 1 if near or shape.nodes == 1 else shape.per_node
        total = total + 2 * np.maximum(link.latency_s + shared * part * link.s_per_byte, network.gap_s)
    if p > core:  # the other ranks first send their buffers, and receive the result at the end
        total = total + 2 * network.hop(_flat(shape, network), n) + n * network.s_per_added_byte
    return total + (core - 1) / core * n * network.s_per_added_byte


def _direct(shape: Shape, n: float, network: Network) -> Seconds:
    p, g = shape.ranks, shape.per_node
    chunk = n / p
    near, far = g - 1, p - g
    # share of a node's messages that leave its leaf switch
    leaving = max(0, shape.nodes - network.leaf_nodes) / max(1, shape.nodes - 1)
    uplink = network.uplink(shape.nodes, leaving * network.leaf_nodes)
    crowd = network.crowd(network.congestion, shape.nodes - 1)
    between_s = network.between.s_per_byte * np.maximum(uplink, crowd)
    link_s = near * chunk * network.inside.s_per_byte + far * chunk * g * between_s
    latency_s = network.inside.latency_s if shape.nodes == 1 else network.between.latency_s
    # a rank sends and receives p - 1 messages one after another; the first and the last gap overlap with the link's time
    gaps_s = (p - 2) * (network.gap_s - chunk * _flat(shape, network).s_per_byte)
    return 2 * (latency_s + link_s + np.maximum(0.0, gaps_s)) + (p - 1) * chunk * network.s_per_added_byte


def _parameter_server(shape: Shape, n: float, network: Network) -> Seconds:
    p, g = shape.ranks, shape.per_node
    near, far = g - 1, p - g
    link = network.inside if shape.nodes == 1 else network.alone
    near_s, far_s = near * n * network.inside.s_per_byte, far * n * network.alone.s_per_byte
    # buffers from other leaf switches, through the uplink of the server's leaf switch
    leaf_s = max(0, p - g * network.leaf_nodes) * n * network.alone.s_per_byte * network.uplink(shape.nodes, 1)
    link_s = near_s + np.maximum(far_s * network.crowd(network.incast, shape.nodes - 1), leaf_s)
    adding_s = (p - 1) * n * network.s_per_added_byte
    gaps_s = (p - 1) * network.gap_s
    # the server overlaps adding with receiving: time of the slower one, plus one buffer of the other
    busy_s = np.maximum(adding_s, gaps_s - n * link.s_per_byte)
    gather_s = np.maximum(link_s, busy_s) + np.minimum(link_s, adding_s) / max(1, p - 1)
    spread_s = np.maximum(near_s + np.maximum(far_s, leaf_s), (p - 2) * network.gap_s + n * link.s_per_byte)
    return 2 * link.latency_s + gather_s + spread_s


def _torus(shape: Shape, n: float, network: Network) -> Seconds:
    p = shape.ranks
    rows = next(side for side in range(math.isqrt(p), 0, -1) if p % side == 0)
    across = p // rows
    if shape.nodes == 1:
        return _grid(Shape(rows, across), n, replace(network, between=network.inside), 1)
    stride = min(
        network.leaf_nodes, max(1, across // shape.per_node)
    )  # nodes of a leaf switch that communicate with another at the same time
    between = network.between.slower(network.uplink(shape.nodes, stride))
    if shape.per_node % across:  # rows extend over several nodes, too
        return _grid(Shape(rows, across), n, replace(network, inside=_flat(shape, network), between=between), 1)
    return _grid(Shape(rows, across), n, replace(network, between=between), across)


def _hierarchical(shape: Shape, n: float, network: Network) -> Seconds:
    return _grid(shape, n, replace(network, between=_flat(shape, network)), shape.per_node)


def _grid(shape: Shape, n: float, network: Network, shared: int) -> Seconds:
    """Rings inside nodes, then between nodes for each rank's share, then inside again; `shared` ranks share a node's link."""
    g, m = shape.per_node, shape.nodes
    between = network.between if m > 1 else network.inside
    inner = 2 * (g - 1) * network.hop(network.inside, n / g) + (g - 1) * n / g * network.s_per_added_byte
    part = n / (g * m)
    outer = 2 * (m - 1) * np.maximum(between.latency_s + shared * part * between.s_per_byte, network.gap_s)
    return inner + outer + (m - 1) * part * network.s_per_added_byte


def _hierarchical_with(outer: str) -> Formula:
    other = find_formula(outer)

    def seconds(shape: Shape, n: float, network: Network) -> Seconds:
        g = shape.per_node
        inner = _grid(Shape(1, g), n, network, 1)
        return inner + other.seconds(Shape(shape.nodes, 1), n, network) if shape.nodes > 1 else inner

    return Formula(f"2(g-1)(a1 + n/g b1) + (g-1)/g n c + the time of {outer} over m nodes", seconds)


def _double_tree(shape: Shape, n: float, network: Network) -> Seconds:
    return _pipeline(shape, n, network, min(shape.ranks, 4) / 2, adds=1.0)


def _pipelined_tree(shape: Shape, n: float, network: Network) -> Seconds:
    shared = shape.per_node if shape.nodes > 1 else 1  # nearly every edge connects two nodes
    loads = {1: 0.0, 2: 1.0, 3: 2.0, 4: 2.8}.get(shape.ranks, 4.75)
    return _pipeline(shape, n, network, shared * loads, adds=2.0)


def _pipeline(shape: Shape, n: float, network: Network, loads: float, adds: float) -> Seconds:
    """Pipelined time: `loads` buffers through the busiest link or `adds` buffers added, with the optimal piece size.

    A double tree has 2 loads. A pipelined tree has 3 at best, and 4.75 in simulations of 5 to 64 ranks, because its ranks
    receive in a fixed order and wait for each other.
    """
    link = _flat(shape, network, 2)  # one edge up and one edge down connect a leaf switch to others
    depth = 2 * max(1, (shape.ranks - 1).bit_length()) - 1
    best = np.sqrt(n * link.latency_s * link.s_per_byte * loads / depth) / link.s_per_byte
    piece = np.clip(best, 64 << 10, max(64 << 10, n))
    a_piece = network.hop(link, np.minimum(piece, n))  # type: ignore[arg-type]
    messages = loads * n / np.minimum(piece, n)
    busiest_s = np.maximum(loads * n * link.s_per_byte, adds * n * network.s_per_added_byte)
    busiest_s = np.maximum(busiest_s, messages * network.gap_s)
    return busiest_s + depth * a_piece


def _levels(shape: Shape) -> tuple[int, int]:
    """The levels of a binary tree (inside nodes, between nodes); their sum is ceil(log2) of the ranks."""
    whole = (shape.ranks - 1).bit_length()
    inside = min(whole, (shape.per_node - 1).bit_length()) if shape.nodes > 1 else whole
    return inside, whole - inside


FORMULAS = {
    "ring": Formula("2(p-1)(a + n/p b) + (p-1)/p n c", _ring),
    "tree": Formula("2 L (a + n b) + L n c", _tree),
    "halving-doubling": Formula(
        "2 L a + 2(p-1)/p n b + (p-1)/p n c; for p not 2^k 2(a + n b) + n c more", _halving_doubling, in_pieces=True
    ),
    "direct": Formula("2 a + 2 max((p-1)/p n congestion b, (p-2) o) + (p-1)/p n c", _direct),
    "parameter-server": Formula(
        "2 a + (p-1) max(n incast b, n c, o) + (p-1) max(n b, o) + n min(incast b, c)", _parameter_server
    ),
    "torus": Formula("2(x-1)(a + n/x b) + 2(y-1)(a + n/p b) + (p-1)/p n c, x y = p", _torus),
    "hierarchical": Formula("2(g-1)(a1 + n/g b1) + 2(m-1)(a2 + n/m b2) + (p-1)/p n c", _hierarchical),
    "double-tree": Formula("2 n b + 2 L (a + piece b)", _double_tree, in_pieces=True),
    "pipelined-tree": Formula("4.75 n b + 2 L (a + piece b)", _pipelined_tree, in_pieces=True),
}  # fmt: skip
