"""The commands about strategies: what they print, for people and for scripts, and what they refuse."""

from __future__ import annotations

import json

import pytest
from command import Command

LENET = ("--model", "lenet", "--image-size", "28")
SHIPPED = ("branch-parallel", "data-parallel", "grid", "one-weird-trick", "pipeline", "tensor-parallel")


def test_all_shipped_strategies_are_listed_with_their_first_sentence(firetrain: Command) -> None:
    shown, for_scripts = firetrain("strategy", "list"), firetrain("strategy", "list", "--json")
    assert shown.returncode == for_scripts.returncode == 0, shown.stderr + for_scripts.stderr
    listed = json.loads(for_scripts.stdout)
    assert tuple(listed) == SHIPPED
    for name, function in listed.items():
        assert (
            function == f"firetrain.strategy.{name.replace('-', '_')}:{name.replace('-', '_')}" and name in shown.stdout
        )


def test_a_check_counts_the_worlds_that_a_strategy_suits(firetrain: Command) -> None:
    names = ("one-weird-trick", "grid:images=2,outputs=2", "pipeline:stages=9")
    done = firetrain("strategy", "check", *names, *LENET, "--ranks", "6")
    assert done.returncode == 0, done.stderr
    trick, grid, pipeline = done.stdout.splitlines()
    # 6 worlds on one node, and 3 on two nodes
    assert trick == "one-weird-trick: correct on 9 worlds of 1 to 6 ranks"
    assert grid == "grid:images=2,outputs=2: correct on 2 worlds of 1 to 6 ranks (7 others do not suit it)"
    assert pipeline.startswith("pipeline:stages=9: suits no world of 1 to 6 ranks: pipeline: ")
    for_scripts = firetrain("strategy", "check", *names, *LENET, "--ranks", "6", "--json")
    found = json.loads(for_scripts.stdout)
    assert [(row["worlds"], row["refused"], row["faults"]) for row in found.values()] == [
        (9, 0, []),
        (2, 7, []),
        (0, 9, []),
    ]


def test_what_a_placement_sends_is_told_for_scripts(firetrain: Command) -> None:
    options = (*LENET, "--ranks", "4", "--nodes", "2", "--batch", "10", "--json")
    done = firetrain("strategy", "show", "one-weird-trick", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ranks"] == 4 == len(found["sent_bytes"]) and found["splits"]["fc1"]["outputs"] == 4
    assert sum(found["sent_bytes"]) == sum(found["sent_bytes_by_layer"].values()) > 0
    (convolutions,) = found["reduced_bytes"]
    assert convolutions["ranks"] == [0, 1, 2, 3] and convolutions["bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "one-weird-tric", *LENET), "unknown strategy 'one-weird-tric', did you mean one-weird-trick?"),
        (("show", "pipeline:stage=2", *LENET), "pipeline: unknown parameter 'stage', did you mean stages?"),
        (("show", "pipeline:stages=two", *LENET), "pipeline: stages is 'two', expected int"),
        (("show", "grid:images=2", *LENET, "--ranks", "3"), "images x outputs must be the number of ranks"),
        (("show", "data-parallel", "--model", "lenett"), "unknown model 'lenett', did you mean lenet?"),
        (
            ("show", "data-parallel", *LENET, "--ranks", "2", "--nodes", "3"),
            "every node needs a rank (ranks: 2, nodes: 3)",
        ),
        (("show", "./mine.yaml", *LENET), "mine.yaml"),
        (("check", "one-weird-trick:outside=true", *LENET), "one-weird-trick: unknown parameter 'outside'"),
    ],
)
def test_mistakes_are_told_in_words(arguments: tuple[str, ...], told: str, firetrain: Command) -> None:
    done = firetrain("strategy", *arguments)
    assert done.returncode == 2 and told in done.stderr and not done.stdout, done.stderr
    assert "Traceback" not in done.stderr
