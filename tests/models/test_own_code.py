"""Models of the user's own are found without importing them, kept with the run, or refused with the reason."""

from __future__ import annotations

import colorsys
import sys
from pathlib import Path

import pytest
import torch
from command import Command
from own_model import NET, made, write_net

from firetrain.config import load_config
from firetrain.errors import UserError

STRANGER = Path(__file__).parents[1] / "stranger"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return write_net(tmp_path)


def test_a_file_beside_the_config_is_the_model_with_its_arguments(net: Path) -> None:
    model = made(net)
    assert [tuple(p.shape) for p in model.parameters()] == [(6, 768), (6,), (10, 6), (10,)]
    assert torch.equal(made(net).fc.weight, model.fc.weight)  # drawn from the seed


def test_a_module_in_the_working_folder_and_an_installed_one_are_found(
    net: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other_nets.py").write_text(NET)
    monkeypatch.chdir(elsewhere)
    assert made(net, "model.name=other_nets:Net").out.out_features == 10
    model = load_config(str(net.parent / "mine.yaml"), ["model.name=torch.nn:Identity"]).config.model
    assert model.own and model.own.folder is None


@pytest.mark.parametrize(
    ("name", "told"),
    [("zoo:resnet51", "__init__.py has no resnet51, did you mean resnet50?"), ("zoo.resnet:net", "resnet.py has no net"),
     ("zoo.resnets:net", "no module resnets in zoo"), ("zoo.resnet.blocks:net", "no module blocks in zoo.resnet"),
     ("alone:net", "alone.py has no net"), ("zoo:resnet50", ""), ("zoo:older", ""), ("zoo:of_others", ""),
     ("alone:resnet18", "")],
)  # fmt: skip
def test_names_of_installed_packages_are_looked_up_without_importing_them(
    name: str, told: str, net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchvision and timm do, the package takes over all names of its modules."""
    package = tmp_path / "installed" / "zoo"
    (package / "old").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\nfrom .resnet import *\nfrom .old import *\n")
    (package / "resnet.py").write_text("def resnet50(classes): ...\nfrom . import old\n")
    (package / "old" / "__init__.py").write_text("from ..resnet import *\nfrom .. import resnet\nolder = 1\n")
    (package.parent / "alone.py").write_text("def resnet18(classes): ...\n")
    if name.endswith("of_others"):
        (package / "resnet.py").write_text("from torch.nn import *\n")
    monkeypatch.syspath_prepend(str(package.parent))
    words = [f"model.name={name}", "model.arguments=null"]
    if not told:
        assert load_config(str(net.parent / "mine.yaml"), words).config.model.own
        return
    with pytest.raises(UserError) as error:
        load_config(str(net.parent / "mine.yaml"), words)
    assert told in str(error.value), error.value


def test_a_package_is_found_before_a_module_of_its_name_as_python_does(net: Path) -> None:
    (net.parent / "both").mkdir()
    (net.parent / "both" / "__init__.py").write_text(NET)
    (net.parent / "both.py").write_text("")
    assert made(net, "model.name=both:Net").out.out_features == 10


@pytest.mark.parametrize(
    ("name", "told"),
    [("./net.py:Net", "no file ./net.py (looked in "), ("nets:Nets", "nets.py has no Nets, did you mean Net?"),
     ("no_such_package.nets:Net", "no module no_such_package (looked in "),
     ("./nets.py:1st", "code of your own is"),
     ("./nets.py:settings", "settings is a value, not a function or class"),
     ("lenett", "did you mean lenet?, or a model of your own")],
)  # fmt: skip
def test_what_is_not_there_is_a_mistake_of_the_config_found_without_importing(name: str, told: str, net: Path) -> None:
    net.write_text(NET + "raise SystemExit('imported')\n")
    with pytest.raises(UserError) as error:
        load_config(str(net.parent / "mine.yaml"), [f"model.name={name}"])
    assert told in str(error.value) and "model.name" in str(error.value)


def test_arguments_that_are_not_taken_are_a_mistake_of_the_config_found_without_importing(
    net: Path, firetrain: Command
) -> None:
    net.write_text(
        NET + "\nraise RuntimeError('imported')\ndef any(classes, **rest): return Net(classes)\n"
        "class Strict(Net):\n    def __init__(self, /, width, classes=10): super().__init__(classes, width)\n"
    )
    for name, argument, told in (
        ("Net", "widht", "takes no argument widht, did you mean width?"), ("wrong", "width", "takes no argument width"),
    ):  # fmt: skip
        words = ("--set", f"model.name=./nets.py:{name}", "--set", f"model.arguments={{{argument}: 6}}")
        done = firetrain("launch", "mine.yaml", "--dry-run", *words)
        assert done.returncode == 2 and told in done.stderr, done.stderr
    for name, argument in (("any", "widht"), ("Strict", "width")):
        words = ("--set", f"model.name=./nets.py:{name}", "--set", f"model.arguments={{{argument}: 6}}")
        assert firetrain("config", "show", "mine.yaml", *words).returncode == 0


def test_what_takes_any_arguments_gets_the_number_of_classes(net: Path) -> None:
    for name in ("any", "none"):
        assert made(net, f"model.name=./nets.py:{name}", "model.arguments=null").out.out_features == 10


def test_an_import_that_fails_names_the_line(net: Path) -> None:
    net.write_text(NET + "import no_such_thing\n")
    line = len(NET.splitlines()) + 1
    with pytest.raises(UserError, match=rf"cannot be imported: ModuleNotFoundError: .* \({net}:{line}\)"):
        made(net)


def test_an_import_that_fails_names_the_line_also_in_a_folder_called_firetrain(net: Path) -> None:
    folder = net.parent / "firetrain"
    folder.mkdir()
    (net.parent / "mine.yaml").rename(folder / "mine.yaml")
    (folder / "nets.py").write_text("import no_such_thing\n" + NET)
    with pytest.raises(UserError, match=rf"cannot be imported: ModuleNotFoundError: .* \({folder}/nets.py:1\)"):
        made(folder / "nets.py")


def test_the_folder_of_the_config_is_looked_in_before_the_working_folder(
    net: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "nets.py").write_text("Net = None\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config(str(net.parent / "mine.yaml")).config.model.name == f"{net}:Net"


@pytest.mark.parametrize(
    ("override", "told"),
    [("model.stem=small", "stem has no effect here (only with firetrain's models)"),
     ("model.batch_norm=true", "batch_norm has no effect here")],
)  # fmt: skip
def test_options_of_firetrains_models_are_refused(override: str, told: str, net: Path) -> None:
    with pytest.raises(UserError) as error:
        load_config(str(net.parent / "mine.yaml"), [override])
    assert told in str(error.value)
    with pytest.raises(UserError, match="arguments has no effect here"):
        load_config("quickstart", ["model.arguments={width: 3}"])


def test_a_file_that_is_called_like_a_module_does_not_replace_it(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    net.rename(net.with_name("colorsys.py"))
    assert type(made(net, "model.name=./colorsys.py:Net")).__name__ == "Net"
    assert sys.modules["colorsys"] is colorsys and hasattr(colorsys, "rgb_to_hsv")


def test_code_that_has_changed_since_a_run_began_is_told(net: Path, firetrain: Command, tmp_path: Path) -> None:
    saved = ("--set", "checkpoint.every_epochs=1", "--set", "target.max_steps=3")
    assert firetrain("launch", "mine.yaml", *saved, limit_s=60).returncode == 0
    (run,) = (tmp_path / "results").iterdir()
    assert "has changed" not in firetrain("evaluate", str(run)).stderr
    net.rename(net.with_name("moved.py"))
    done = firetrain("resume", str(run), "--set", "target.max_steps=5")
    assert done.returncode == 2 and f"{run / 'nets.py'} is what it was when the run began: put it" in done.stderr
    net.write_text(NET.replace("self.fc(x", "-self.fc(x"))
    done = firetrain("evaluate", str(run))
    assert done.returncode == 0 and f"{net} has changed since the run began" in done.stderr, done.stderr
    (run / "summary.json").unlink()
    assert f"{net} has changed since the run began" in firetrain("launch", "--resume", str(run), "--dry-run").stdout


def test_a_model_and_data_of_files_with_one_name_are_both_kept(net: Path, firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "nets.py").write_text((STRANGER / "images.py").read_text())
    words = (
        "--set",
        "data={name: ./code/nets.py:squares, arguments: {count: 90}, image_size: 16}",
        "--set",
        "model.arguments=null",
    )
    saved = ("--set", "target.max_steps=1", "--set", "checkpoint.every_epochs=1")
    done = firetrain("launch", "mine.yaml", *words, *saved, limit_s=60)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results").iterdir()
    assert (run / "model-nets.py").read_text() == net.read_text()
    assert (run / "data-nets.py").read_text() == (STRANGER / "images.py").read_text()
    assert "has changed" not in firetrain("evaluate", str(run)).stderr
