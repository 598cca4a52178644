"""Exports for other programs, read back by those programs."""

from __future__ import annotations

import csv
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import record

Firetrain = Callable[..., Any]


def test_mlperf_s_own_parser_reads_the_log(tmp_path: Path, firetrain: Firetrain) -> None:
    record(tmp_path / "results", directory="one", startup_s=7, queue_s=3)
    record(tmp_path / "results", directory="missed", top1=(0.2,))
    assert firetrain("report", "--export", "mlperf", "--into", "logs").returncode == 0
    from mlperf_logging.compliance_checker import mlp_parser

    logging.disable(logging.NOTSET)
    lines, errors = mlp_parser.parse_file(str(tmp_path / "logs" / "one.mllog.txt"), ruleset="4.0.0")
    assert not errors and len(lines) > 20
    at = {line.key: line.timestamp for line in lines}
    assert at["run_stop"] - at["run_start"] == 35_000, "milliseconds by MLPerf's clock"
    assert at["init_stop"] - at["init_start"] == 10_000
    accuracies = [line.value["value"] for line in lines if line.key == "eval_accuracy"]
    assert accuracies == [0.5, 0.9, 0.98]
    (stop,) = [line for line in lines if line.key == "run_stop"]
    assert stop.value["metadata"]["status"] == "success"
    missed, _ = mlp_parser.parse_file(str(tmp_path / "logs" / "missed.mllog.txt"), ruleset="4.0.0")
    assert [line.value["metadata"]["status"] for line in missed if line.key == "run_stop"] == ["aborted"]


def test_tensorboard_reads_its_event_files(tmp_path: Path, firetrain: Firetrain) -> None:
    run = record(tmp_path / "results", directory="one")
    assert firetrain("report", "--export", "tensorboard", "--into", "events").returncode == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "events" / "one"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("test/top1")]
    assert found == [(row["step"], pytest.approx(row["top1"])) for row in run.metrics("evaluation")]
    assert len(events.Scalars("train/loss")) == len(run.metrics("step"))


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    record(tmp_path / "results")
    code = "import sys; sys.modules['tensorboard.compat.proto.event_pb2'] = None; from firetrain.cli.main import main; main()"
    command = [sys.executable, "-c", code, "report", "--export", "tensorboard"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (
        done.returncode == 2
        and "pip install 'firetrain[tensorboard]'" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_a_spreadsheet_has_a_row_for_every_line(tmp_path: Path, firetrain: Firetrain) -> None:
    run = record(tmp_path / "results", directory="one")
    assert firetrain("report", "--export", "csv", "--into", "tables").stdout.split() == ["tables/one.csv"]
    with (tmp_path / "tables" / "one.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(run.metrics()) and [float(row["top1"]) for row in rows if row["top1"]] == [0.5, 0.9, 0.98]
