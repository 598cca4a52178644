"""Ends all ranks together if one of them was asked to stop, or if rank 0 could not write something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from firetrain.errors import CannotWrite
from firetrain.records import Run
from firetrain.training.checkpoints import Checkpoints
from firetrain.training.ledger import Ledger
from firetrain.transport.transport import Transport


class Stopped(Exception):
    """The run ended early on request; it can be resumed from its newest checkpoint."""


class Stop:
    """The collective decision of the ranks whether to stop. `marks`: files whose presence asks for a stop."""

    def __init__(
        self, record: Run, transport: Transport, ledger: Ledger, checkpoints: Checkpoints, marks: Sequence[Path]
    ) -> None:
        self._record, self._transport, self._ledger = record, transport, ledger
        self._checkpoints, self._marks = checkpoints, marks
        self._asked = False

    def ask(self) -> None:
        """Ask all ranks to save a checkpoint and end after one of the next steps."""
        self._asked = True

    def agreed(self) -> bool:
        """Whether any rank was asked to stop. Collective. CannotWrite on all ranks if rank 0 could not write something."""
        marked = self._transport.rank == 0 and any(mark.exists() for mark in self._marks)
        return self._agree(self._asked or marked)

    def refuse_unwritten(self) -> None:
        """Wait for all ranks; CannotWrite on all of them if rank 0 could not write something."""
        self._agree(False)

    def _agree(self, asked: bool) -> bool:
        own = [float(asked), float(self._ledger.failure is not None)]
        stop, failed = self._transport.sum(torch.tensor(own, device=self._transport.device)).tolist()
        if failed:
            raise CannotWrite(self._transport.broadcast_object(self._unwritten()))
        return bool(stop)

    def _unwritten(self) -> str:
        """The error message of rank 0: what could not be written, which checkpoint is intact, and how to resume."""
        if self._ledger.failure is None:
            return ""
        return (
            f"{self._ledger.failure}; {self._checkpoints.safe()}. All ranks ended after step {self._ledger.step}. Free some "
            f"space, then resume with {self._record.resume_command}"
        )
