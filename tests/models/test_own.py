"""Models of the user's own are found, made, trained the same on any number of ranks, or refused with the reason."""

from __future__ import annotations

import colorsys
import json
import random
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command
from torch import nn

from firetrain.config import load_config
from firetrain.errors import UserError
from firetrain.models.catalogue import make_model
from firetrain.models.dropout import Dropout, dropouts_of, set_dropout_keys
from firetrain.models.own import refuse_untrainable_output

STRANGER = Path(__file__).parents[1] / "stranger"
NET = """\
import random
import numpy as np
from torch import nn
import torch

class Net(nn.Module):
    def __init__(self, classes, width=4):
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.fc(x.flatten(1)))

def doubled(classes): return Net(classes).double()
def frozen(classes): return Net(classes).requires_grad_(False)
def broken(classes): return Net(classes, width="four")
def wrong(classes): return Net(classes + 1)
def lazy(classes): return nn.LazyLinear(classes)
def number(classes): return 3
def any(**options): return Net(options["num_classes"])
def none(**options):
    if options: raise TypeError("no options")
    return Net(10)
def shared(classes):
    drop = nn.Dropout(0.5)
    return nn.Sequential(Net(classes), drop, nn.Linear(classes, classes), drop)
class Drawing(Net):
    def forward(self, x): return nn.functional.dropout(super().forward(x), 0.5, self.training)
class Flipping(Net):
    def forward(self, x): return super().forward(x.flip(3) if self.training and random.random() < 2 else x)
class Twice(Net):
    def __init__(self, classes):
        super().__init__(classes, width=6)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        ones = torch.ones(len(x), 1000)
        Twice.seen = self.drop(ones), self.drop(ones)
        return self.out(self.drop(self.fc(x.flatten(1))))
class Noise(Net):
    def __init__(self, classes):
        super().__init__(classes)
        self.register_buffer("noise", torch.tensor(np.random.rand(4) + random.random()))
class Recurrent(Net):
    def __init__(self, classes):
        super().__init__(classes, width=8)
        self.rows = nn.LSTM(48, 8, batch_first=True)
    def forward(self, x): return self.out(self.rows(x.flatten(1).view(len(x), 16, 48))[0][:, -1])
class Branching(Net):
    def forward(self, x): return super().forward(x if x.sum().item() > 0 else -x)
class Normal(Net):
    def __init__(self, classes):
        super().__init__(classes)
        self.normal = nn.BatchNorm2d(3)
    def forward(self, x): return super().forward(self.normal(x))
class Tokens(Net):
    # drops features of tokens, which are the first dimension
    def __init__(self, classes):
        super().__init__(classes, width=6)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        tokens = self.fc(x.flatten(1)).view(len(x), 3, 2).transpose(0, 1)
        return self.out(self.drop(tokens).transpose(0, 1).flatten(1))
class Heads(Net):
    also = 10
    def forward(self, x):
        found = super().forward(x)
        return (found, found[:, :self.also]) if self.training else found
class Features(Heads):
    also = 4
class Dictionary(Net):
    def forward(self, x): return {"logits": super().forward(x)} if self.training else super().forward(x)
settings = 5
"""
DIGITS = (
    "data.name=digits",
    "data.image_size=16",
    "target.max_epochs=1",
    "target.top1=null",
    "cluster.ranks_per_node=1",
)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NET)
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nmodel: {name: ./nets.py:Net, arguments: {width: 6}}\ndata: {name: digits, image_size: 16}\n"
        "batch: {global_size: 64}\nlearning_rate: {base: 0.05}\ntarget: {max_epochs: 1}\n"
    )
    return path


def made(path: Path, *overrides: str) -> nn.Module:
    return make_model(load_config(str(path.parent / "mine.yaml"), overrides).config.model, classes=10, seed=1)


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
     ("./nets.py:1st", "code of your own is"), ("lenett", "did you mean lenet?, or a model of your own")],
)  # fmt: skip
def test_what_is_not_there_is_a_mistake_of_the_config_found_without_importing(name: str, told: str, net: Path) -> None:
    net.write_text(NET + "raise SystemExit('imported')\n")
    with pytest.raises(UserError) as error:
        load_config(str(net.parent / "mine.yaml"), [f"model.name={name}"])
    assert told in str(error.value) and "model.name" in str(error.value)


def test_arguments_that_are_not_taken_are_a_mistake_of_the_config_found_without_importing(
    net: Path, firetrain: Command
) -> None:
    net.write_text(NET + "\nraise RuntimeError('imported')\ndef any(classes, **rest): return Net(classes)\n")
    for name, argument, told in (
        ("Net", "widht", "takes no argument widht, did you mean width?"), ("wrong", "width", "takes no argument width"),
    ):  # fmt: skip
        words = ("--set", f"model.name=./nets.py:{name}", "--set", f"model.arguments={{{argument}: 6}}")
        done = firetrain("launch", "mine.yaml", "--dry-run", *words)
        assert done.returncode == 2 and told in done.stderr, done.stderr
    words = ("--set", "model.name=./nets.py:any", "--set", "model.arguments={widht: 6}")
    assert firetrain("config", "show", "mine.yaml", *words).returncode == 0


@pytest.mark.parametrize(
    ("attribute", "told"),
    [("doubled", "parameters must be float32 (got torch.float64)"), ("frozen", "no parameters that are trained"),
     ("lazy", "has lazy layers"), ("broken", "failed when it was called: TypeError"),
     ("number", "returns int, not a torch.nn.Module"),
     ("settings", "is int, not a function or class")],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_with_the_reason(attribute: str, told: str, net: Path) -> None:
    with pytest.raises(UserError) as error:
        made(net, f"model.name=./nets.py:{attribute}", "model.arguments=null")
    assert told in str(error.value)


def test_what_takes_any_arguments_gets_the_number_of_classes(net: Path) -> None:
    for name in ("any", "none"):
        assert made(net, f"model.name=./nets.py:{name}", "model.arguments=null").out.out_features == 10


def test_dropout_that_a_model_uses_twice_is_replaced_twice(net: Path) -> None:
    model = made(net, "model.name=./nets.py:shared", "model.arguments=null")
    assert not [one for one in model.modules() if isinstance(one, nn.Dropout)] and len(list(dropouts_of(model))) == 2


def test_dropout_that_is_called_twice_in_a_pass_drops_other_elements_and_the_same_in_the_next_pass(net: Path) -> None:
    model = made(net, "model.name=./nets.py:Twice", "model.arguments=null").train()
    passes = []
    for _ in range(2):
        set_dropout_keys(model, torch.arange(3))
        model(torch.zeros(3, 3, 16, 16))
        passes.append(type(model).seen)  # type: ignore[attr-defined]
    (first, second), again = passes
    kept = (first > 0).float().mean().item(), ((first > 0) & (second > 0)).float().mean().item()
    assert kept[0] == pytest.approx(0.5, abs=0.05) and kept[1] == pytest.approx(0.25, abs=0.05)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])


def test_what_a_model_draws_by_other_libraries_when_it_is_made_is_the_same_in_every_process(net: Path) -> None:
    one = made(net, "model.name=./nets.py:Noise", "model.arguments=null").noise
    random.seed(5)
    np.random.seed(5)
    assert torch.equal(one, made(net, "model.name=./nets.py:Noise", "model.arguments=null").noise)  # type: ignore[arg-type]
    assert random.Random(5).random() == random.random(), "and changes nothing for others"


def test_a_model_that_draws_random_numbers_itself_is_told(net: Path, firetrain: Command) -> None:
    words = (
        "launch",
        "mine.yaml",
        "--ranks-per-node",
        "2",
        "--set",
        "target.max_steps=1",
        "--set",
        "model.arguments=null",
    )
    for name, is_told in (("Drawing", True), ("Flipping", True), ("Tokens", True), ("shared", False)):
        done = firetrain(*words, "--results", name, "--set", f"model.name=./nets.py:{name}", limit_s=60)
        assert done.returncode == 0, done.stderr
        (log,) = (net.parent / name).glob("*/attempt-0/logs/rank-0000.log")
        assert (f"{name} draws random numbers in training" in log.read_text()) == is_told
    done = firetrain(*words, "--set", "strategy.name=pipeline", "--set", "model.name=./nets.py:Flipping", limit_s=60)
    assert (
        done.returncode == 2
        and "Flipping draws random numbers in training, other ones on each rank: only" in done.stderr
    )


def test_settings_that_are_known_to_fail_without_batch_norm_are_told_when_the_model_is_made(
    net: Path, firetrain: Command
) -> None:
    words = (
        "launch",
        "mine.yaml",
        "--ranks-per-node",
        "1",
        "--set",
        "target.max_steps=1",
        "--set",
        "model.arguments=null",
    )
    scaled = (
        "--set",
        "learning_rate.scaling=linear",
        "--set",
        "learning_rate.base_batch=2",
        "--set",
        "learning_rate.base=0.001",
    )
    for name, is_told in (("any", True), ("Normal", False)):
        done = firetrain(*words, *scaled, "--results", name, "--set", f"model.name=./nets.py:{name}", limit_s=60)
        assert done.returncode == 0, done.stderr
        (log,) = (net.parent / name).glob("*/attempt-0/logs/rank-0000.log")
        assert ("linear scaling over 32 times the batch fails on" in log.read_text()) == is_told


def test_layers_with_several_outputs_are_shown_and_what_needs_values_is_refused(net: Path, firetrain: Command) -> None:
    words = ("--classes", "10", "--image-size", "16")
    done = firetrain("model", "show", "./nets.py:Recurrent", *words)
    assert done.returncode == 0 and "LSTM" in done.stdout and "16x8" in done.stdout.replace(" ", ""), done.stdout
    done = firetrain("model", "show", "./nets.py:Branching", *words)
    assert done.returncode == 2 and "needs the values of images" in done.stderr and "nets.py:" in done.stderr, (
        done.stderr
    )


def test_its_layers_are_shown(net: Path, firetrain: Command) -> None:
    words = ("model", "show", "./nets.py:Net", "--classes", "10", "--image-size", "16")
    done = firetrain(*words, "--argument", "width=6")
    assert done.returncode == 0 and " 4,684 " in done.stdout.replace("  ", " "), done.stdout + done.stderr
    for option, value, told in (
        ("--stem", "small", "has no option stem, which only firetrain's models have"),
        ("--argument", "widht=6", "takes no argument widht, did you mean width?"),
        ("--argument", "width", "expected NAME=VALUE"), ("--argument", "width=[1]", "expected NAME=VALUE"),
    ):  # fmt: skip
        done = firetrain(*words, option, value)
        assert done.returncode == 2 and told in done.stderr, done.stderr
    done = firetrain("model", "show", "lenet", "--image-size", "28", "--argument", "width=6")
    assert done.returncode == 2 and "takes no arguments, which only models of your own have" in done.stderr


def test_an_import_that_fails_names_the_line(net: Path) -> None:
    net.write_text(NET + "import no_such_thing\n")
    line = len(NET.splitlines()) + 1
    with pytest.raises(UserError, match=rf"cannot be imported: ModuleNotFoundError: .* \({net}:{line}\)"):
        made(net)


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


def test_an_output_that_is_no_class_for_each_image_is_refused_by_the_ranks(net: Path, firetrain: Command) -> None:
    done = firetrain("launch", "mine.yaml", "--set", "model.name=./nets.py:wrong", "--set", "model.arguments=null")
    assert done.returncode == 1 and "must return [images, classes] = [2, 10] for 2 images (got [2, 11])" in done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [("Heads", ""), ("Features", "(got [2, 10], [2, 4] in training)"), ("Dictionary", "(got dict in training)")],
)
def test_outputs_in_training_are_scores_of_classes_too(name: str, told: str, net: Path) -> None:
    model = made(net, f"model.name=./nets.py:{name}", "model.arguments=null")
    before = torch.get_rng_state()
    with pytest.raises(UserError, match=re.escape(told)) if told else nullcontext():
        refuse_untrainable_output(model, name, 10, 16)
    assert model.training and torch.equal(before, torch.get_rng_state())


def test_a_file_that_is_called_like_a_module_does_not_replace_it(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    net.rename(net.with_name("colorsys.py"))
    assert type(made(net, "model.name=./colorsys.py:Net")).__name__ == "Net"
    assert sys.modules["colorsys"] is colorsys and hasattr(colorsys, "rgb_to_hsv")


def test_dropout_of_everything_leaves_nothing() -> None:
    model = Dropout(1.0).train()
    model.keys = torch.zeros(2, dtype=torch.int32)
    assert torch.equal(model(torch.ones(2, 5)), torch.zeros(2, 5))


@pytest.mark.parametrize("name", ["ResNet", "plain"])
def test_losses_are_the_same_on_one_rank_and_on_two(name: str, firetrain: Command, tmp_path: Path) -> None:
    losses = []
    for ranks in (1, 2):
        words = [
            f"model.name={STRANGER / 'nets.py'}:{name}",
            "model.stem=null",
            "reduction.name=ring",
            "target.max_steps=8",
        ]
        words += ["target.max_epochs=1", "target.top1=null", "log.every_steps=1"]
        options = [word for one in words for word in ("--set", one)]
        done = firetrain(
            "launch", "quickstart", "--ranks-per-node", str(ranks), "--results", str(ranks), *options, limit_s=120
        )
        assert done.returncode == 0, done.stderr
        (lines,) = (tmp_path / str(ranks)).glob("*/metrics.jsonl")
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        losses.append([row["loss"] for row in rows if row["kind"] == "step"])
        assert (lines.parent / "nets.py").read_text() == (STRANGER / "nets.py").read_text()
    # batch norm sees each rank's own images, and torch.nn.Dropout is the same on both
    assert len(losses[0]) == 8 and losses[0] == pytest.approx(losses[1], rel=0.2 if name == "ResNet" else 1e-4)


def test_code_that_has_changed_since_a_run_began_is_told(net: Path, firetrain: Command, tmp_path: Path) -> None:
    saved = ("--set", "checkpoint.every_epochs=1", "--set", "target.max_steps=3")
    assert firetrain("launch", "mine.yaml", *saved, limit_s=60).returncode == 0
    (run,) = (tmp_path / "results").iterdir()
    assert "has changed" not in firetrain("evaluate", str(run)).stderr
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
