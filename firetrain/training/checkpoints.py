"""When a run saves checkpoints, and from which checkpoint it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firetrain import checkpoint
from firetrain.checkpoint.store import set_aside
from firetrain.config.sections.checkpoint import CheckpointSection
from firetrain.records import Run
from firetrain.training.ledger import Ledger
from firetrain.transport.transport import Transport


class Checkpoints:
    """The checkpoints of a run, which rank 0 writes and all ranks read.

    - `path`: the file from which this attempt goes on, if there is one.
    """

    def __init__(self, section: CheckpointSection, record: Run, transport: Transport) -> None:
        self._section, self._transport = section, transport
        self._folder = record.path / "checkpoints"
        self._saved = 0
        self.path: Path | None = None

    def newest(self) -> dict[str, Any]:
        """The newest checkpoint that rank 0 can read, from which the run goes on; empty if there is none."""
        path, wrong = checkpoint.newest(self._folder) if self._transport.rank == 0 else (None, [])
        for text in wrong:
            print(f"skipped checkpoint: {text}", flush=True)
        if wrong:
            set_aside(self._folder, path)
        self.path = self._transport.broadcast_object(path)
        if self.path is None:
            return {}
        state = checkpoint.load(self.path)
        self._saved = state["clocks"]["step"]
        return state

    def due_within(self, step: int) -> bool:
        """Whether to save a checkpoint after a step that does not end an epoch."""
        every = self._section.every_steps
        return bool(every and step % every == 0)

    def due(self, epoch: int, step: int, *, last: bool) -> bool:
        """Whether to save a checkpoint at the end of an epoch, or of the run (`last`)."""
        every = self._section.every_epochs
        at_end = last and (every or self._section.every_steps)
        return bool(at_end or (every and epoch % every == 0) or self.due_within(step))

    def save(self, ledger: Ledger, state: dict[str, Any], *, last: bool = False) -> None:
        """Write `state` after the ledger's step, unless that step is already saved; a failure is recorded in the ledger."""
        if self._transport.rank == 0 and self._saved != ledger.step:
            with ledger.checkpoint(last), ledger.writing():
                content = {"clocks": ledger.state(), **state}
                checkpoint.save(self._folder, ledger.step, content, self._section.keep)
        self._saved = ledger.step

    def safe(self) -> str:
        """Text for messages: which checkpoint is intact. Rank 0 only."""
        saved = checkpoint.newest_step(self._folder)
        return f"the checkpoint after step {saved} is complete" if saved is not None else "there is no checkpoint yet"
