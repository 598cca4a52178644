"""A config gives the same training for any number of ranks."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks
from torch import Tensor
from trained import create, train

from firetrain.checkpoint import load, newest
from firetrain.config import load_config
from firetrain.records import Run
from firetrain.training.divergence import Diverged
from firetrain.training.setup import set_up
from firetrain.training.stop import Stopped
from firetrain.transport.checksum import checksum
from firetrain.transport.transport import Transport

REDUCTIONS = ("native", "ring", "tree", "hierarchical", "parameter-server")


def several(transport: Transport, folder: str, variants: list[list[str]]) -> list[dict[str, Any]]:
    return [train(transport, folder, overrides) for overrides in variants]


def test_losses_are_the_same_for_any_number_of_ranks_and_any_reduction(tmp_path: Path) -> None:
    common = ["target.max_steps=8", "batch.global_size=30", "reduction.checksum_every_steps=1"]
    variants = [[*common, f"reduction.name={name}"] for name in REDUCTIONS]
    alone = on_ranks(1, several, str(tmp_path), variants[:1])[0][0]["losses"]
    # of the first steps; tests/reduction/test_gradients.py compares gradients of a trained model
    assert len(alone) == 8 and alone[-1] != alone[0]
    for ranks in (2, 3, 4):
        for name, result in zip(REDUCTIONS, on_ranks(ranks, several, str(tmp_path), variants, nodes=2)[0], strict=True):
            assert result["losses"] == pytest.approx(alone, rel=1e-4), f"{name} on {ranks} ranks"


def test_accumulation_and_threads_do_not_change_the_losses(tmp_path: Path) -> None:
    common = ["target.max_steps=5"]
    variants = [common, [*common, "batch.per_rank_max=3"], [*common, "data.threads=3"]]
    plain, accumulated, threaded = (r["losses"] for r in on_ranks(2, several, str(tmp_path), variants)[0])
    assert accumulated == pytest.approx(plain, rel=1e-4)
    assert threaded == plain


def test_bfloat16_learns_with_float32_parameters(tmp_path: Path) -> None:
    variants = [
        ["target.max_steps=40", "precision=bfloat16", "target.top1=null"],
        ["target.max_steps=40", "target.top1=null"],
    ]
    half, full = on_ranks(1, several, str(tmp_path), variants)[0]
    assert np.mean(half["losses"][-5:]) < 0.95 * half["losses"][0]
    assert np.mean(half["losses"][-5:]) == pytest.approx(np.mean(full["losses"][-5:]), rel=0.02)
    assert half["losses"][:5] == pytest.approx(full["losses"][:5], rel=0.02) and half["losses"] != full["losses"]


def compiled(transport: Transport, folder: str) -> list[dict[str, Any]]:
    overrides = [
        "data.name=synthetic",
        "data.root=null",
        "data.images=64",
        "target.max_steps=3",
        "target.top1=null",
        "batch.global_size=16",
    ]
    return [train(transport, folder, [*overrides, f"compile={flag}"], "lenet-mnist") for flag in ("false", "true")]


def test_a_compiled_model_trains_like_the_plain_one_and_compiles_before_the_clock_starts(tmp_path: Path) -> None:
    plain, fast = on_ranks(1, compiled, str(tmp_path), limit_s=400)[0]
    assert fast["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert fast["startup_s"] > fast["elapsed_s"]


def diverged(transport: Transport, folder: str, overrides: list[str]) -> tuple[str, list[str]]:
    """A rank's error when it diverges, and the existing checkpoints."""
    try:
        train(transport, folder, overrides)
    except Diverged as error:
        return str(error), sorted(path.name for path in Path(folder).glob("*/checkpoints/*.pt"))
    return "", []


def test_a_run_that_diverges_stops_on_all_ranks_at_that_step_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    overrides = [
        "learning_rate.base=100",
        "learning_rate.warmup_epochs=0",
        "target.max_steps=60",
        "checkpoint.every_steps=1",
    ]
    told = on_ranks(2, diverged, str(tmp_path), overrides)
    assert told[0] == told[1]
    text, kept = told[0]
    found = re.search(r"diverged at step (\d+): the loss is .*learning rate \d.*warmup_epochs.*lars", text)
    assert found, text
    assert kept and kept[-1].startswith(f"step-{int(found[1]) - 1:08}"), "the last one before it"


def test_a_nan_on_one_rank_stops_all(tmp_path: Path) -> None:
    told = on_ranks(2, poisoned, str(tmp_path))
    assert told[0] == told[1] and "diverged at step 2" in told[0]


def poisoned(transport: Transport, folder: str) -> str:
    """Set rank 1's weights to NaN before its second step."""
    loaded = load_config("squeezenet-digits", ["target.max_steps=5"])
    run = Run(Path(transport.broadcast_object(create(folder, loaded) if transport.rank == 0 else None)))
    training = set_up(loaded.config, transport, run)
    backward = training.worker.backward

    def spoiled(*arguments: Any) -> Tensor:
        if transport.rank == 1 and training.ledger.step == 1:
            next(training.worker.model.parameters()).data.fill_(float("nan"))
        return backward(*arguments)

    training.worker.backward = spoiled  # type: ignore[method-assign]
    try:
        training.run()
    except Diverged as error:
        return str(error)
    return ""


def test_the_summary_s_parts_sum_to_the_whole_and_the_target_is_honoured(tmp_path: Path) -> None:
    result = on_ranks(
        2, train, str(tmp_path), ["target.top1=0.12", "target.max_epochs=6", "checkpoint.every_epochs=1"]
    )[0]
    assert result["reached"] and result["top1"] >= 0.12
    assert result["time_to_accuracy_s"] == result["elapsed_s"] and result["epochs_to_target"] == result["epochs"]
    parts = result["opening_s"] + result["train_s"] + result["evaluation_s"] + result["checkpoint_s"]
    assert parts == pytest.approx(result["elapsed_s"])
    in_steps = sum(result[f"{part}_s"] for part in ("data", "compute", "exposed_communication"))
    run = Run.open(Path(result["path"]))
    steps = [row["step_s"] for row in run.metrics("step")]
    assert len(steps) == result["steps"] and sum(steps) == pytest.approx(in_steps) and in_steps <= result["train_s"]
    evaluations = list(run.metrics("evaluation"))
    assert [row["epoch"] for row in evaluations] == list(range(1, result["epochs"] + 1))
    assert all(row["top1"] < 0.12 for row in evaluations[:-1])
    assert result["images"] == 1437 * result["epochs"] and result["steps"] == 45 * result["epochs"]
    path, wrong = newest(run.path / "checkpoints")
    saved = load(path)
    assert not wrong and saved["clocks"]["step"] == result["steps"] and "features.0.weight" in saved["model"]


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    overrides = [
        "target.max_epochs=4",
        "checkpoint.every_epochs=1",
        "checkpoint.keep=2",
        "batch.global_size=720",
        "target.top1=null",
    ]
    result = on_ranks(1, train, str(tmp_path), overrides)[0]
    names = sorted(path.name[:13] for path in (Path(result["path"]) / "checkpoints").iterdir())
    assert names == ["step-00000006", "step-00000008"]


def interrupted(transport: Transport, folder: str, overrides: list[str], stops: list[int]) -> list[Any]:
    """Stop a run after some steps, each time resuming it by a new Training; returns its digest, summary and lines."""
    loaded = load_config("squeezenet-digits", ["log.every_steps=1", *overrides])
    run = Run(Path(transport.broadcast_object(create(folder, loaded) if transport.rank == 0 else None)))
    for stop in [*stops, None]:
        training = set_up(loaded.config, transport, run)
        if stop is not None and transport.rank == transport.size - 1:  # any rank may get the request

            def count_and_ask(
                images: int, count: Any = training.ledger.count_step, training: Any = training, at: int = stop
            ) -> None:
                count(images)
                if training.ledger.step == at:
                    training.ask_to_stop()

            training.ledger.count_step = count_and_ask  # type: ignore[method-assign]
        with pytest.raises(Stopped) if stop is not None else nullcontext():
            training.run()
        training.close()
        transport.barrier()
    digest = checksum([p.detach() for p in training.worker.model.parameters()]).tolist()
    return [digest, run.summary(), run.metrics("step"), training.ledger.step]


REDUCED = ["target.max_epochs=2", "target.top1=null", "batch.global_size=240", "reduction.bucket_mib=1"]


def test_a_run_that_was_stopped_ends_with_the_same_bits_as_one_that_was_not(tmp_path: Path) -> None:
    whole = on_ranks(2, interrupted, str(tmp_path), REDUCED, [])[0]
    # in the middle of an epoch, before the last step of an epoch, and in the next epoch
    parted = on_ranks(2, interrupted, str(tmp_path), REDUCED, [2, 5, 8])[0]
    assert parted[0] == whole[0] and parted[3] == whole[3] == 12
    assert [row["loss"] for row in parted[2]] == [row["loss"] for row in whole[2]]
    assert parted[1]["images"] == whole[1]["images"] and parted[1]["restart_s"] > 0 == whole[1]["restart_s"]
    # another world has the same images in the same steps, so its losses differ only by rounding
    alone = on_ranks(1, interrupted, str(tmp_path), REDUCED, [5])[0]
    assert [row["loss"] for row in alone[2]] == pytest.approx([row["loss"] for row in whole[2]], rel=1e-3)


def test_steps_after_the_last_checkpoint_are_done_again_and_told_once(tmp_path: Path) -> None:
    path = on_ranks(1, lost_steps, str(tmp_path))[0]
    run = Run.open(Path(path))
    assert [row["step"] for row in run.metrics("step")] == list(range(1, 13))
    assert len([row for row in run.lines() if row["kind"] == "step"]) == 12 + 2  # steps 5 and 6 are recorded twice
    summary = run.summary()
    assert summary["lost_s"] > 0 and summary["images"] == 2 * 1437


def lost_steps(transport: Transport, folder: str) -> str:
    """A rank dies in step 7; the newest checkpoint is from step 4."""
    loaded = load_config("squeezenet-digits", ["log.every_steps=1", "checkpoint.every_steps=4", *REDUCED])
    run = Run(Path(create(folder, loaded)))
    first = set_up(loaded.config, transport, run)

    def die(images: int, count: Any = first.ledger.count_step) -> None:
        if first.ledger.step == 6:
            raise KeyboardInterrupt
        count(images)

    first.ledger.count_step = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.run()
    first.close()
    second = set_up(loaded.config, transport, run)
    second.run()
    second.close()
    return str(run.path)
