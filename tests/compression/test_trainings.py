"""A training of a compression begins, goes on after an interruption, and is not repeated when it is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from firetrain.cluster import SystemClock
from firetrain.compression.trainings import begun, train_here
from firetrain.config import Loaded, load_config
from firetrain.errors import UserError
from firetrain.records import Run


def config(*overrides: str) -> Loaded:
    own = (
        "model.name=lenet",
        "data.image_size=28",
        "cluster.ranks_per_node=1",
        "reduction.name=native",
        "target.top1=null",
    )
    return load_config("squeezenet-digits", (*own, "target.max_epochs=1", *overrides))


def test_a_complete_training_is_not_repeated(tmp_path: Path) -> None:
    train, folder = train_here(Console(stderr=True)), tmp_path / "share"
    run = train(config(), folder)
    assert run.summary()["epochs"] == 1
    assert train(config(), folder) == run and run.attempts == 1
    assert len(list(folder.iterdir())) == 1


def test_an_interrupted_training_goes_on_in_its_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    cut = Run.prepare(folder / "cut", config(), SystemClock().date(), {"state": "cancelled", "ranks": 1})
    cut.begin_attempt()
    run = train_here(Console(stderr=True))(config(), folder)
    assert run == cut and run.attempts == 2 and run.summary()["epochs"] == 1


def test_a_training_whose_images_have_moved_is_the_same_and_an_incomplete_one_begins_again(tmp_path: Path) -> None:
    def of_files(root: str) -> Loaded:
        return config(
            "data.name=folders", f"data.root={tmp_path / root}", "target.max_steps=1", "checkpoint.every_epochs=1"
        )

    for number in range(20):
        folder = tmp_path / "now" / ("train" if number < 10 else "test") / f"class {number % 10}"
        folder.mkdir(parents=True)
        Image.new("RGB", (28, 28)).save(folder / "image.png")
    train, folder = train_here(Console(stderr=True)), tmp_path / "share"
    cut = Run.prepare(folder / "a-cut", of_files("before"), SystemClock().date(), {"state": "cancelled", "ranks": 1})
    run = train(of_files("now"), folder)
    assert run.path != cut.path and run.summary()["steps"] == 1
    assert begun(of_files("elsewhere"), folder) == run == train(of_files("elsewhere"), folder)


def test_a_training_with_another_config_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m.fire.trainings" / "prune-1"
    assert begun(config(), folder) is None
    made = Run.prepare(folder / "one", config("seed=3"), SystemClock().date(), {"state": "completed", "ranks": 1})
    assert begun(config("seed=3"), folder) == made
    with pytest.raises(
        UserError, match=r"another config than this compression: give another --out, or delete .*prune-1 and"
    ):
        begun(config("seed=4"), folder)
