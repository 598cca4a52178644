"""A checkpoint exists completely or not at all, whatever happens while it is written."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from ranks import processes

from firetrain.checkpoint import load, newest, newest_model, save
from firetrain.checkpoint.store import set_aside
from firetrain.errors import CannotWrite, FiretrainError, UserError


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": torch.full((1000,), float(step))}


def test_what_was_saved_is_loaded_and_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 99_999_999):
        save(tmp_path, step, state(step), keep=2)
    assert sorted(path.name[:13] for path in tmp_path.iterdir()) == ["step-00000010", "step-99999999"]
    path, wrong = newest(tmp_path)
    assert path and not wrong and load(path)["step"] == 99_999_999
    assert newest(tmp_path / "nothing") == (None, [])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [flip, lambda path: path.write_bytes(path.read_bytes()[:-10]), lambda path: path.write_bytes(b"")]
)
def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    kept, damaged = (save(tmp_path, step, state(step), keep=2) for step in (5, 10))
    damage(damaged)
    with pytest.raises(FiretrainError, match="damaged"):
        load(damaged)
    path, wrong = newest(tmp_path)
    assert path == kept and len(wrong) == 1 and str(damaged) in wrong[0]
    assert damaged.exists()  # readers change nothing
    set_aside(tmp_path, path)
    assert not damaged.exists() and damaged.with_suffix(".damaged").exists()
    # it does not count for `keep`
    save(tmp_path, 15, state(15), keep=2)
    assert kept.exists()


def test_weights_are_those_of_the_newest_intact_one_and_the_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        save(tmp_path / "checkpoints", step, {"model": {"w": torch.ones(step)}}, keep=2) for step in (5, 10)
    )
    flip(second)
    for _ in range(2):  # the second time as the first
        assert len(newest_model(tmp_path)["w"]) == 5
        assert f"skipped checkpoint: {second}: damaged" in (told := capsys.readouterr().err)
        assert "the one after step 5 is used" in told
    flip(first)
    with pytest.raises(UserError, match=f"no readable checkpoint: {second}: damaged.*; {first}: damaged"):
        newest_model(tmp_path)
    set_aside(tmp_path / "checkpoints", None)
    with pytest.raises(UserError, match="no readable checkpoint: .*step-00000005-.*was damaged"):
        newest_model(tmp_path)
    with pytest.raises(UserError, match="has no checkpoint: checkpoint.every_epochs and"):
        newest_model(tmp_path / "nothing")


def test_a_link_to_nothing_is_named_like_a_damaged_one(tmp_path: Path) -> None:
    kept = save(tmp_path, 5, state(5), keep=2)
    (tmp_path / "step-00000010-00000000.pt").symlink_to(tmp_path / "nothing")
    path, wrong = newest(tmp_path)
    assert path == kept and len(wrong) == 1 and "step-00000010-00000000.pt: cannot be read" in wrong[0]


def test_code_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"model": Path("anything")}, keep=2)
    with pytest.raises(FiretrainError, match="not a readable checkpoint"):
        load(path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match="cannot write .*file/checkpoints: Not a directory"):
        save(tmp_path / "file" / "checkpoints", 1, state(1), keep=2)


def write(folder: Path, step: int, said: Connection) -> None:
    """Save checkpoints in a loop, and report each one after it was saved."""
    said.send(step)
    while True:
        step += 1
        save(folder, step, {"step": step, "weights": torch.full((200_000,), float(step))}, keep=2)
        said.send(step)


def test_twenty_kills_while_writing_lose_nothing_that_was_said_to_be_there(tmp_path: Path) -> None:
    said, draw = 0, random.Random(1)
    for _ in range(20):
        ours, theirs = processes.Pipe()
        writer = processes.Process(target=write, args=(tmp_path, said, theirs), daemon=True)
        writer.start()
        theirs.close()
        assert ours.recv() == said and ours.poll(60)
        said = ours.recv()
        time.sleep(draw.uniform(0.0, 0.05))
        writer.kill()
        writer.join()
        with suppress(EOFError, ConnectionResetError):
            while ours.poll():
                said = ours.recv()
        path, wrong = newest(tmp_path)
        assert not wrong
        if path is None:
            assert said == 0
            continue
        found = load(path)
        assert found["step"] >= said and torch.equal(found["weights"], torch.full((200_000,), float(found["step"])))
        said = found["step"]
    assert said >= 20
    assert len(list(tmp_path.glob("*.pt"))) <= 3
