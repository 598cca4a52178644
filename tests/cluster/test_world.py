"""Worlds: ranks and their nodes."""

from __future__ import annotations

import pytest

from firetrain.cluster import World


def test_labels_become_nodes_in_order_of_their_first_rank() -> None:
    assert World.from_labels(["b", "a", "b", "c"]).nodes == ((0, 2), (1,), (3,))


def test_even_worlds_are_filled_node_after_node() -> None:
    assert World.even(2, 3).nodes == ((0, 1, 2), (3, 4, 5))


@pytest.mark.parametrize("node_of", [(), (1,), (0, 2)])
def test_node_numbers_have_no_gaps(node_of: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="numbered from 0"):
        World(node_of)


def test_a_world_says_how_it_is_laid_out() -> None:
    assert str(World.even(1, 1)) == "1 rank on 1 node"
    assert str(World((0, 0, 1))) == "3 ranks on 2 nodes, 1 to 2 each"
