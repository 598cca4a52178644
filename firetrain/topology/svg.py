"""Draws a plan as SVG: a lane for each rank, grouped by node, and rounds from left to right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firetrain.cluster import World
from firetrain.svg import render_svg
from firetrain.topology.plan import Plan
from firetrain.topology.text import describe

_LEFT, _TOP, _LANE, _NODE_GAP, _MARGIN = 96.0, 84.0, 30.0, 18.0, 24.0
_WIDEST, _NARROWEST = 120.0, 44.0
_LONGEST = 1600.0


def draw(plan: Plan, world: World) -> str:
    """The plan as the text of an SVG file.

    Transfers between two ranks in one round share an arrow, whose thickness shows the number of chunks.
    """
    lanes, rounds = _lanes(world), plan.rounds()
    step = max(_NARROWEST, min(_WIDEST, _LONGEST / max(1, len(rounds))))
    bottom, (name, _, numbers) = max(lanes) + _LANE, describe(plan).partition(": ")
    return render_svg(
        "firetrain.topology", "plan.svg.j2",
        about=describe(plan), name=name, numbers=numbers, width=_LEFT + max(1, len(rounds)) * step + _MARGIN,
        height=bottom + 64, left=_LEFT, top=_TOP, margin=_MARGIN, step=step, rounds=len(rounds), lanes=lanes,
        foot=max(lanes) + _LANE / 2, legend=bottom + 30, bands=_bands(world, lanes),
        arrows=list(_arrows(plan, rounds, lanes, step)), dots=_dots(plan, lanes, step),
    )  # fmt: skip


def _lanes(world: World) -> list[float]:
    """The vertical position of each rank's lane; there is a gap between nodes."""
    heights = [0.0] * world.size
    height = _TOP
    for ranks in world.nodes:
        for rank in ranks:
            heights[rank] = height
            height += _LANE
        height += _NODE_GAP
    return heights


def _bands(world: World, lanes: list[float]) -> list[dict[str, Any]]:
    """The coloured background of each node."""
    return [
        {"node": node, "top": lanes[ranks[0]] - _LANE / 2, "height": lanes[ranks[-1]] - lanes[ranks[0]] + _LANE,
         "text": lanes[ranks[0]] + 4}
        for node, ranks in enumerate(world.nodes)
    ]  # fmt: skip


def _arrows(plan: Plan, rounds: list[list[int]], lanes: list[float], step: float) -> Iterator[dict[str, Any]]:
    for number, indices in enumerate(rounds):
        together: dict[tuple[int, int, bool], list[int]] = {}
        for source, target, chunk, adds in (plan.transfers[index] for index in indices):
            together.setdefault((source, target, adds), []).append(chunk)
        left, right = _LEFT + number * step + 4, _LEFT + (number + 1) * step - 5
        for (source, target, adds), chunks in together.items():
            kind = "adds" if adds else "copies"
            yield {
                "kind": kind, "left": left, "middle": (left + right) / 2, "right": right, "start": lanes[source],
                "end": lanes[target], "thick": 1.4 + 2.2 * min(1.0, len(chunks) / plan.chunks),
                "title": f"round {number + 1}: {source} to {target} {kind} {_chunks(chunks, plan.chunks)}",
            }  # fmt: skip


def _dots(plan: Plan, lanes: list[float], step: float) -> list[tuple[float, float]]:
    """The point at which each rank has the complete sum of every chunk: after the round of its last receive."""
    last = [0] * plan.ranks
    for number, transfer in zip(plan.round_of, plan.transfers, strict=True):
        last[transfer.target] = max(last[transfer.target], number + 1)
    return [(_LEFT + last[rank] * step, height) for rank, height in enumerate(lanes)]


def _chunks(chunks: list[int], count: int) -> str:
    if len(chunks) == count:
        return "the whole buffer"
    shown = ", ".join(map(str, sorted(chunks)[:8])) + (", ..." if len(chunks) > 8 else "")
    return f"chunk{'s' if len(chunks) > 1 else ''} {shown} of {count}"
