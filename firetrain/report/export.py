"""Export runs for other programs: MLPerf logs, TensorBoard event files, CSV tables."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from firetrain.errors import CannotCreate, UserError
from firetrain.records.file import write_whole
from firetrain.records.parts import EVALUATION, QUEUE, STARTUP
from firetrain.records.scalars import scalars
from firetrain.report.history import History


def export(histories: Sequence[History], form: str, folder: Path) -> Iterator[Path]:
    """Write each run into `folder`; `form`: mlperf, tensorboard or csv.

    CannotCreate if that fails, UserError if the package that it needs is missing.
    """
    write = {"mlperf": _mlperf, "tensorboard": _tensorboard, "csv": _csv}[form]
    common = Path(os.path.commonpath([history.run.path.parent for history in histories]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for history in histories:
            # trials of a comparison in different worlds have the same names
            yield write(history, folder / "-".join(history.run.path.relative_to(common).parts))
    except OSError as error:
        raise CannotCreate(f"cannot write into {folder}: {error.strerror}") from None


def mllog(history: History) -> Iterator[str]:
    """Lines in MLPerf's log format (`:::MLLOG` and JSON). They are not an MLPerf result, which needs a review by MLCommons."""
    summary = history.summary
    began = datetime.fromisoformat(history.facts["created"]).timestamp()
    first = history.evaluations[0] if history.evaluations else {}
    started = began + first.get(f"total_{QUEUE.key}", 0.0) + first.get(f"total_{STARTUP.key}", 0.0)

    def line(kind: str, key: str, value: Any, at_s: float, **metadata: Any) -> str:
        event = {
            "namespace": "", "time_ms": round(1e3 * at_s), "event_type": kind, "key": key, "value": value,
            "metadata": {"file": "metrics.jsonl", "lineno": 1, **metadata},
        }  # fmt: skip
        return f":::MLLOG {json.dumps(event)}"

    def point(key: str, value: Any, at_s: float = started, **metadata: Any) -> str:
        return line("POINT_IN_TIME", key, value, at_s, **metadata)

    yield point("cache_clear", True, began)
    yield line("INTERVAL_START", "init_start", None, began)
    yield from (point(key, value, began) for key, value in _facts(history))
    yield line("INTERVAL_END", "init_stop", None, started)
    yield line("INTERVAL_START", "run_start", None, started)
    epoch, before = 0, started
    for row in history.evaluations:
        stop = started + row["elapsed_s"]
        where = {"first_epoch_num": epoch + 1, "epoch_count": row["epoch"] - epoch}
        yield line("INTERVAL_START", "block_start", None, before, **where)
        yield line("INTERVAL_END", "block_stop", None, stop - row.get(EVALUATION.key, 0.0), **where)
        yield line("INTERVAL_START", "eval_start", None, stop - row.get(EVALUATION.key, 0.0), epoch_num=row["epoch"])
        yield point("eval_accuracy", row["top1"], stop, epoch_num=row["epoch"])
        yield line("INTERVAL_END", "eval_stop", None, stop, epoch_num=row["epoch"])
        epoch, before = row["epoch"], stop
        if row is history.hit:
            break
    status = "success" if history.hit else "aborted"
    last = history.hit or (history.evaluations[-1] if history.evaluations else {"elapsed_s": 0.0})
    end = started + last["elapsed_s"]
    yield line("INTERVAL_END", "run_stop", None, end, status=status)
    yield point("train_samples", summary.get("images", 0) // max(1, summary.get("epochs", 1)), end)
    yield point("eval_samples", first.get("images", 0), end)


def _facts(history: History) -> Iterator[tuple[str, Any]]:
    config = history.config
    yield "submission_benchmark", config.model.name
    yield "submission_division", "open"
    yield "submission_org", "firetrain"
    yield "submission_platform", str((history.facts.get("machine") or {}).get("processor", "unknown"))
    yield "submission_status", "research"
    yield "seed", config.seed
    yield "global_batch_size", config.batch.global_size
    share = -(-config.batch.global_size // history.ranks)
    yield "gradient_accumulation_steps", -(-share // (config.batch.per_rank_max or share))
    yield "opt_name", config.optimizer.name
    prefix = "lars_opt" if config.optimizer.name == "lars" else "opt"
    yield f"{prefix}_base_learning_rate", config.peak_rate
    yield f"{prefix}_learning_rate_warmup_epochs", config.learning_rate.warmup_epochs
    yield f"{prefix}_momentum", config.optimizer.momentum
    yield f"{prefix}_weight_decay", config.optimizer.weight_decay


def _mlperf(history: History, stem: Path) -> Path:
    path = stem.with_name(f"{stem.name}.mllog.txt")
    write_whole(path, "".join(f"{line}\n" for line in mllog(history)), kind=CannotCreate)
    return path


def _csv(history: History, stem: Path) -> Path:
    path = stem.with_name(f"{stem.name}.csv")
    rows = history.run.metrics()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue(), kind=CannotCreate)
    return path


def _tensorboard(history: History, path: Path) -> Path:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise UserError(
            "--export tensorboard needs the package tensorboard: pip install 'firetrain[tensorboard]'"
        ) from None
    writer = EventFileWriter(str(path))
    began = datetime.fromisoformat(history.facts["created"]).timestamp()
    for row in history.run.metrics():
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row)]
        if values:
            wall = began + row.get("elapsed_s", 0.0)
            writer.add_event(Event(wall_time=wall, step=row["step"], summary=Summary(value=values)))
    writer.close()
    return path
