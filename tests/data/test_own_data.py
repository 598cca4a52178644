"""Data of the user's own is opened as it is, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from command import Command

from firetrain.cli.main import main
from firetrain.cluster import Identity, World
from firetrain.config import load_config
from firetrain.data.catalogue import open_dataset
from firetrain.data.decode import BadImage
from firetrain.data.images import Dataset
from firetrain.errors import UserError
from firetrain.training.input import make_loader
from firetrain.transport.transport import Transport

STRANGER = Path(__file__).parents[1] / "stranger"
DATA = """\
import os
import time
import numpy as np
import torch
from PIL import Image

class Items:
    def __init__(self, count=6, shape=(8, 8, 3), labels=(0, 1, 2)):
        self.count, self.shape, self.of = count, shape, labels
    def __len__(self): return self.count
    def __getitem__(self, number):
        if number >= self.count: raise IndexError(number)
        return np.full(self.shape, number, np.uint8), self.of[number % len(self.of)]

class Columns(Items):
    column_names = ["image", "label"]
    def __getitem__(self, key):
        if key == "label": return [self.of[number % len(self.of)] for number in range(self.count)]
        return {"image": np.full(self.shape, key, np.uint8), "label": self.of[key % len(self.of)]}

def scanned(): return Items(), Items(3)
def gray(): return Items(shape=(8, 8)), Items(shape=(8, 8, 1))
def columns(): return {"train": Columns(), "test": Columns(3)}
def one(): return Items()
def only(): return {"train": Items(), "holdout": Items()}
def stream(): return iter([1]), iter([2])
class Streamed(torch.utils.data.IterableDataset):
    def __len__(self): return 6
    def __iter__(self): return iter([])
def streamed(): return Streamed(), Streamed()
def untested(): return Items(), Items(0)
class Lying(Items):
    targets = [0, 2, 2, 0, 1, 2]
def lying(): return Lying(), Items(3)
class Bare(Items):
    targets = [0, 1, 2, 0, 1, 2]
    def __getitem__(self, number): return super().__getitem__(number)[0]
def bare(): return Bare(), Items(3)
def empty(): return Items(0), Items()
def more(): return Items(), Items(labels=(7,))
def floats(): return Items(labels=(0.5,)), Items()
def negative(): return Items(labels=(-1,)), Items()
def texts(): return Items(labels=("a", "b")), Items()
def channels(): return Items(shape=(3, 8, 8)), Items()
def broken(): raise OSError("the disk is gone")
class Changed(Items):
    # as torchvision's datasets: `targets` are those before `target_transform`
    targets = [0, 1, 2, 0, 1, 2]
    def target_transform(self, label): return 2 - label
    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        return image, self.target_transform(label)
class Photos(Items):
    def __getitem__(self, number):
        if number % 2:
            return Image.fromarray(np.full((4, 6), 40_000, np.uint16)), 0
        turned = Image.new("RGB", (6, 4))
        turned.getexif()[274] = 6
        return turned, 0
class Drawn(Items):
    def __getitem__(self, number): return np.random.randint(0, 9, self.shape).astype(np.uint8), 0
def changed(): return Changed(), Items()
def drawn(): return Drawn(), Drawn()
def photos(): return Photos(labels=(0,)), Photos(labels=(0,))
class Odd(Items):
    classes = 10
    targets = 3
    def labels(self): return [0] * self.count
class Named(Items):
    classes = ["a", "b", "c"]
class Nameless(Items):
    def __getitem__(self, number): return {"pixels": super().__getitem__(number)[0], "y": 0}
class Watched(Items):
    inside = most = 0
    def __getitem__(self, number):
        Watched.inside += 1
        Watched.most = max(Watched.most, Watched.inside)
        time.sleep(0.005)
        Watched.inside -= 1
        return super().__getitem__(number)
def watched():
    Watched.most = 0
    return Watched(30), Items()
def shuffled():
    order = np.random.permutation(60)
    return Items(60, labels=tuple(order)), Items(60, labels=tuple(torch.randperm(60).tolist()))
def of_the_process(): return Items(60, labels=(3 + os.getpid() % 57, 0)), Items()
def odd(): return Odd(), Items()
def few(): return Named(labels=(0, 3)), Named()
def nameless(): return Nameless(), Items()
class Known(Items):
    classes = ["a", "b", "c"]
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
def parts():
    part = torch.utils.data.Subset(Known(), [5, 4, 3, 0])
    return torch.utils.data.Subset(part, [0, 3]), torch.utils.data.random_split(Columns(), [4, 2])[0]
def named(): return Named(), Named()
"""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)


def test_a_part_of_a_dataset_has_the_labels_and_classes_of_the_whole_without_reading_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = opened("parts")
    assert list(found.train.labels) == [2, 0] and found.classes == ("a", "b", "c")
    assert [found.test.read(number).max() % 3 for number in range(4)] == list(found.test.labels)
    assert "read once" not in capfd.readouterr().err


def test_what_a_function_draws_is_the_same_in_every_process() -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    one, np_state = opened("shuffled"), np.random.get_state()[1]  # type: ignore[index]
    assert torch.equal(state[0], torch.get_rng_state()) and np.array_equal(state[1], np_state)
    np.random.seed(7)
    torch.manual_seed(7)
    other = opened("shuffled")
    for split, again in ((one.train, other.train), (one.test, other.test)):
        assert np.array_equal(split.labels, again.labels) and list(split.labels) != sorted(split.labels)


@pytest.mark.parametrize("strategy", ["data-parallel", "parameter-server:policy=sync"])
def test_ranks_with_other_images_are_refused_before_they_train(strategy: str, firetrain: Command) -> None:
    words = ("launch", "quickstart", "--set", "data.name=./pictures.py:of_the_process", "--set", "model.name=lenet")
    size = ("--set", "data.image_size=28", "--set", "cluster.ranks_per_node=2", "--set", f"strategy.name={strategy}")
    done = firetrain(*words, *size, limit_s=60)
    assert done.returncode == 1 and "exit code 2" in done.stderr
    assert "of_the_process: rank 1 has other images than rank 0, or in another order" in done.stderr, done.stderr


def opened(name: str) -> Dataset:
    return open_dataset(load_config("quickstart", [f"data.name=./pictures.py:{name}"]).config.data)


def test_items_are_read_as_they_are_and_labels_are_found_by_reading_them_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = opened("scanned")
    assert list(found.train.labels) == [0, 1, 2, 0, 1, 2] and found.classes == ("0", "1", "2")
    assert found.train.read(4).shape == (8, 8, 3) and found.train.read(4).max() == 4
    assert "all 6 are read once" in capfd.readouterr().err


def test_columns_have_the_labels_of_all_items(capfd: pytest.CaptureFixture[str]) -> None:
    found = opened("columns")
    assert list(found.test.labels) == [0, 1, 2] and found.train.read(5).max() == 5
    assert "read once" not in capfd.readouterr().err


def test_labels_that_a_transform_changes_are_those_of_the_items() -> None:
    assert list(opened("changed").train.labels) == [2, 1, 0, 2, 1, 0]


@pytest.mark.parametrize(("name", "is_told"), [("drawn", True), ("scanned", False)])
def test_images_that_change_when_they_are_read_again_are_told(
    name: str, *, is_told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    opened(name)
    assert ("an image is another one when it is read again" in capfd.readouterr().err) == is_told


def test_photos_are_turned_and_deep_ones_are_not_clipped() -> None:
    found = opened("photos").train
    assert found.read(0).shape == (6, 4, 3) and found.read(1).max() == 40_000 >> 8


def test_an_item_that_is_an_image_alone_is_no_image() -> None:
    with pytest.raises(
        BadImage, match=r"image 0: TypeError: an item is ndarray, and not \(image, class\) or a mapping"
    ):
        opened("bare").train.read(0)


def test_images_of_one_channel_get_three() -> None:
    found = opened("gray")
    assert found.train.read(1).shape == found.test.read(1).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("name", "told"),
    [("one", "must return (training images, test images), or a mapping with train and test or validation or val (got Items)"),
     ("only", "train and test or validation or val (got a mapping with train, holdout)"),
     ("stream", "can only be iterated; it needs len() and [number]"),
     ("streamed", "streamed, train: Streamed can only be iterated"),
     ("empty", "empty, train: Items has no images"),
     ("untested", "untested, test: Items has no images"),
     ("more", "the largest test label is 7, and there are 3 classes"),
     ("floats", "expected a class from 0 for each of 6 images (got float64"), ("negative", "each of 6 images (got -1)"),
     ("texts", "(got <U1 [6], texts: number the classes from 0)"),
     ("broken", "failed when it was called: OSError: the disk is gone ("),
     ("odd", "train: expected a class from 0 for each of 6 images (got int64 [])"),
     ("few", "the largest training label is 3, and there are 3 classes"),
     ("lying", "train: item 1 has class 1, and the labels of the dataset say 2"),
     ("nameless", "an item has 'pixels', 'y', and neither 'label' nor 'labels' nor 'fine_label'")],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_reason(name: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        opened(name)
    assert told in str(error.value)


def test_the_names_of_classes_are_those_of_the_data() -> None:
    assert opened("named").classes == ("a", "b", "c")


@pytest.mark.parametrize(("threads", "several"), [("null", False), ("3", True)])
def test_one_thread_reads_them_unless_the_config_says_more(
    threads: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("quickstart", ["data.name=./pictures.py:watched", f"data.threads={threads}"]).config
    alone = Transport("gloo", Identity(), World.even(1, 1), torch.device("cpu"), timeout_s=10.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    dataset = open_dataset(config.data)
    type(dataset.train.items).most = 0
    loader = make_loader(config.data, config.seed, dataset, alone, 30, train=True)
    (batch,) = loader.batches([np.arange(30)], epoch=0)
    loader.close()
    assert len(batch.labels) == 30 and (type(dataset.train.items).most > 1) == several


def test_one_thread_packs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    watched = open_dataset(load_config("quickstart", ["data.name=./pictures.py:watched"]).config.data).train
    words = ("quickstart", "--set", "data.name=./pictures.py:watched", "--out", "packed")
    done = CliRunner().invoke(main, ["data", "pack", *words])
    assert done.exit_code == 0 and "30 images" in done.output, done.output
    assert type(watched.items).most == 1


def test_an_item_that_is_no_image_names_itself() -> None:
    with pytest.raises(BadImage, match=r"train, image 2: expected \[height, width, 3\] \(got \[3, 8, 8\]\)"):
        opened("channels").train.read(2)


def test_a_root_and_arguments_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(UserError, match="root has no effect here"):
        load_config("quickstart", ["data.name=./pictures.py:scanned", "data.root=here"])
    with pytest.raises(UserError, match="arguments has no effect here"):
        load_config("quickstart", ["data.arguments={count: 3}"])


def test_a_strangers_model_and_data_are_trained_to_a_target(firetrain: Command) -> None:
    words = (
        f"model.name={STRANGER / 'nets.py'}:ResNet", "model.stem=null", "model.arguments={width: 8}", "data.image_size=24",
        f"data.name={STRANGER / 'images.py'}:squares", "data.arguments={count: 1000}", "target.top1=0.9", "target.max_epochs=8",
        "reduction.name=ring",
    )  # fmt: skip
    done = firetrain(
        "launch", "quickstart", "--ranks-per-node", "2", *(w for one in words for w in ("--set", one)), limit_s=170
    )
    assert done.returncode == 0 and "target 90.00% reached" in done.stdout, done.stdout
