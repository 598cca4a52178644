"""Programs that track experiments: rank 0 sends them the curves of a run while it trains."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from firetrain.config import Config
from firetrain.records import Run
from firetrain.records.file import write_whole
from firetrain.records.scalars import scalars

# how long the end of a run waits for a tracker that is slow or does not answer
_LONGEST_WAIT_S = 20.0
_END = object()


class Tracker(Protocol):
    """A program that tracks experiments. Calls may take long, or fail in any way."""

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each of these curves."""

    def close(self) -> None:
        """Send what is left, and end."""


class Trackers:
    """Sends the metrics of a run to trackers, each from a thread of its own, so that training never waits for one.

    A tracker that fails is told once by `warn`, and gets nothing more; training goes on.
    """

    def __init__(self, names: Sequence[str], run: Run, config: Config, step: int, warn: Callable[[str], None]) -> None:
        self._feeds = [_Feed(name, partial(_MAKERS[name], run, config, step)) for name in names]
        self._warn = warn

    def record(self, row: Mapping[str, Any]) -> None:
        """Send a line of metrics."""
        if values := dict(scalars(row)):
            for feed in self._feeds:
                feed.put((row["step"], values))
            self._tell()

    def close(self) -> None:
        """Wait, but not for long, until all has been sent."""
        deadline_s = time.monotonic() + _LONGEST_WAIT_S
        for feed in self._feeds:
            feed.put(_END)
        for feed in self._feeds:
            feed.wait(max(0.0, deadline_s - time.monotonic()))
        self._tell()

    def _tell(self) -> None:
        for feed in self._feeds:
            for text in feed.news():
                self._warn(text)


class _Feed:
    """A thread that makes a tracker and feeds it, until the end or the first failure."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name, self._make = name, make
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wrong: queue.SimpleQueue[str] = queue.SimpleQueue()
        # a daemon, because a tracker that does not answer must not keep the process
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, line: Any) -> None:
        if self._thread.is_alive():
            self._lines.put(line)

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._wrong.put(f"{self._name} has not answered: its curves may lack the end")

    def news(self) -> Iterator[str]:
        while not self._wrong.empty():
            yield self._wrong.get()

    def _run(self) -> None:
        try:
            tracker = self._make()
            while (line := self._lines.get()) is not _END:
                tracker.record(*line)
            tracker.close()
        except ImportError as error:
            extra = f"pip install 'firetrain[{self._name}]'"
            self._wrong.put(f"log.to: {self._name} cannot be imported ({error}): {extra}; the run is not tracked there")
        except BaseException as error:  # trackers end their threads in many ways
            reason = " ".join(str(error).split()) or type(error).__name__
            self._wrong.put(f"{self._name} failed and gets nothing more: {reason[:300]}")


class _TensorBoard:
    """Event files in the run's folder `tensorboard`; a later attempt replaces the curves from its first step on."""

    def __init__(self, run: Run, config: Config, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(run.path / "tensorboard"))
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def record(self, step: int, values: Mapping[str, float]) -> None:
        points = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=points)))

    def close(self) -> None:
        self._writer.close()


class _WandB:
    """Weights & Biases: the run's name is the id, under which later attempts go on. Its own variables say where and how."""

    def __init__(self, run: Run, config: Config, step: int) -> None:
        import wandb

        self._run = wandb.init(
            project=config.name, name=run.name, id=re.sub(r"[^A-Za-z0-9._-]", "-", run.name)[-64:], resume="allow",
            dir=str(run.path), config=config.model_dump(mode="json"), settings=wandb.Settings(silent=True),
        )  # fmt: skip
        # a step of ours: repeated ones would be refused as a step of theirs
        self._run.define_metric("*", step_metric="step")

    def record(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    """MLflow: an experiment with the config's name. The run's folder keeps the id, under which later attempts go on."""

    def __init__(self, run: Run, config: Config, step: int) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric, self._client, kept = Metric, MlflowClient(), run.path / "mlflow.id"
        if kept.exists():
            self._id = kept.read_text().strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(config.name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(config.name)
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        write_whole(kept, f"{self._id}\n")
        for section, values in config.model_dump(mode="json").items():
            for key, value in values.items() if isinstance(values, dict) else [("", values)]:
                self._client.log_param(self._id, f"{section}.{key}".rstrip("."), str(value)[:500])

    def record(self, step: int, values: Mapping[str, float]) -> None:
        now_ms = int(1e3 * time.time())
        points = [self._metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=points)

    def close(self) -> None:
        self._client.set_terminated(self._id)


_MAKERS: dict[str, Callable[[Run, Config, int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}
