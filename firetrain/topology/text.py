"""Draws a plan as text: ranks from left to right, rounds from top to bottom, and an arrow for each transfer."""

from __future__ import annotations

from collections.abc import Iterator

from firetrain.cluster import World
from firetrain.topology.plan import Plan, Transfer
from firetrain.words import counted

_LABEL = 11
_COLUMN = 6
# adds are drawn with heavy arrows, copies with light ones
_STYLES = {True: ("━", "◀", "▶", "●"), False: ("─", "◁", "▷", "○")}


def draw(plan: Plan, world: World) -> str:
    """The plan as lines of text. Transfers between two ranks in one round share an arrow, which shows their number."""
    columns = _columns(world)
    lines = [*_header(world, columns), ""]
    for number, indices in enumerate(plan.rounds()):
        arrows: dict[tuple[int, int, bool], int] = {}
        for transfer in (plan.transfers[index] for index in indices):
            key = (transfer.source, transfer.target, transfer.adds)
            arrows[key] = arrows.get(key, 0) + 1
        for row, lane in enumerate(_lanes(arrows, columns)):
            label = f"round {number + 1}" if row == 0 else ""
            lines.append(f"{label:<{_LABEL}}{lane}".rstrip())
    lines += ["", "●━▶ adds   ○─▷ copies   ×n: n chunks in one round"]
    return "\n".join(lines)


def describe(plan: Plan) -> str:
    """The plan's size in one line: ranks, depth, transfers, chunks, and the bytes of the busiest rank per byte of the buffer."""
    whole = 1 << 20
    busiest = max(plan.bytes_received(whole), default=0) / whole
    return (
        f"{plan.topology}, {counted(plan.ranks, 'rank')}: {counted(len(plan.rounds()), 'round')}, "
        f"{counted(len(plan.transfers), 'transfer')}, {counted(plan.chunks, 'chunk')}; "
        f"the busiest rank receives {busiest:.3g} times the buffer"
    )


def transfer_rows(plan: Plan) -> Iterator[tuple[int, Transfer]]:
    """Pairs (round from 1, transfer), in order of rounds."""
    for number, indices in enumerate(plan.rounds(), start=1):
        yield from ((number, plan.transfers[index]) for index in indices)


def _columns(world: World) -> list[int]:
    """The text column of each rank; gaps between nodes are wider."""
    order = [rank for ranks in world.nodes for rank in ranks]
    columns = [0] * world.size
    column, last = 0, world.node_of[order[0]]
    for rank in order:
        if world.node_of[rank] != last:
            column, last = column + 2, world.node_of[rank]
        columns[rank] = column
        column += _COLUMN
    return columns


def _header(world: World, columns: list[int]) -> list[str]:
    width = max(columns) + _COLUMN
    nodes, ranks = [" "] * width, [" "] * width
    for node, members in enumerate(world.nodes):
        _write(nodes, columns[members[0]], f"node {node}"[: _COLUMN * len(members)])
    for rank, column in enumerate(columns):
        _write(ranks, column, str(rank))
    return [f"{'':<{_LABEL}}{''.join(nodes)}".rstrip(), f"{'rank':<{_LABEL}}{''.join(ranks)}".rstrip()]


def _lanes(arrows: dict[tuple[int, int, bool], int], columns: list[int]) -> list[str]:
    """Pack the arrows of a round into few lines so that none touch: shortest first, then from the left."""
    width = max(columns) + _COLUMN
    lanes: list[list[str]] = []
    ends = {key: sorted((columns[key[0]], columns[key[1]])) for key in arrows}
    for key in sorted(arrows, key=lambda k: (ends[k][1] - ends[k][0], ends[k])):
        left, right = ends[key]
        lane = next((lane for lane in lanes if all(c == " " for c in lane[max(0, left - 1) : right + 2])), None)
        if lane is None:
            lane = [" "] * width
            lanes.append(lane)
        _arrow(lane, columns[key[0]], columns[key[1]], key[2], arrows[key])
    return ["".join(lane) for lane in lanes]


def _arrow(lane: list[str], start: int, end: int, adds: bool, count: int) -> None:
    line, to_left, to_right, tail = _STYLES[adds]
    for column in range(min(start, end), max(start, end)):
        lane[column] = line
    lane[start], lane[end] = tail, to_right if end > start else to_left
    if count > 1:
        _write(lane, (start + end) // 2, f"×{count}")


def _write(line: list[str], column: int, text: str) -> None:
    line[column : column + len(text)] = text[: len(line) - column]
