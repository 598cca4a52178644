"""The accuracy of a compressed model, or of a run's newest checkpoint, on all test images."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from firetrain import checkpoint
from firetrain.cluster import Identity, World
from firetrain.coding.file import read
from firetrain.config import Config
from firetrain.config.files import read_text
from firetrain.config.load import load_text
from firetrain.config.sections.batch import BatchSection
from firetrain.config.sections.cluster import ClusterSection
from firetrain.config.sections.data import DATASETS, MADE_BY_CODE
from firetrain.config.sections.log import LogSection
from firetrain.config.sections.model import MODELS
from firetrain.config.sections.reduction import ReductionSection
from firetrain.config.sections.strategy import StrategySection
from firetrain.data.catalogue import open_dataset
from firetrain.errors import UserError
from firetrain.launch.refusals import refuse_unreadable_data
from firetrain.models.weights import refuse_differences
from firetrain.parallel.catalogue import make_worker
from firetrain.records import COMPLETED, Run
from firetrain.records.own_code import changed_code
from firetrain.training.evaluation import Score, evaluate
from firetrain.training.input import Input
from firetrain.transport.device import backend_of, first_device
from firetrain.transport.transport import Transport

# images of a batch; the score does not depend on it
_BATCH = 256
# of the section of the data: what changes the images
_OF_IMAGES = ("name", "image_size", "validation_share", "classes")


def evaluate_file(path: Path, overrides: Sequence[str]) -> Score:
    """The score of a compressed model; `overrides` say where its data are, as in a config.

    UserError if it cannot be read. Code that a file names, a model or data that are not firetrain's, runs only if `overrides`
    name it, too: a file may come from anybody.
    """
    model = read(path)
    foreign = {
        section: str(own["name"])
        for section, own, known in (("model", model.model, MODELS), ("data", model.data, DATASETS))
        if own["name"] not in known
    }
    _refuse_others(overrides, [f"{section}.name" for section in foreign])
    if model.data["name"] in MADE_BY_CODE and _sets("data.root", overrides) and not _sets("data.name", overrides):
        raise UserError(
            f"{path}: its data, {model.data['name']}, are not read from a folder: leave out --data and data.root"
        )
    for section, name in foreign.items():
        if not _sets(f"{section}.name", overrides):
            raise UserError(
                f"{path} names code, {name}, which is not run unless you name it: --set {section}.name={name}"
            )
    data = str(model.data["name"])
    if not (
        "data" in foreign or data in MADE_BY_CODE or any(_sets(key, overrides) for key in ("data.root", "data.name"))
    ):
        raise UserError(f"{path}: its data, {data}, are read from files: give their folder, --data FOLDER")
    described = {
        "name": "evaluate", "model": {**model.model, "weights": str(path.absolute())}, "data": dict(model.data),
        "batch": {"global_size": _BATCH}, "learning_rate": {"base": 0.1},
    }  # fmt: skip
    if model.precision != "float32":
        described["precision"] = model.precision
    # code that lies beside the file has come with it
    config = load_text(yaml.safe_dump(described), str(path), overrides, trusted=False).config
    _tell_changes(config, model.data)
    return _score(config, None, model.classes)


def evaluate_run(run: Run, overrides: Sequence[str]) -> Score:
    """The score of the newest checkpoint of a run, with `overrides` of its data; UserError if it has none."""
    _refuse_others(overrides, [])
    state = checkpoint.newest_model(run.path)
    config = load_text(read_text(run.config_path), str(run.config_path), overrides).config
    if run.state != COMPLETED:
        print(f"note: {run.path} is not complete: its newest checkpoint is evaluated", file=sys.stderr)
    _tell_changes(config, run.config().data.model_dump())
    for note in changed_code(config, run.path, None):
        print(note, file=sys.stderr)
    return _score(config, state, source=f"the checkpoint of {run.path}")


def _tell_changes(config: Config, trained: Mapping[str, Any]) -> None:
    """Tell which images are others than those that the model was trained for."""
    for key in _OF_IMAGES:
        before, now = trained.get(key), getattr(config.data, key)
        if before is not None and now != before:
            print(f"note: the model was trained with data.{key} {before}, and is evaluated with {now}", file=sys.stderr)


def _sets(key: str, overrides: Sequence[str]) -> bool:
    return any(text.partition("=")[0].strip() == key for text in overrides)


def _refuse_others(overrides: Sequence[str], also: Sequence[str]) -> None:
    keys = [text.partition("=")[0].strip() for text in overrides]
    if others := [key for key in keys if not key.startswith("data.") and key not in also]:
        raise UserError(f"--set {', '.join(others)}: an evaluation has no settings but those of data")


def _score(
    config: Config, state: Mapping[str, torch.Tensor] | None, classes: int | None = None, source: str = ""
) -> Score:
    """The score on one rank of this process, with the weights of `state`, from `source`, or those that the config names.

    UserError if the data do not have as many `classes`, or if the weights are not those of the model.
    """
    refuse_unreadable_data(config.data)
    alone = {
        "cluster": ClusterSection.model_validate({}), "strategy": StrategySection.model_validate({}),
        "reduction": ReductionSection.model_validate({"name": "native"}), "log": LogSection.model_validate({}),
        "batch": BatchSection.model_validate({"global_size": min(_BATCH, config.batch.global_size)}),
    }  # fmt: skip
    if state:  # which has the weights, whatever those were that the run began with
        alone["model"] = config.model.model_copy(update={"weights": None, "keep": None})
    config = config.model_copy(update=alone)
    dataset, device = open_dataset(config.data), first_device()
    if classes is not None and len(dataset.classes) != classes:
        raise UserError(f"the data have {len(dataset.classes)} classes, and the model was trained for {classes}")
    transport = Transport(backend_of(device), Identity(), World.even(1, 1), device, config.cluster.timeout_s)
    worker = make_worker(config, len(dataset.classes), transport, {})
    if state:
        refuse_differences(worker.model.state_dict(), state, source)
        worker.model.load_state_dict(state)
    images = Input(config.data, config.seed, dataset, transport, worker.largest_batch)
    try:
        return evaluate(worker, images, transport)
    finally:
        images.close()
        worker.close()
