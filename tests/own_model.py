"""A model of the user's own in a file beside a config, for tests."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from firetrain.config import load_config
from firetrain.models.catalogue import make_model

NET = (Path(__file__).parent / "users_nets.py").read_text()


def write_net(folder: Path) -> Path:
    """Write the file of networks and a config that names one of them; the path of the file."""
    path = folder / "nets.py"
    path.write_text(NET)
    (folder / "mine.yaml").write_text(
        "name: mine\nmodel: {name: ./nets.py:Net, arguments: {width: 6}}\ndata: {name: digits, image_size: 16}\n"
        "batch: {global_size: 64}\nlearning_rate: {base: 0.05}\ntarget: {max_epochs: 1}\n"
    )
    return path


def made(path: Path, *overrides: str) -> nn.Module:
    """The model of the config beside a file of networks."""
    return make_model(load_config(str(path.parent / "mine.yaml"), overrides).config.model, classes=10, seed=1)
