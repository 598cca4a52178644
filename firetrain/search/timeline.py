"""The timeline of one step: what is computed, exchanged and summed from when to when, as the simulators see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

from firetrain.predict.placement_simulator import Simulated
from firetrain.records.parts import COMPUTE, EXCHANGE, EXPOSED, UNEXPLAINED, UPDATE
from firetrain.search.problem import Choice, Problem
from firetrain.search.step_simulator import Clocks, StepSimulator
from firetrain.svg import render_svg

_FORWARD, _BACKWARD = "#8fb3e0", COMPUTE.colour
_COLUMNS = 72
_LEFT, _TOP, _ROW, _WIDE, _MARGIN = 110.0, 70.0, 34.0, 960.0, 24.0


class Span(NamedTuple):
    """What a lane does from `begin_ns` to `end_ns`; spans of one lane do not overlap. `letter`: for the timeline as text."""

    lane: str
    letter: str
    colour: str
    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Timeline:
    """The spans of a step, and what they mean in words."""

    spans: Sequence[Span]
    words: Sequence[str]

    @property
    def lanes(self) -> list[str]:
        """The lanes from top to bottom."""
        return list(dict.fromkeys(span.lane for span in self.spans))

    @property
    def end_ns(self) -> int:
        """The end of the last span."""
        return max(span.end_ns for span in self.spans)


def grid_timeline(problem: Problem, choice: Choice) -> Timeline:
    """A step with the grids of a choice, which is the same on all ranks.

    A sum begins when the last gradient is in its bucket. What sums take from compute is left free in its lane.
    """
    simulator, found = StepSimulator(problem), list(_forward(problem, choice))
    began_ns = max((span.end_ns for span in found), default=0)
    sums, state, layers = cycle("sS"), Clocks(), list[str]()

    def add(lane: str, letter: str, colour: str, name: str, begin_ns: int, ns: int) -> None:
        found.append(Span(lane, letter, colour, name, began_ns + begin_ns, began_ns + begin_ns + ns))

    for position in range(simulator.last, -1, -1):
        (after, event), name = simulator.after(choice, position, state), problem.names[position // 2]
        add("exchange", "x", EXCHANGE.colour, f"gradient of the output of {name}", state.compute_ns, event.exchange_ns)
        add("compute", "b", _BACKWARD, f"{name} backward", state.compute_ns, event.backward_ns)
        if event.sum_ns:
            add("sums", next(sums), EXPOSED.colour, _bucket(layers, state), state.sums_ns, event.sum_ns)
            layers = []
        layers += [name] if event.adds else []
        state = after
    last_ns = simulator.rest_at_end(state).after_sums_ns
    add("sums", next(sums), EXPOSED.colour, _bucket(layers, state), state.sums_ns, last_ns)
    update_ns = sum(int(problem.update_ns[layer, choice[variable]]) for layer, variable in enumerate(problem.variables))
    end_ns, unexplained_ns = simulator.end_ns(state), problem.unexplained_ns
    add("compute", "u", UPDATE.colour, "update", end_ns, update_ns - unexplained_ns)
    add("compute", "?", UNEXPLAINED.colour, UNEXPLAINED.heading, end_ns + update_ns - unexplained_ns, unexplained_ns)
    words = (
        "f, b: forward and backward passes, u: update, x: exchanges of activations, s, S: buckets of gradients in turn"
        + (", ?: what the profile does not explain" if unexplained_ns else "")
    )
    return Timeline([span for span in found if span.end_ns > span.begin_ns], (words, "all ranks do the same"))


def _forward(problem: Problem, choice: Choice) -> Iterator[Span]:
    """The forward passes and the exchanges of all layers, one after another."""
    now_ns = 0
    for layer, name in enumerate(problem.names):
        grid = choice[problem.variables[layer]]
        end_ns = now_ns + int(problem.forward_ns[layer, grid])
        yield Span("compute", "f", _FORWARD, f"{name} forward", now_ns, end_ns)
        edges = problem.edges_from[layer]
        now_ns = end_ns + sum(int(edge.ns[grid, choice[problem.variables[edge.layer]]]) for edge in edges)
        yield Span("exchange", "x", EXCHANGE.colour, f"output of {name}", end_ns, now_ns)


def _bucket(layers: Sequence[str], state: Clocks) -> str:
    """The gradients of a bucket, which is filled from the last layer to the first."""
    names = " to ".join(dict.fromkeys((layers[-1], layers[0]))) if layers else ""
    return f"gradients of {names}, {state.bucket_bytes / 1e6:.3g} MB, among {state.ranks} ranks"


def pipeline_timeline(step: Simulated) -> Timeline:
    """The passes of the micro-batches through the stages of one replica, without sums of gradients and the update."""
    spans = [
        Span(
            f"rank {one.rank}",
            str(one.micro_batch % 10) if one.direction == "forward" else chr(ord("a") + one.micro_batch % 10),
            _FORWARD if one.direction == "forward" else _BACKWARD,
            f"{one.direction} pass of micro-batch {one.micro_batch}",
            round(1e9 * one.begin_s),
            round(1e9 * one.end_s),
        )
        for one in step.passes
    ]
    words = "0, 1, ...: forward passes of micro-batches 0, 1, ...; a, b, ...: their backward passes"
    return Timeline(spans, (words, "without sums of gradients and the update"))


def as_text(timeline: Timeline) -> list[str]:
    """A line for each lane; each letter stands for what takes most of one of 72 equal intervals."""
    lanes, wide = timeline.lanes, max(map(len, timeline.lanes))
    lines = [
        f"{lane:<{wide}}  {''.join(_letter(timeline, lane, column) for column in range(_COLUMNS)).rstrip()}"
        for lane in lanes
    ]
    return [*lines, f"{'':<{wide}}  0{f'{timeline.end_ns / 1e6:.2f} ms':>{_COLUMNS - 1}}", *timeline.words]


def _letter(timeline: Timeline, lane: str, column: int) -> str:
    """What a lane does most in a column; a space if it is mostly idle."""
    begin_ns, end_ns = (timeline.end_ns * number / _COLUMNS for number in (column, column + 1))
    taken = Counter[str]()
    for span in timeline.spans:
        if span.lane == lane:
            taken[span.letter] += max(0, round(min(end_ns, span.end_ns) - max(begin_ns, span.begin_ns)))
    taken[" "] = round(end_ns - begin_ns) - taken.total()
    return taken.most_common(1)[0][0]


def draw(timeline: Timeline, name: str) -> str:
    """The timeline as the text of an SVG file. A browser tells what a span is when the pointer is on it."""
    lanes, words, scale = timeline.lanes, timeline.words, _WIDE / timeline.end_ns
    rows = {lane: _TOP + _ROW * number for number, lane in enumerate(lanes)}
    shapes: list[dict[str, Any]] = [
        {"x": _LEFT + scale * span.begin_ns, "y": rows[span.lane], "wide": scale * (span.end_ns - span.begin_ns),
         "colour": span.colour,
         "title": f"{span.name}: {(span.end_ns - span.begin_ns) / 1e6:.3f} ms, from {span.begin_ns / 1e6:.3f}"}
        for span in timeline.spans
    ]  # fmt: skip
    bottom = _TOP + _ROW * len(lanes)
    return render_svg(
        "firetrain.search", "timeline.svg.j2", name=name, numbers=f"{timeline.end_ns / 1e6:.2f} ms", rows=rows, shapes=shapes,
        high=_ROW - 10, left=_LEFT, wide=_WIDE, bottom=bottom, margin=_MARGIN, width=_LEFT + _WIDE + _MARGIN,
        height=bottom + 20 * len(words) + 2 * _MARGIN, words=words,
    )  # fmt: skip
