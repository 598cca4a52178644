"""Short training runs on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firetrain.cluster import SystemClock
from firetrain.config import load_config
from firetrain.records import Run
from firetrain.training.setup import set_up
from firetrain.transport.transport import Transport


def train(transport: Transport, folder: str, overrides: list[str], config: str = "squeezenet-digits") -> dict[str, Any]:
    """Train a run; returns its summary and, on rank 0, its losses."""
    loaded = load_config(config, ["log.every_steps=1", *overrides])
    run = Run(Path(transport.broadcast_object(create(folder, loaded) if transport.rank == 0 else None)))
    training = set_up(loaded.config, transport, run)
    summary = training.run()
    training.close()
    losses = [row["loss"] for row in run.metrics("step")] if transport.rank == 0 else []
    return {**summary, "losses": losses, "path": str(run.path)}


def create(folder: str, loaded: Any) -> str:
    return str(Run.create(Path(folder), loaded, SystemClock().date(), {}).path)
