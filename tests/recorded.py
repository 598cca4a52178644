"""Runs as the training loop records them, with numbers that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from firetrain.config import load_config
from firetrain.records import Run
from firetrain.records.run import VERSION

IMAGES, TEST_IMAGES = 1437, 360


@cache
def _config(name: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    return load_config(name, overrides).config.model_dump(mode="json")


def record(
    folder: Path,
    name: str = "quickstart",
    *overrides: str,
    top1: Sequence[float] = (0.5, 0.9, 0.98),
    seed: int = 1,
    epoch_s: float = 10.0,
    evaluation_s: float = 1.0,
    startup_s: float = 5.0,
    queue_s: float = 0.0,
    logged: int = 4,
    directory: str = "",
    state: str = "completed",
    **facts: Any,
) -> Run:
    """Record a run with one epoch per accuracy in `top1`; an epoch takes `epoch_s`: half compute, a quarter communication, a
    quarter data.

    Opening the data takes 2 s before the first step. The run has four ranks unless the config says otherwise, and continues
    after its target.
    """
    config = {**_config(name, overrides), "seed": seed}
    path = folder / (directory or f"{name}-{len(list(folder.glob('*'))) if folder.exists() else 0:04}-{seed}")
    path.mkdir(parents=True)
    ranks = config["cluster"]["nodes"] * config["cluster"]["ranks_per_node"]
    batch, target = config["batch"]["global_size"], config["target"]["top1"]
    per_epoch = -(-IMAGES // batch)
    lines: list[dict[str, Any]] = []
    elapsed_s, hit = 2.0, None
    for epoch, share in enumerate(top1, 1):
        for number in range(1, logged + 1):
            step_s, step = epoch_s / per_epoch, (epoch - 1) * per_epoch + -(-per_epoch * number // logged)
            lines.append(
                {"kind": "step", "step": step, "epoch": epoch - 1, "loss": 2.3 * (1 - share) + 1 / step,
                 "learning_rate": 0.1 / epoch,
                 "step_s": step_s, "images_per_s": batch / step_s, "elapsed_s": elapsed_s + epoch_s * number / logged,
                 "data_s": step_s / 4, "compute_s": step_s / 2, "exposed_communication_s": step_s / 4}
            )  # fmt: skip
        elapsed_s += epoch_s + evaluation_s
        lines.append(
            {"kind": "evaluation", "step": epoch * per_epoch, "epoch": epoch, "top1": share, "top5": 1.0, "loss": 1 - share,
             "images": TEST_IMAGES, "evaluation_s": evaluation_s, "train_s": epoch * epoch_s, "elapsed_s": elapsed_s,
             "images_seen": epoch * IMAGES, "total_queue_s": queue_s, "total_startup_s": startup_s, "total_opening_s": 2.0,
             "total_evaluation_s": epoch * evaluation_s, "total_checkpoint_s": 0.0, "total_restart_s": 0.0, "total_lost_s": 0.0}
        )  # fmt: skip
        if hit is None and target is not None and share >= target:
            hit = lines[-1]
    train_s, steps = len(top1) * epoch_s, len(top1) * per_epoch
    summary = {
        "state": "completed", "reached": hit is not None, "top1": top1[-1], "top5": 1.0, "epochs": len(top1), "steps": steps,
        "images": len(top1) * IMAGES, "world_size": ranks, "nodes": config["cluster"]["nodes"],
        "time_to_accuracy_s": hit and hit["elapsed_s"], "epochs_to_target": hit and hit["epoch"], "elapsed_s": elapsed_s,
        "train_s": train_s, "attempts": 1, "queue_s": queue_s, "startup_s": startup_s, "opening_s": 2.0,
        "evaluation_s": len(top1) * evaluation_s, "checkpoint_s": 0.0, "restart_s": 0.0, "lost_s": 0.0, "data_s": train_s / 4,
        "compute_s": train_s / 2, "exposed_communication_s": train_s / 4, "images_per_s": len(top1) * IMAGES / train_s,
        "bad_images": 0, "reduction": {"name": config["reduction"]["name"]},
    }  # fmt: skip
    machine = {
        "firetrain": "0.1.0",
        "commit": "0123abc",
        "python": "3.11.7",
        "packages": {"torch": "2.13.0"},
        "processor": "x86",
    }
    described = {
        "version": VERSION,
        "name": path.name,
        "created": f"2026-01-02T03:04:05.{len(lines):06}+00:00",
        "config": config,
    }
    (path / "run.json").write_text(
        json.dumps({**described, "ranks": ranks, "state": state, "machine": machine, **facts})
    )
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if state == "completed":
        (path / "summary.json").write_text(json.dumps(summary))
    return Run(path)
