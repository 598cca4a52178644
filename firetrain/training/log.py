"""What a run says: lines on rank 0's output, and warnings that its record keeps."""

from __future__ import annotations

from contextlib import suppress

from firetrain.records import Run
from firetrain.training.ledger import Ledger
from firetrain.transport.transport import Transport


class Log:
    """Prints on rank 0 only; all ranks may call it."""

    def __init__(self, transport: Transport, record: Run, ledger: Ledger) -> None:
        self._first, self._record, self._ledger = transport.rank == 0, record, ledger

    def say(self, text: str) -> None:
        """Print a line."""
        if self._first:
            with suppress(OSError):  # training continues if the output cannot be written
                print(text, flush=True)

    def warn(self, warning: str) -> None:
        """Print a warning, and add it to the run's record."""
        self.say(f"warning: {warning}")
        if self._first:
            with self._ledger.writing():
                self._record.update(warnings=[*self._record.facts().get("warnings", []), warning])
