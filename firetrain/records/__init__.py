"""What a run leaves behind: written while it goes on, read by everything that tells of it."""

from firetrain.records.run import ATTEMPT_BEGAN, CANCELLED, COMPLETED, FAILED, RUNNING, STOPPED, SUBMITTED, Run

__all__ = ["ATTEMPT_BEGAN", "CANCELLED", "COMPLETED", "FAILED", "RUNNING", "STOPPED", "SUBMITTED", "Run"]
