"""Runs as the training loop records them, with numbers that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from firetrain.config import load_config
from firetrain.records import Run
from firetrain.records.run import VERSION

IMAGES, TEST_IMAGES = 1437, 360
_MACHINE = {
    "firetrain": "0.1.0", "commit": "0123abc", "python": "3.11.7", "packages": {"torch": "2.13.0"}, "processor": "x86"
}  # fmt: skip


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
    times = _Times(epoch_s, evaluation_s, startup_s, queue_s)
    lines = [line for epoch, share in enumerate(top1, 1) for line in _epoch_lines(config, epoch, share, logged, times)]
    described = {
        "version": VERSION, "name": path.name, "created": f"2026-01-02T03:04:05.{len(lines):06}+00:00", "config": config,
        "ranks": _ranks(config), "state": state, "machine": _MACHINE, **facts,
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(described))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if state == "completed":
        (path / "summary.json").write_text(json.dumps(_summary(config, top1, lines, times)))
    return Run(path)


class _Times(NamedTuple):
    epoch_s: float
    evaluation_s: float
    startup_s: float
    queue_s: float
    opening_s: float = 2.0


def _epoch_lines(config: dict[str, Any], epoch: int, top1: float, logged: int, times: _Times) -> list[dict[str, Any]]:
    """`logged` lines about the steps of an epoch, and one about its evaluation."""
    batch, per_epoch = config["batch"]["global_size"], _steps(config)
    step_s = times.epoch_s / per_epoch
    began_s = times.opening_s + (epoch - 1) * (times.epoch_s + times.evaluation_s)
    lines: list[dict[str, Any]] = []
    for number in range(1, logged + 1):
        step = (epoch - 1) * per_epoch + -(-per_epoch * number // logged)
        lines.append(
            {"kind": "step", "step": step, "epoch": epoch - 1, "loss": 2.3 * (1 - top1) + 1 / step, "learning_rate": 0.1 / epoch,
             "step_s": step_s, "images_per_s": batch / step_s, "elapsed_s": began_s + times.epoch_s * number / logged,
             "data_s": step_s / 4, "compute_s": step_s / 2, "exposed_communication_s": step_s / 4}
        )  # fmt: skip
    lines.append(
        {"kind": "evaluation", "step": epoch * per_epoch, "epoch": epoch, "top1": top1, "top5": 1.0, "loss": 1 - top1,
         "images": TEST_IMAGES, "evaluation_s": times.evaluation_s, "train_s": epoch * times.epoch_s,
         "elapsed_s": began_s + times.epoch_s + times.evaluation_s, "images_seen": epoch * IMAGES,
         "total_queue_s": times.queue_s, "total_startup_s": times.startup_s, "total_opening_s": times.opening_s,
         "total_evaluation_s": epoch * times.evaluation_s, "total_checkpoint_s": 0.0, "total_restart_s": 0.0,
         "total_lost_s": 0.0}
    )  # fmt: skip
    return lines


def _summary(
    config: dict[str, Any], top1: Sequence[float], lines: Sequence[dict[str, Any]], times: _Times
) -> dict[str, Any]:
    target, epochs = config["target"]["top1"], len(top1)
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    hit = next((line for line in evaluations if target is not None and line["top1"] >= target), None)
    train_s = epochs * times.epoch_s
    return {
        "state": "completed", "reached": hit is not None, "top1": top1[-1], "top5": 1.0, "epochs": epochs,
        "steps": epochs * _steps(config), "images": epochs * IMAGES, "world_size": _ranks(config),
        "nodes": config["cluster"]["nodes"], "time_to_accuracy_s": hit and hit["elapsed_s"],
        "epochs_to_target": hit and hit["epoch"],
        "elapsed_s": times.opening_s + epochs * (times.epoch_s + times.evaluation_s), "train_s": train_s, "attempts": 1,
        "queue_s": times.queue_s, "startup_s": times.startup_s, "opening_s": times.opening_s,
        "evaluation_s": epochs * times.evaluation_s, "checkpoint_s": 0.0, "restart_s": 0.0, "lost_s": 0.0,
        "data_s": train_s / 4, "compute_s": train_s / 2, "exposed_communication_s": train_s / 4,
        "images_per_s": epochs * IMAGES / train_s, "bad_images": 0, "reduction": {"name": config["reduction"]["name"]},
    }  # fmt: skip


def _ranks(config: dict[str, Any]) -> int:
    return int(config["cluster"]["nodes"] * config["cluster"]["ranks_per_node"])


def _steps(config: dict[str, Any]) -> int:
    """The steps of an epoch."""
    return int(-(-IMAGES // config["batch"]["global_size"]))
