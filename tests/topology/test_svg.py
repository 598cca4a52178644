"""The SVG drawing is a well-formed file that shows every transfer."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import Command

from firetrain.cluster import World
from firetrain.topology import Plan, Transfer, find_topology
from firetrain.topology.svg import draw

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", ["hierarchical", "double-tree", "parameter-server", "direct", "tree"])
@pytest.mark.parametrize("world", [World.even(1, 1), World.even(2, 4), World((0, 1, 0, 1, 1))], ids=str)
def test_every_round_has_an_arrow_for_each_pair_of_ranks(name: str, world: World) -> None:
    plan = find_topology(name)(world)
    tree = ElementTree.fromstring(draw(plan, world))
    expected = {
        (number, *plan.transfers[index][:2], plan.transfers[index].adds)
        for number, indices in enumerate(plan.rounds())
        for index in indices
    }
    arrows = [path for path in tree.iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    assert len(arrows) == len(expected)
    kinds = [path.attrib["class"].split()[1] for path in arrows]
    assert kinds.count("adds") == sum(adds for *_, adds in expected)
    assert len(list(tree.iter(f"{SVG}circle"))) == world.size + 1
    text = " ".join(element.text or "" for element in tree.iter(f"{SVG}text"))
    assert all(f"node {node}" in text for node in range(len(world.nodes)))


def test_a_name_is_only_text() -> None:
    plan = Plan("<script>&", 2, 1, (Transfer(1, 0, 0, True), Transfer(0, 1, 0, False)))
    tree = ElementTree.fromstring(draw(plan, World.even(1, 2)))
    assert (tree.findtext(f"{SVG}title") or "").startswith("<script>&, 2 ranks")


def test_the_command_writes_it(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain(
        "topology", "show", "hierarchical:outer=double-tree", "--ranks", "8", "--nodes", "4", "--svg", "plan.svg"
    )
    assert done.returncode == 0 and "written to plan.svg" in done.stdout
    assert "hierarchical:outer=double-tree, 8 ranks" in (tmp_path / "plan.svg").read_text()
    done = firetrain("topology", "show", "ring", "--svg", "no/folder/plan.svg")
    assert done.returncode == 73 and "cannot write no/folder/plan.svg" in done.stderr
