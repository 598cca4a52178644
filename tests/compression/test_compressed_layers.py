"""Which layers of a model are compressed, and which stay whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from stand_in import Trainer, begun

from firetrain import checkpoint
from firetrain.coding.file import read
from firetrain.compression.pipeline import Compression, weights_of
from firetrain.config.compression import CompressionRecipe
from firetrain.errors import UserError
from firetrain.records import Run

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, shift=0):
        super().__init__()
        self.filters = nn.Conv2d(3, 4, 5, stride=4)
        self.filters.weight.requires_grad_(False)  # fixed
        self.register_buffer("table", torch.linspace(-1, 1, 64).reshape(4, 4, 4))
        self.register_buffer("order", torch.arange(4) + shift)
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = self.filters(x)[..., :4, :4][:, self.order] + self.table
        return self.fc(x.flatten(1))
"""


def of_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(OWN)
    return begun(tmp_path / "run", ("model.name=./nets.py:Net", "model.stem=null", "data.image_size=20"))


def test_of_a_model_of_the_user_s_own_only_what_is_trained_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, chosen = of_own_model(tmp_path, monkeypatch), CompressionRecipe.model_validate({"name": "mine", "bits": 2})
    Compression(run, chosen, "quantise", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")
    before, found = weights_of(run), read(tmp_path / "m.fire")
    after = found.state()
    assert found.model["name"] == "nets.py:Net" and str(tmp_path) not in f"{found.model}{found.data}"
    for name in ("filters.weight", "table"):
        np.testing.assert_array_equal(after[name], before[name])
    assert len(np.unique(after["fc.weight"])) <= 4 < len(np.unique(before["fc.weight"]))


TIED = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 3, 5), nn.Conv2d(3, 3, 5), nn.Linear(432, classes)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.fc(self.b(self.a(x)).flatten(1))
"""


def test_layers_that_have_the_same_weights_are_compressed_alike_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(TIED)
    run = begun(tmp_path / "run", ("model.name=./nets.py:Net", "model.stem=null", "data.image_size=20"))

    def compressed(layers: dict[str, object]) -> dict[str, np.ndarray]:
        chosen = CompressionRecipe.model_validate({"name": "mine", "layers": layers})
        Compression(run, chosen, "deep", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")
        return read(tmp_path / "m.fire").state()

    with pytest.raises(UserError, match=r"recipe mine: b\.weight is a\.weight: give b what a has"):
        compressed({"a": {"density": 0.3}})
    found = compressed({"[ab]": {"density": 0.3}})
    assert (found["a.weight"] != 0).mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_array_equal(found["a.weight"], found["b.weight"])
    unused = CompressionRecipe.model_validate({"name": "mine", "layers": {"a": {"density": 0.3}}})
    Compression(run, unused, "quantise", tmp_path / "shared", Trainer()).run(tmp_path / "m.fire")


def test_factors_that_would_be_larger_than_a_layer_are_not_made(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    chosen = CompressionRecipe.model_validate({"name": "mine", "layers": {"*": {"low_rank_share": 1.0}}})
    Compression(run, chosen, "svd", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")
    found = {one.name: one for one in read(tmp_path / "m.fire").tensors}
    assert any(one.kind == "low_rank" for one in found.values())
    for name, one in found.items():
        assert len(one.values) <= one.size, name
    np.testing.assert_array_equal(found["fc2.weight"].array(), weights_of(run)["fc2.weight"])


def test_what_no_file_would_give_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = of_own_model(tmp_path, monkeypatch)
    state = checkpoint.newest_model(run.path)
    state["order"] = torch.tensor([3, 2, 1, 0])
    checkpoint.save(run.path / "checkpoints", 2, {"model": state}, keep=1)
    chosen = CompressionRecipe.model_validate({"name": "mine"})
    with pytest.raises(UserError, match=r"what the model's code makes: order would be lost"):
        Compression(run, chosen, "quantise", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")
    assert not (tmp_path / "m.fire").exists()


def test_weights_of_which_few_are_zero_stay_whole(tmp_path: Path) -> None:
    """With gaps they would take more bytes than without."""
    run = begun(tmp_path / "run")
    state = checkpoint.newest_model(run.path)
    state["fc1.weight"][0, 0] = 0.0
    checkpoint.save(run.path / "checkpoints", 2, {"model": state}, keep=1)
    chosen = CompressionRecipe.model_validate({"name": "mine", "layers": {"conv1": {"density": 1.0}}})
    Compression(run, chosen, "prune", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")
    found = read(tmp_path / "m.fire")
    assert {one.kind for one in found.tensors} == {"raw"} and found.state()["fc1.weight"][0, 0] == 0.0
