"""What a run says: lines on rank 0's output, warnings that its record keeps, and curves that trackers draw."""

from __future__ import annotations

from contextlib import suppress

from firetrain.config import Config
from firetrain.records import Run
from firetrain.training.ledger import Ledger
from firetrain.training.trackers import Trackers
from firetrain.transport.transport import Transport


class Log:
    """Prints on rank 0 only; all ranks may call it."""

    def __init__(self, transport: Transport, record: Run, ledger: Ledger) -> None:
        self._first, self._record, self._ledger = transport.rank == 0, record, ledger
        self._trackers: Trackers | None = None

    def track(self, config: Config) -> None:
        """Send what the ledger writes from now on to the trackers of the config."""
        if self._first and config.log.to:
            self._trackers = Trackers(config.log.to, self._record, config, self._ledger.step, self.warn)
            self._ledger.listeners.append(self._trackers.record)

    def close(self) -> None:
        """End the trackers."""
        if self._trackers:
            self._trackers.close()

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
