"""The drawing of a placement is a well-formed file with a cell for each layer and rank, and an arrow for each message."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import Command

from firetrain.cluster import World
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.strategy import find_strategy
from firetrain.strategy.svg import draw
from firetrain.strategy.traffic import traffic

SVG = "{http://www.w3.org/2000/svg}"
IMAGES = 6


@pytest.mark.parametrize(
    "name", ["data-parallel", "one-weird-trick", "tensor-parallel:split=inputs", "pipeline:stages=2,micro_batches=2"]
)
def test_every_share_and_every_message_is_drawn(name: str) -> None:
    layers = trace(model_by_name("lenet", classes=10).train(), 28).layers
    placement = find_strategy(name)(layers, World.even(1, 4 if name != "pipeline:stages=2,micro_batches=2" else 2))
    tree = ElementTree.fromstring(draw(placement, IMAGES))
    cells = [group for group in tree.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert len(cells) == len(layers) * placement.ranks
    shares = [cell for cell in cells if len(cell.findall(f"{SVG}rect")) == 2]
    assert len(shares) == sum(bool(region.size) for layer in layers for region in placement.makes(layer, IMAGES))
    arrows = [path for path in tree.iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    messages = list(placement.messages(IMAGES))
    assert len(arrows) == len(messages)
    received = [int((cell.findtext(f"{SVG}title") or "").split()[-2].replace(",", "")) for cell in cells]
    assert 2 * sum(received) == sum(traffic(placement, IMAGES).sent) or placement.micro_batches > 1
    printed = [text for text in tree.iter(f"{SVG}text") if text.get("class") == "small"]
    assert len(printed) == sum(size_bytes > 0 for size_bytes in received)
    if placement.micro_batches == 1:
        told = [path.findtext(f"{SVG}title") or "" for path in arrows]
        sent = sum(int(text.partition("sends ")[2].partition(" bytes")[0].replace(",", "")) for text in told)
        assert 2 * sent == sum(traffic(placement, IMAGES).sent), "forward and backward"


def test_the_command_writes_it(firetrain: Command, tmp_path: Path) -> None:
    options = ("--model", "lenet", "--image-size", "28", "--ranks", "2")
    done = firetrain("strategy", "show", "one-weird-trick", *options, "--svg", "placement.svg")
    assert done.returncode == 0 and "written to placement.svg" in done.stdout
    assert "one-weird-trick, 2 ranks" in (tmp_path / "placement.svg").read_text()
    done = firetrain("strategy", "show", "one-weird-trick", *options, "--svg", "no/folder/placement.svg")
    assert done.returncode == 73 and "cannot write no/folder/placement.svg" in done.stderr
