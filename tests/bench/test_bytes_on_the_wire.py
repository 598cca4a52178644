"""Bytes on the wire: read from the kernel's counters, and predicted from a placement and the plan of its reduction."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import network
import pytest
from needs import need

from firetrain.bench import sent_bytes
from firetrain.cluster import World
from firetrain.strategy import Layer, find_strategy
from firetrain.topology import find_topology

# two layers of 70 and 55 parameters; 10 numbers of an image travel between them
LAYERS = (
    Layer("conv", "weights", (), 3, 10, made_elements=1, output_elements=1, weights=2, biases=1, operations=70),
    Layer("fc", "weights", ("conv",), 10, 5, weights=1, biases=1, operations=50, is_linear=True),
    Layer("loss", "whole", ("fc",), 5, 5, is_loss=True),
)
COUNTERS = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 9000      90    0    0    0     0          0         0     9000      90    0    0    0     0       0          0
  eth0: 1000      10    0    0    0     0          0         0      700       7    0    0    0     0       0          0
 veth1:   20       1    0    0    0     0          0         0       30       1    0    0    0     0       0          0
"""


def test_the_loopback_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_bytes, "_COUNTERS", tmp_path / "dev")
    assert sent_bytes.sent_bytes() == 0, "where nothing is counted"
    (tmp_path / "dev").write_text(COUNTERS)
    assert sent_bytes.sent_bytes() == 730


def test_what_is_sent_over_loopback_does_not_count() -> None:
    before = sent_bytes.sent_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as end:
        accepted, _ = server.accept()
        with accepted:
            end.sendall(bytes(200_000))
    assert sent_bytes.sent_bytes() - before < 200_000


SENDER = """
import os, socket
from firetrain.bench.sent_bytes import sent_bytes
before = sent_bytes()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    for _ in range(100):
        end.sendto(bytes(1000), ("10.77.0.2", 9))
os.write(1, f"sent {sent_bytes() - before}\\n".encode())  # at once: the other node writes to the same pipe
"""


def test_what_a_node_sends_to_another_is_counted() -> None:
    need(network.missing())
    command = [
        sys.executable, str(Path(network.__file__)), "--nodes", "2", "--rate", "none", sys.executable, "-c", SENDER,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    sent = max(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("sent "))
    # as the first node tells, whose output is shown
    assert 100_000 < sent < 110_000, "with headers"


@pytest.mark.parametrize("world", [World.even(4, 1), World.even(2, 2), World((0, 1, 0, 0))], ids=str)
@pytest.mark.parametrize(
    "reduction", ["ring", "tree", "parameter-server:servers=2", "hierarchical:inner=tree,outer=ring"]
)
def test_data_parallel_ranks_send_what_the_plan_sends(reduction: str, world: World) -> None:
    placement = find_strategy("data-parallel")(LAYERS, world)
    size_bytes = 4 * sum(layer.parameters for layer in LAYERS)
    assert sent_bytes.expected_bytes(placement, world, 8, reduction) == list(
        find_topology(reduction)(world).bytes_sent(size_bytes)
    )


def test_parameters_that_are_in_no_layer_are_summed_by_all_ranks() -> None:
    placement = find_strategy("pipeline:stages=2")(LAYERS, World.even(2, 1))
    plain, more = (
        sent_bytes.expected_bytes(placement, World.even(2, 1), 8, "ring", elsewhere=elsewhere) for elsewhere in (0, 100)
    )
    assert plain and more and [there - here for here, there in zip(plain, more, strict=True)] == [400, 400]


def test_ranks_that_share_no_weights_send_activations_only() -> None:
    placement = find_strategy("pipeline:stages=2")(LAYERS, World.even(2, 1))
    images = 8
    assert sent_bytes.expected_bytes(placement, World.even(2, 1), images, "ring") == [4 * 10 * images, 4 * 10 * images]


def test_sums_are_added_to_what_travels_between_layers() -> None:
    ranks, images = 2, 8
    placement = find_strategy("one-weird-trick")(LAYERS, World.even(ranks, 1))
    shared_bytes = 4 * LAYERS[0].parameters
    gathered_bytes = 4 * 10 * images // 2  # half of the images, and then half of their gradients
    scattered_bytes = 4 * 5 * images // 4  # of the logits
    per_rank = 2 * (gathered_bytes + scattered_bytes) + shared_bytes  # a ring of two sends every byte once
    expected = sent_bytes.expected_bytes(placement, World.even(ranks, 1), images, "ring")
    assert expected == pytest.approx([per_rank] * ranks, abs=4 * ranks)


@pytest.mark.parametrize("reduction", ["native", "auto", "horovod"])
def test_a_reduction_without_a_plan_has_no_prediction(reduction: str) -> None:
    placement = find_strategy("data-parallel")(LAYERS, World.even(2, 1))
    assert sent_bytes.expected_bytes(placement, World.even(2, 1), 8, reduction) is None
