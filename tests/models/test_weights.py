"""A model starts from the weights of a file, if they are its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from firetrain.coding.file import CompressedModel, write
from firetrain.coding.tensor import raw
from firetrain.config import load_config
from firetrain.errors import UserError
from firetrain.models.catalogue import make_model, model_by_name
from firetrain.models.lenet_300_100 import LeNet300


def changed(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model, with other weights."""
    return {name: value + 0.5 if value.is_floating_point() else value for name, value in model.state_dict().items()}


def written(path: Path, state: dict[str, torch.Tensor], how: str) -> Path:
    if how == "compressed":
        tensors = [raw(name, value.numpy()) for name, value in state.items() if value.is_floating_point()]
        write(CompressedModel({"name": "lenet"}, {"name": "digits"}, 10, tensors), path)
    elif how == "state dict":
        torch.save(state, path)
    else:
        torch.save({"model": state, "step": 3}, path)
    return path


@pytest.mark.parametrize(("how", "suffix"), [("compressed", ".fire"), ("state dict", ".pt"), ("checkpoint", ".pt")])
@pytest.mark.parametrize("batch_norm", ["false", "true"])
def test_all_weights_and_statistics_are_those_of_the_file(
    how: str, suffix: str, batch_norm: str, tmp_path: Path
) -> None:
    options = ["model.name=lenet", "data.image_size=28", f"model.batch_norm={batch_norm}"]
    state = changed(make_model(load_config("squeezenet-digits", options).config.model, 10, 1))
    path = written(tmp_path / f"weights{suffix}", state, how)
    config = load_config("squeezenet-digits", [*options, f"model.weights={path}"]).config
    found = make_model(config.model, 10, seed=2).state_dict()
    assert all(torch.equal(found[name], value) for name, value in state.items())
    assert (batch_norm == "true") == any("running_mean" in name for name in found)


def test_a_relative_path_is_that_of_the_folder_in_which_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config("squeezenet-digits", ["model.weights=mine.fire"]).config
    assert config.model.weights == str(tmp_path / "mine.fire")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state.pop("fc2.bias"), "fc2.bias: missing"),
        (lambda state: state.update({"fc9.weight": torch.zeros(2)}), "fc9.weight: not in the model"),
        (lambda state: state.update({"fc2.bias": torch.zeros(7)}), r"fc2.bias: \[7\] in the file, \[10\] in the model"),
        (lambda state: [state.pop(name) for name in list(state)[:5]], "and 2 more"),
    ],
)  # fmt: skip
def test_weights_of_another_model_are_refused_with_what_differs(change: object, told: str, tmp_path: Path) -> None:
    state = changed(model_by_name("lenet", classes=10))
    change(state)  # type: ignore[operator]
    path = written(tmp_path / "weights.pt", state, "state dict")
    config = load_config(
        "squeezenet-digits", ["model.name=lenet", "data.image_size=28", f"model.weights={path}"]
    ).config
    with pytest.raises(UserError, match=f"does not have the weights of this model: .*{told}"):
        make_model(config.model, 10, seed=1)


@pytest.mark.parametrize("content", [b"", b"not a file of torch", b"PK\x03\x04"])
def test_what_is_no_state_dict_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    config = load_config(
        "squeezenet-digits", ["model.name=lenet", "data.image_size=28", f"model.weights={path}"]
    ).config
    with pytest.raises(UserError, match=r"weights\.pt: not a readable state dict"):
        make_model(config.model, 10, seed=1)
    torch.save([1, 2], path)
    with pytest.raises(UserError, match="not a state dict: a dict of tensors by name"):
        make_model(config.model, 10, seed=1)


def test_code_in_a_state_dict_is_not_run(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, ("raise SystemExit('code was run')",)

    torch.save({"fc1.weight": Harm()}, tmp_path / "weights.pt")
    config = load_config(
        "squeezenet-digits", ["model.name=lenet", "data.image_size=28", f"model.weights={tmp_path / 'weights.pt'}"]
    ).config
    with pytest.raises(
        UserError, match="not a readable state dict: it is damaged, or has more than tensors, which could run"
    ):
        make_model(config.model, 10, seed=1)


def test_lenet_300_100_is_three_matrices_on_grey_images() -> None:
    """266,610 parameters, as published; 1,066,440 bytes in float32."""
    model = LeNet300()
    assert (
        sum(one.numel() for one in model.parameters()) == 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10 == 266_610
    )
    images = torch.randn(4, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    x = images.mean(1).flatten(1).double().numpy()
    for layer in (model.fc1, model.fc2, model.fc3):
        x = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        x = np.maximum(x, 0.0) if layer is not model.fc3 else x
    np.testing.assert_allclose(model(images).detach().numpy(), x, rtol=1e-4, atol=1e-5)
    assert model(torch.randn(2, 3, 56, 56)).shape == (2, 10), "larger images are pooled"
