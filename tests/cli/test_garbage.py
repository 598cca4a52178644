"""Python looks for cycles rarely in commands, and as often as usual while a model computes, which may keep tensors."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from command import Command

NET = """\
import gc
from torch import nn

def net(classes):
    print("collects after", gc.get_threshold()[0], flush=True)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, classes))
"""


@pytest.mark.parametrize(
    ("command", "usual"),
    [
        ("model show net.py:net --image-size 16", False),
        ("train squeezenet-digits", True),
        ("bench step squeezenet-digits --ranks 2 --steps 1 --repeats 2 --reductions native", True),
        ("simulate squeezenet-digits --policies sync --workers 2", True),
        ("bench server squeezenet-digits --policies async --workers 1 --pushes 10", True),
    ],
)
def test_what_trains_looks_for_cycles_as_usual_and_other_commands_rarely(
    command: str, usual: bool, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(NET)
    options = ["--set", "model.name=net.py:net", "--set", "model.stem=null", "--set", "target.max_steps=1"]
    done = firetrain(*command.split(), *(options if usual else []))
    assert done.returncode == 0, done.stderr
    threshold = gc.get_threshold()[0] if usual else 20_000
    assert f"collects after {threshold}\n" in done.stdout
