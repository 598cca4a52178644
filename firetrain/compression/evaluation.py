"""The accuracy of a compressed model, or of a run's newest checkpoint, on all test images."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import yaml

from firetrain import checkpoint
from firetrain.cluster import Identity, World
from firetrain.coding.file import read
from firetrain.config import Config
from firetrain.config.files import read_text
from firetrain.config.load import load_text
from firetrain.config.sections.cluster import ClusterSection
from firetrain.config.sections.reduction import ReductionSection
from firetrain.config.sections.strategy import StrategySection
from firetrain.data.catalogue import open_dataset
from firetrain.errors import UserError
from firetrain.launch.refusals import refuse_unreadable_data
from firetrain.parallel.catalogue import make_worker
from firetrain.records import Run
from firetrain.records.own_code import changed_code
from firetrain.training.evaluation import Score, evaluate
from firetrain.training.input import Input
from firetrain.transport.device import backend_of, first_device
from firetrain.transport.transport import Transport


def evaluate_file(path: Path, overrides: Sequence[str]) -> Score:
    """The score of a compressed model; `overrides` say where its data are, as in a config. UserError if it cannot be read."""
    _refuse_others(overrides)
    model = read(path)
    described = {
        "name": "evaluate", "model": {**model.model, "weights": str(path.absolute())}, "data": dict(model.data),
        "batch": {"global_size": 256}, "learning_rate": {"base": 0.1},
    }  # fmt: skip
    return _score(load_text(yaml.safe_dump(described), str(path), overrides).config, None)


def evaluate_run(run: Run, overrides: Sequence[str]) -> Score:
    """The score of the newest checkpoint of a run, with `overrides` of its data; UserError if it has none."""
    _refuse_others(overrides)
    state = checkpoint.newest_model(run.path)
    config = load_text(read_text(run.config_path), str(run.config_path), overrides).config
    for note in changed_code(config, run.path):
        print(note, file=sys.stderr)
    return _score(config, state)


def _refuse_others(overrides: Sequence[str]) -> None:
    if others := [text for text in overrides if not text.strip().startswith("data.")]:
        raise UserError(f"--set {', '.join(others)}: an evaluation has no settings but those of data")


def _score(config: Config, state: Mapping[str, torch.Tensor] | None) -> Score:
    """The score on one rank of this process, with the weights of `state`, or those that the config names."""
    refuse_unreadable_data(config.data)
    alone = {
        "cluster": ClusterSection.model_validate({}), "strategy": StrategySection.model_validate({}),
        "reduction": ReductionSection.model_validate({"name": "native"}),
    }  # fmt: skip
    config = config.model_copy(update=alone)
    dataset, device = open_dataset(config.data), first_device()
    transport = Transport(backend_of(device), Identity(), World.even(1, 1), device, config.cluster.timeout_s)
    worker = make_worker(config, len(dataset.classes), transport, {})
    if state:
        with torch.no_grad():
            worker.model.load_state_dict(state)
    images = Input(config.data, config.seed, dataset, transport, worker.largest_batch)
    try:
        return evaluate(worker, images, transport)
    finally:
        images.close()
        worker.close()
