"""A timeline shows every pass, exchange and sum of a simulated step once, in its place."""

from __future__ import annotations

from collections import defaultdict
from xml.etree import ElementTree

import pytest
from problems import chain, inception
from test_search import found
from test_search_text import searched

from firetrain.search.problem import Problem
from firetrain.search.step_simulator import StepSimulator
from firetrain.search.timeline import Timeline, as_text, draw, grid_timeline, pipeline_timeline


def test_a_timeline_ends_with_the_step_and_has_all_of_its_work() -> None:
    for problem in [*map(chain, range(40)), *map(inception, range(20))]:
        choice = tuple(allowed[seed % len(allowed)] for seed, allowed in enumerate(problem.allowed))
        found = grid_timeline(problem, choice)
        assert found.end_ns == StepSimulator(problem).step_ns(choice)
        taken: dict[str, int] = defaultdict(int)
        for span in found.spans:
            taken[span.lane] += span.end_ns - span.begin_ns
        assert taken["compute"] == computed_ns(problem, choice)


def computed_ns(problem: Problem, choice: tuple[int, ...]) -> int:
    """The forward and backward passes of all layers, and their updates."""
    tables = problem.forward_ns + problem.backward_ns + problem.update_ns
    return int(sum(tables[layer, choice[variable]] for layer, variable in enumerate(problem.variables)))


def test_spans_of_a_lane_do_not_overlap() -> None:
    for problem in map(chain, range(40)):
        apart(grid_timeline(problem, tuple(allowed[-1] for allowed in problem.allowed)))
    apart(searched("alexnet", 4, bytes_per_s=1e7).timeline())


def apart(found: Timeline) -> None:
    for lane in found.lanes:
        spans = sorted((span.begin_ns, span.end_ns) for span in found.spans if span.lane == lane)
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False)), lane


def test_the_sums_of_a_step_are_those_of_its_buckets() -> None:
    one = searched("alexnet", 4)
    data_parallel = one.choice("data-parallel")
    names = [span.name for span in grid_timeline(one.found.problem, data_parallel).spans if span.lane == "sums"]
    assert names[0].startswith("gradients of classifier.6, ") and names[-1].endswith("among 4 ranks")
    total = sum(float(name.split(", ")[1].split()[0]) for name in names)
    assert total == pytest.approx(4 * 61.1, rel=0.01)


def test_a_timeline_as_text_has_a_letter_for_each_part_of_the_time() -> None:
    one = searched("alexnet", 4)
    compute, *_, scale, _, _ = as_text(grid_timeline(one.found.problem, one.found.choice))
    assert compute.startswith("compute   ff") and "b" in compute and compute.index("b") > compute.rindex("f")
    assert scale.endswith(f" {one.found.step_ns / 1e6:.2f} ms") and len(scale) == len("exchange  ") + 72


def test_what_a_profile_does_not_explain_is_no_update() -> None:
    _, one = found("lenet", 8, residual_s=0.25)
    timeline = grid_timeline(one.problem, one.choice)
    taken = {span.letter: span.end_ns - span.begin_ns for span in timeline.spans}
    assert taken["?"] == 250_000_000 and taken.get("u", 0) < 1_000_000
    assert "?: what the profile does not explain" in timeline.words[0] and timeline.end_ns == one.step_ns


def test_a_pipeline_has_a_lane_for_each_rank() -> None:
    pipeline = searched("alexnet", 4).found.pipeline
    assert pipeline is not None
    found = pipeline_timeline(pipeline.replica)
    assert found.lanes == [f"rank {rank}" for rank in range(len(found.lanes))] and len(found.lanes) > 1
    apart(found)
    assert as_text(found)[0].startswith("rank 0  0")


def test_a_drawn_timeline_has_a_box_for_each_span() -> None:
    found = searched("alexnet", 4).timeline()
    root = ElementTree.fromstring(draw(found, "a <name>"))
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == len(found.spans)
