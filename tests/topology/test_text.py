"""The text drawing shows every transfer of a plan exactly once."""

from __future__ import annotations

import pytest

from firetrain.cluster import World
from firetrain.topology import find_topology
from firetrain.topology.text import draw


def test_the_tree_of_eight_ranks_on_two_nodes() -> None:
    world = World.even(2, 4)
    assert (
        draw(find_topology("tree")(world), world)
        == """\
           node 0                    node 1
rank       0     1     2     3       4     5     6     7

round 1    ◀━━━━━●     ◀━━━━━●       ◀━━━━━●     ◀━━━━━●
round 2    ◀━━━━━━━━━━━●             ◀━━━━━━━━━━━●
round 3    ◀━━━━━━━━━━━━━━━━━━━━━━━━━●
round 4    ○─────▷
           ○───────────▷
           ○─────────────────────────▷
round 5                ○─────▷       ○─────▷
                                     ○───────────▷
round 6                                          ○─────▷

●━▶ adds   ○─▷ copies   ×n: n chunks in one round"""
    )


@pytest.mark.parametrize("name", ["hierarchical", "parameter-server", "ring", "tree"])
@pytest.mark.parametrize("world", [World.even(1, 1), World.even(1, 5), World.even(3, 4), World((0, 1, 0, 1))])
def test_every_round_has_as_many_arrow_heads_as_pairs_of_ranks(name: str, world: World) -> None:
    plan = find_topology(name)(world)
    pairs = sum(len({plan.transfers[i][:2] + (plan.transfers[i].adds,) for i in indices}) for indices in plan.rounds())
    drawing = draw(plan, world).rpartition("\n")[0]
    assert sum(drawing.count(head) for head in "◀▶◁▷") == pairs
    assert sum(drawing.count(tail) for tail in "●○") == pairs
