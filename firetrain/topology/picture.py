"""A plan as a picture: ranks as lanes grouped by node, rounds from left to right, adds and copies told apart. SVG, by itself."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from firetrain.cluster import World
from firetrain.topology.drawing import describe
from firetrain.topology.plan import Plan

_LEFT, _TOP, _LANE, _NODE_GAP, _MARGIN = 96.0, 84.0, 30.0, 18.0, 24.0
_WIDEST, _NARROWEST = 120.0, 44.0
_LONGEST = 1600.0

_STYLE = """
svg { background: var(--paper); font: 12px system-ui, sans-serif; --paper: #fff; --ink: #1d2433; --faint: #8a93a6;
  --band: #f2f4f8; --line: #d8dde6; --add: #d1495b; --copy: #2a7f9e }
@media (prefers-color-scheme: dark) { svg { --paper: #14171d; --ink: #e6e9ef; --faint: #8a93a6; --band: #1d222b;
  --line: #333a47; --add: #ff7a8a; --copy: #62c3e6 } }
text { fill: var(--ink) } .faint { fill: var(--faint) } .title { font-size: 16px; font-weight: 600 }
.band { fill: var(--band) } .lane { stroke: var(--line) } .edge { stroke: var(--line); stroke-dasharray: 2 4 }
.transfer { fill: none; stroke-linecap: round; stroke-opacity: .85 }
.adds { stroke: var(--add) } .copies { stroke: var(--copy); stroke-dasharray: 6 4 }
.adds-head { fill: var(--add) } .copies-head { fill: var(--copy) } .dot { fill: var(--ink) }
.transfer:hover { stroke-opacity: 1; stroke-width: 4 }
"""


def picture(plan: Plan, world: World) -> str:
    """The plan as the text of an SVG file. Transfers between two ranks in one round are one arrow, thicker for more of them."""
    lanes = _lanes(world)
    rounds = plan.rounds()
    step = max(_NARROWEST, min(_WIDEST, _LONGEST / max(1, len(rounds))))
    width = _LEFT + max(1, len(rounds)) * step + _MARGIN
    bottom = max(lanes) + _LANE
    parts = [
        *_frame(plan, width, bottom + 64),
        *_ground(world, lanes, len(rounds), step, width),
        *_arrows(plan, rounds, lanes, step),
        *_dots(plan, lanes, step, len(rounds)),
        *_legend(bottom + 30),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lanes(world: World) -> list[float]:
    """The height of each rank's lane; a gap between nodes."""
    heights = [0.0] * world.size
    height = _TOP
    for ranks in world.nodes:
        for rank in ranks:
            heights[rank] = height
            height += _LANE
        height += _NODE_GAP
    return heights


def _frame(plan: Plan, width: float, height: float) -> Iterator[str]:
    about = escape(describe(plan))
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img" aria-label="{about}">'
    )
    yield f"<title>{about}</title><style>{_STYLE}</style><defs>"
    for kind in ("adds", "copies"):
        yield (
            f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="9" '
            f'markerHeight="9" orient="auto"><path class="{kind}-head" d="M0 0 8 4 0 8z"/></marker>'
        )
    yield "</defs>"
    name, _, numbers = describe(plan).partition(": ")
    yield f'<text class="title" x="{_MARGIN:g}" y="30">{escape(name)}</text>'
    yield f'<text class="faint" x="{_MARGIN:g}" y="50">{escape(numbers)}</text>'


def _ground(world: World, lanes: list[float], rounds: int, step: float, width: float) -> Iterator[str]:
    """Nodes as bands, ranks as lines, rounds as columns."""
    for node, ranks in enumerate(world.nodes):
        top, bottom = lanes[ranks[0]] - _LANE / 2, lanes[ranks[-1]] + _LANE / 2
        yield (
            f'<rect class="band" x="{_MARGIN / 2:g}" y="{top:g}" width="{width - _MARGIN:g}" '
            f'height="{bottom - top:g}" rx="8"/>'
        )
        yield f'<text class="faint" x="{_MARGIN:g}" y="{lanes[ranks[0]] + 4:g}">node {node}</text>'
    for rank, height in enumerate(lanes):
        yield f'<text x="{_LEFT - 12:g}" y="{height + 4:g}" text-anchor="end">{rank}</text>'
        yield f'<line class="lane" x1="{_LEFT:g}" y1="{height:g}" x2="{_LEFT + rounds * step:g}" y2="{height:g}"/>'
    for number in range(rounds + 1):
        x = _LEFT + number * step
        yield f'<line class="edge" x1="{x:g}" y1="{_TOP - 12:g}" x2="{x:g}" y2="{max(lanes) + _LANE / 2:g}"/>'
        if number < rounds:
            yield f'<text class="faint" x="{x + step / 2:g}" y="{_TOP - 18:g}" text-anchor="middle">{number + 1}</text>'


def _arrows(plan: Plan, rounds: list[list[int]], lanes: list[float], step: float) -> Iterator[str]:
    for number, indices in enumerate(rounds):
        together: dict[tuple[int, int, bool], list[int]] = {}
        for source, target, chunk, adds in (plan.transfers[index] for index in indices):
            together.setdefault((source, target, adds), []).append(chunk)
        left, right = _LEFT + number * step + 4, _LEFT + (number + 1) * step - 5
        middle = (left + right) / 2
        for (source, target, adds), chunks in together.items():
            kind = "adds" if adds else "copies"
            start, end = f"{lanes[source]:g}", f"{lanes[target]:g}"
            path = f"M{left:g} {start}C{middle:g} {start} {middle:g} {end} {right:g} {end}"
            thick = 1.4 + 2.2 * min(1.0, len(chunks) / plan.chunks)
            told = f"round {number + 1}: {source} to {target} {kind} {_chunks(chunks, plan.chunks)}"
            yield (
                f'<path class="transfer {kind}" d="{path}" stroke-width="{thick:.2g}" marker-end="url(#{kind})">'
                f"<title>{told}</title></path>"
            )


def _dots(plan: Plan, lanes: list[float], step: float, rounds: int) -> Iterator[str]:
    """Where a rank holds the complete sum of every chunk: the round after its last receive."""
    last = [0] * plan.ranks
    for number, transfer in zip(plan.round_of, plan.transfers, strict=True):
        last[transfer.target] = max(last[transfer.target], number + 1)
    for rank, height in enumerate(lanes):
        yield (
            f'<circle class="dot" cx="{_LEFT + last[rank] * step:g}" cy="{height:g}" r="3.2">'
            f"<title>rank {rank} has the whole sum</title></circle>"
        )


def _legend(height: float) -> Iterator[str]:
    x = _MARGIN
    for kind, text in (("adds", "adds"), ("copies", "copies")):
        yield f'<path class="transfer {kind}" d="M{x:g} {height:g}h34" stroke-width="2" marker-end="url(#{kind})"/>'
        yield f'<text x="{x + 44:g}" y="{height + 4:g}">{text}</text>'
        x += 112
    yield f'<circle class="dot" cx="{x + 4:g}" cy="{height:g}" r="3.2"/>'
    yield f'<text x="{x + 16:g}" y="{height + 4:g}">holds the whole sum; columns are rounds, thicker arrows carry more</text>'


def _chunks(chunks: list[int], count: int) -> str:
    if len(chunks) == count:
        return "the whole buffer"
    shown = ", ".join(map(str, sorted(chunks)[:8])) + (", ..." if len(chunks) > 8 else "")
    return f"chunk{'s' if len(chunks) > 1 else ''} {shown} of {count}"
