"""The strategy `auto` searches when training starts, and keeps what it found when a run is resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from command import Command
from ranks import on_ranks

from firetrain.cluster import World
from firetrain.config import Config, load_config
from firetrain.errors import CannotWrite, UserError
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.records import Run
from firetrain.strategy import find_strategy
from firetrain.strategy.file import SearchedSection, fits, text
from firetrain.training.rank import _with_placement
from firetrain.transport.transport import Transport

LENET = ("squeezenet-digits", "--set", "model.name=lenet", "--set", "data.image_size=28", "--set", "target.top1=null")
AUTO = (
    *LENET,
    "--ranks-per-node",
    "2",
    "--set",
    "strategy.name=auto",
    "--set",
    "strategy.parameters.profile=uncalibrated",
)


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in run.metrics("step")]


def test_the_placement_is_searched_written_into_the_run_and_trained(firetrain: Command, tmp_path: Path) -> None:
    short = ("--set", "target.max_steps=3", "--set", "log.every_steps=1")
    done = firetrain("launch", *AUTO, *short, "--json")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results").iterdir()
    run = Run.open(path)
    (found,) = json.loads(firetrain("search", *LENET, "--ranks", "2", "--ranks-per-node", "2", "--json").stdout)
    searched = yaml.safe_load(run.placement.read_text())["searched"]
    best_s = min(found["step_s"], found["pipeline"]["step_s"])
    assert searched["step_ms"] == pytest.approx(1e3 * best_s) and searched["world"] == [0, 0]
    assert "ms a step predicted" in (path / "attempt-0" / "logs" / "rank-0000.log").read_text()
    layers = trace(model_by_name("lenet", classes=10, stem="small"), 28).layers
    assert find_strategy(str(run.placement))(layers, World.even(1, 2)).ranks == 2
    alone = firetrain("launch", *LENET, *short, "--results", "alone", "--ranks-per-node", "1")
    assert alone.returncode == 0, alone.stderr
    (other,) = (tmp_path / "alone").iterdir()
    assert losses(run) == pytest.approx(losses(Run.open(other)), rel=1e-5) and len(losses(run)) == 3


def unwritten(transport: Transport, folder: str) -> str:
    """What a rank is told when rank 0 cannot write the placement that it has found."""

    def search(config: Config, world: World) -> str:
        raise CannotWrite("cannot write placement.yaml: No space left on device")

    config = load_config("quickstart", ["strategy.name=auto", "strategy.parameters.profile=uncalibrated"]).config
    try:
        _with_placement(config, Run(Path(folder)), transport, search)
    except CannotWrite as error:
        return str(error)
    return "nothing"


def test_all_ranks_end_if_the_placement_cannot_be_written(tmp_path: Path) -> None:
    told = on_ranks(3, unwritten, str(tmp_path))
    assert told == ["cannot write placement.yaml: No space left on device"] * 3


def test_a_resumed_run_keeps_its_placement(firetrain: Command, tmp_path: Path) -> None:
    few = ("--set", "target.max_epochs=1", "--set", "checkpoint.every_epochs=1")
    assert firetrain("launch", *AUTO, *few).returncode == 0
    (path,) = (tmp_path / "results").iterdir()
    run, marked = Run.open(path), "# changed by hand\n"
    run.placement.write_text(marked + run.placement.read_text())
    (path / "summary.json").unlink()
    run.update(state="stopped")
    shutil.copy(run.config_path, tmp_path / "config.yaml")
    done = firetrain("launch", "--resume", str(path))
    assert done.returncode == 0, done.stderr
    assert run.placement.read_text().startswith(marked), "what was found is not searched again"
    (path / "summary.json").unlink()
    run.update(state="stopped")
    done = firetrain("launch", "--resume", str(path), "--set", "reduction.name=ring")
    assert done.returncode == 0, done.stderr
    text = run.placement.read_text()
    assert not text.startswith(marked) and "reduction: ring" in text, "it was found for another reduction"


def test_one_rank_has_nothing_to_search(firetrain: Command, tmp_path: Path) -> None:
    few = ("--ranks-per-node", "1", "--set", "target.max_steps=2")
    done = firetrain("launch", *AUTO, *few)
    assert done.returncode == 0 and "2 steps" in done.stdout, done.stderr
    (path,) = (tmp_path / "results").iterdir()
    assert not Run.open(path).placement.exists()


def test_a_placement_file_that_is_data_parallel_has_the_bits_of_data_parallel_training(
    firetrain: Command, tmp_path: Path
) -> None:
    """It is trained by the same worker, with larger batches and without exchanges."""
    shown = (
        "strategy",
        "show",
        "data-parallel",
        "--model",
        "lenet",
        "--image-size",
        "28",
        "--ranks",
        "2",
        "--classes",
        "10",
    )
    done = firetrain(*shown, "--stem", "small", "--out", "whole.yaml")
    assert done.returncode == 0, done.stderr
    found = []
    for name in ("data-parallel", "whole.yaml"):
        words = (
            "--ranks-per-node",
            "2",
            "--set",
            f"strategy.name={name}",
            "--set",
            "reduction.name=ring",
            "--results",
            f"of-{name}",
        )
        done = firetrain("launch", *LENET, *words, "--set", "target.max_steps=4", "--set", "log.every_steps=1")
        assert done.returncode == 0, done.stderr
        (path,) = (tmp_path / f"of-{name}").iterdir()
        found.append(losses(Run.open(path)))
    assert found[0] == found[1] and len(found[0]) == 4


def test_a_placement_fits_only_what_it_was_searched_for(tmp_path: Path) -> None:
    layers = trace(model_by_name("lenet", classes=10, stem="small"), 28).layers
    world, path = World.even(1, 2), tmp_path / "found.yaml"
    placement = find_strategy("one-weird-trick")(layers, world)
    assert not placement.is_data_parallel and find_strategy("data-parallel")(layers, world).is_data_parallel
    searched = SearchedSection(
        model="lenet+small@28", images=32, world=(0, 0), reduction="tree", bucket_mib=2, step_ms=1, bound_ms=1, profile="x"
    )  # fmt: skip
    path.write_text(text(placement, searched))
    config = load_config("squeezenet-digits", ["model.name=lenet", "data.image_size=28"]).config
    assert fits(path, config, world) and not fits(path, config, World.even(2, 1))
    other = load_config("squeezenet-digits", ["model.name=lenet", "data.image_size=28", "reduction.name=ring"]).config
    assert not fits(path, other, world)
    path.write_text(text(placement, searched).replace("version: 1", "version: 2"))
    with pytest.raises(UserError, match=r"searched\.version: must be one of 1 \(got 2\)"):
        fits(path, config, world)
    path.write_text(text(placement))
    assert not fits(path, config, world), "it was not searched"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["strategy.name=auto"], "strategy.parameters.profile=FILE"),
        (["strategy.name=auto:profile=uncalibrated,stages=2"], "nothing else can be given"),
        (["strategy.name=auto:profile=none.json"], "none.json"),
        (["strategy.name=auto:profile=titan-k20"], "the profile has no steps of lenet+small@28"),
        (["strategy.name=auto:profile=uncalibrated", "compile=true"], "does not support compile: true"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_is_started(
    options: list[str], told: str, firetrain: Command, tmp_path: Path
) -> None:
    done = firetrain("launch", *LENET, "--ranks-per-node", "2", *(word for one in options for word in ("--set", one)))
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "results").exists()


def test_other_commands_say_how_to_get_the_placement() -> None:
    for command in ("auto:profile=uncalibrated", "auto"):
        with pytest.raises(UserError, match="firetrain search --out FILE writes the placement"):
            find_strategy(command)


def test_the_profile_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.json").touch()
    strategy = load_config("quickstart", ["strategy.name=auto:profile=mine.json"]).config.strategy
    assert strategy.profile == str(tmp_path / "mine.json")
    assert load_config("quickstart", ["strategy.name=auto:profile=titan-k20"]).config.strategy.profile == "titan-k20"
    assert load_config("quickstart").config.strategy.profile is None
