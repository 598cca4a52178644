"""The accuracy of a file or of a run's checkpoint is that which plain torch computes on all test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command

from firetrain import checkpoint
from firetrain.cluster import SystemClock
from firetrain.coding.file import CompressedModel, write
from firetrain.coding.tensor import raw, shared
from firetrain.compression.evaluation import evaluate_file, evaluate_run
from firetrain.config import load_config
from firetrain.data.batch import Normalised
from firetrain.data.catalogue import open_dataset
from firetrain.data.loader import Loader
from firetrain.errors import UserError
from firetrain.models.catalogue import make_model
from firetrain.records import Run

OVERRIDES = ("model.name=lenet", "data.image_size=28", "cluster.ranks_per_node=2", "reduction.name=ring")


def model() -> torch.nn.Module:
    """LeNet with weights that were trained a little, so that classes differ."""
    config = load_config("squeezenet-digits", OVERRIDES).config
    made = make_model(config.model, 10, seed=3)
    data = open_dataset(config.data).train
    order = np.arange(512)
    batch = next(Loader(data, 28, len(order)).batches([order], 0))
    images, labels = batch.on_device(torch.device("cpu"))
    logits, optimizer = Normalised(made, images.device), torch.optim.Adam(made.parameters(), 1e-3)
    for _ in range(8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits(images), labels).backward()
        optimizer.step()
    return made


def by_torch(made: torch.nn.Module) -> tuple[float, float, float]:
    """(top-1, top-5, loss) on all test images, in one batch."""
    data = open_dataset(load_config("squeezenet-digits", OVERRIDES).config.data).test
    batch = next(Loader(data, 28, len(data.labels)).batches([np.arange(len(data.labels))], 0))
    images, labels = batch.on_device(torch.device("cpu"))
    with torch.no_grad():
        logits = Normalised(made.eval(), images.device)(images)
    hits = logits.topk(5, dim=1).indices == labels[:, None]
    loss = torch.nn.functional.cross_entropy(logits.double(), labels)
    return float(hits[:, 0].double().mean()), float(hits.any(1).double().mean()), float(loss)


def test_a_file_is_as_good_as_its_weights(tmp_path: Path) -> None:
    made = model()
    tensors = [
        shared(name, value.numpy(), 4, 4) if value.dim() > 1 else raw(name, value.numpy())
        for name, value in made.state_dict().items()
    ]
    packed = CompressedModel({"name": "lenet", "stem": "small"}, {"name": "digits", "image_size": 28}, 10, tensors)
    write(packed, tmp_path / "m.fire")
    made.load_state_dict({name: torch.from_numpy(array) for name, array in packed.state().items()})
    score = evaluate_file(tmp_path / "m.fire", [])
    assert (score.top1, score.top5) == by_torch(made)[:2] and score.images == 360
    assert score.loss == pytest.approx(by_torch(made)[2], rel=1e-5) and 0.3 < score.top1 < 1.0


def test_a_checkpoint_is_as_good_as_its_weights_whatever_its_run_was_trained_on(tmp_path: Path) -> None:
    made, loaded = model(), load_config("squeezenet-digits", OVERRIDES)
    run = Run.prepare(tmp_path / "run", loaded, SystemClock().date(), {"state": "completed", "ranks": 2})
    with pytest.raises(UserError, match="has no checkpoint: checkpoint.every_epochs and"):
        evaluate_run(run, [])
    checkpoint.save(run.path / "checkpoints", 7, {"model": made.state_dict()}, keep=1)
    score = evaluate_run(run, [])
    assert (score.top1, score.top5) == by_torch(made)[:2]
    assert score.loss == pytest.approx(by_torch(made)[2], rel=1e-5)


def test_data_that_are_not_there_are_told_before_anything_is_computed(tmp_path: Path) -> None:
    tensors = [raw(name, value.numpy()) for name, value in model().state_dict().items()]
    packed = CompressedModel({"name": "lenet", "stem": "small"}, {"name": "idx", "image_size": 28}, 10, tensors)
    write(packed, tmp_path / "m.fire")
    with pytest.raises(UserError, match="nowhere"):
        evaluate_file(tmp_path / "m.fire", [f"data.root={tmp_path / 'nowhere'}"])


def test_the_folder_of_the_images_is_an_option_of_its_own(tmp_path: Path, firetrain: Command) -> None:
    file = packed(model(), tmp_path / "m.fire", data={"name": "idx", "image_size": 28})
    refused = firetrain("evaluate", str(file), "--data", str(tmp_path / "no where: 1"))
    assert refused.returncode == 2 and f"{tmp_path}/no where: 1" in refused.stderr
    without = firetrain("evaluate", str(file))
    assert without.returncode == 2 and "give their folder, --data FOLDER" in without.stderr
    of_code = firetrain("evaluate", str(packed(model(), tmp_path / "n.fire")), "--data", str(tmp_path))
    assert (
        of_code.returncode == 2 and "its data, digits, are not read from a folder: leave out --data" in of_code.stderr
    )


def test_a_name_that_is_neither_a_file_nor_a_run_is_told(firetrain: Command) -> None:
    refused = firetrain("evaluate", "quickstart")
    assert (
        refused.returncode == 2 and "quickstart: there is no compressed file and no run of this name" in refused.stderr
    )


def packed(made: torch.nn.Module, path: Path, classes: int = 10, **sections: dict[str, object]) -> Path:
    """A file with the weights of a model; `sections` replace those of LeNet and the digits."""
    described = {"model": {"name": "lenet", "stem": "small"}, "data": {"name": "digits", "image_size": 28}} | sections
    tensors = [raw(name, value.numpy()) for name, value in made.state_dict().items()]
    write(CompressedModel(described["model"], described["data"], classes, tensors), path)
    return path


@pytest.mark.parametrize("section", ["model", "data"])
def test_code_that_a_file_names_is_not_run_unless_it_is_named(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.py").write_text("open('was-run', 'w').close()\ndef call(**arguments): raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    own = {"name": "./bad.py:call", "arguments": {"text": "x"}} | ({"image_size": 28} if section == "data" else {})
    made = model()
    file = packed(made, tmp_path / "m.fire", **{section: own})
    with pytest.raises(
        UserError, match=f"names code, ./bad.py:call, which is not run unless you name it: --set {section}.name="
    ):
        evaluate_file(file, [])
    assert not (tmp_path / "was-run").exists()
    with pytest.raises(UserError, match="failed when it was called"):
        evaluate_file(file, [f"{section}.name=./bad.py:call"])
    assert (tmp_path / "was-run").exists()


@pytest.mark.parametrize("of_a_run", [True, False])
def test_other_images_than_those_of_the_training_are_told(
    of_a_run: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = model()
    if of_a_run:
        facts = {"state": "stopped", "ranks": 2}
        run = Run.prepare(tmp_path / "run", load_config("squeezenet-digits", OVERRIDES), SystemClock().date(), facts)
        checkpoint.save(run.path / "checkpoints", 7, {"model": made.state_dict()}, keep=1)
        evaluate_run(run, ["data.image_size=32"])
    else:
        evaluate_file(packed(made, tmp_path / "m.fire"), ["data.image_size=32"])
    told = capsys.readouterr().err
    assert "note: the model was trained with data.image_size 28, and is evaluated with 32" in told
    assert ("is not complete: its newest checkpoint is evaluated" in told) == of_a_run


def test_data_with_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the data have 10 classes, and the model was trained for 12"):
        evaluate_file(packed(model(), tmp_path / "m.fire", classes=12), [])


def test_a_run_is_evaluated_whatever_its_batch_and_its_log_were_and_without_the_file_that_it_began_with(
    tmp_path: Path,
) -> None:
    made = model()
    file = packed(made, tmp_path / "m.fire")
    changed = ("log.noise_scale=true", "batch.global_size=1024", f"model.weights={file}", "model.keep=zeros")
    loaded = load_config("squeezenet-digits", (*OVERRIDES, *changed))
    run = Run.prepare(tmp_path / "run", loaded, SystemClock().date(), {"state": "completed", "ranks": 2})
    checkpoint.save(run.path / "checkpoints", 7, {"model": made.state_dict()}, keep=1)
    file.unlink()
    assert evaluate_run(run, []).top1 == by_torch(made)[0]


def test_code_that_lies_beside_a_file_is_not_taken_for_the_user_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, got = tmp_path / "mine", tmp_path / "got"
    for folder in (mine, got):
        folder.mkdir()
        (folder / "nets.py").write_text(
            f"from pathlib import Path\nPath({str(folder / 'was-run')!r}).touch()\ndef call(**arguments): raise SystemExit(1)\n"
        )
    file = packed(model(), got / "m.fire", model={"name": "nets.py:call"})
    monkeypatch.chdir(mine)
    with pytest.raises(UserError, match="failed when it was called"):
        evaluate_file(file, ["model.name=./nets.py:call"])
    assert (mine / "was-run").exists() and not (got / "was-run").exists()


def test_a_checkpoint_of_another_model_is_told_in_words(tmp_path: Path) -> None:
    state = model().state_dict()
    state["fc2.weight"] = torch.zeros(4, 500)
    run = Run.prepare(
        tmp_path / "run", load_config("squeezenet-digits", OVERRIDES), SystemClock().date(), {"state": "completed"}
    )
    checkpoint.save(run.path / "checkpoints", 7, {"model": state}, keep=1)
    with pytest.raises(UserError, match=r"the checkpoint of .*run does not have the weights.*fc2.weight: \[4, 500\]"):
        evaluate_run(run, [])


def test_a_file_is_evaluated_in_the_precision_of_its_run(tmp_path: Path) -> None:
    made = model()
    tensors = [raw(name, value.numpy()) for name, value in made.state_dict().items()]
    described = {"name": "lenet", "stem": "small"}, {"name": "digits", "image_size": 28}
    losses = []
    for precision in ("float32", "bfloat16"):
        write(CompressedModel(*described, 10, tensors, precision=precision), tmp_path / "m.fire")
        losses.append(evaluate_file(tmp_path / "m.fire", []).loss)
    assert losses[0] == pytest.approx(by_torch(made)[2], rel=1e-5) and 1e-5 < abs(losses[1] / losses[0] - 1) < 0.02
