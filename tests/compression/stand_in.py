"""Runs that were hardly trained, and what stands for the trainings of a compression."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from firetrain import checkpoint
from firetrain.cluster import SystemClock
from firetrain.coding.file import read
from firetrain.config import Loaded, load_config
from firetrain.config.compression import CompressionRecipe
from firetrain.models.catalogue import make_model
from firetrain.records import Run

OVERRIDES = ("model.name=lenet", "data.image_size=28", "cluster.ranks_per_node=1")


def begun(folder: Path, overrides: Sequence[str] = OVERRIDES) -> Run:
    """A run with a checkpoint of weights as they are drawn at the start."""
    loaded = load_config("squeezenet-digits", overrides)
    run = Run.prepare(folder, loaded, SystemClock().date(), {"state": "completed", "ranks": 1})
    model = make_model(loaded.config.model, 10, loaded.config.seed)
    checkpoint.save(run.path / "checkpoints", 1, {"model": model.state_dict()}, keep=1)
    return run


class Trainer:
    """Stands for training: it adds a constant to every weight that may change, and counts its calls."""

    def __init__(self, added: float = 1e-3) -> None:
        self._added = np.float32(added)
        self.seen: list[tuple[str, dict[str, float]]] = []
        self.configs: list[Loaded] = []

    def __call__(self, loaded: Loaded, folder: Path) -> Run:
        start = read(Path(loaded.config.model.weights or "")).state()
        self.configs.append(loaded)
        self.seen.append((folder.name, {name: float((array != 0).mean()) for name, array in start.items()}))
        path = folder / "run"
        if not path.exists():
            run = Run.prepare(path, loaded, SystemClock().date(), {"state": "completed", "ranks": 1})
            moved = {
                name: torch.from_numpy(np.where(array == 0, array, array + self._added))
                for name, array in start.items()
            }
            checkpoint.save(run.path / "checkpoints", 1, {"model": moved}, keep=1)
        return Run(path)


def recipe(**changed: object) -> CompressionRecipe:
    layers = {"fc1": {"density": 0.08}, "conv*": {"density": 0.64}}
    return CompressionRecipe.model_validate({"name": "mine", "layers": layers, "rounds": 3, **changed})
