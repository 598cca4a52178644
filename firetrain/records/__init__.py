"""The records of runs: written during a run, and read by all reports."""

from firetrain.records.profile import Profile
from firetrain.records.run import ATTEMPT_BEGAN, CANCELLED, COMPLETED, FAILED, RUNNING, STOPPED, SUBMITTED, Run

__all__ = ["ATTEMPT_BEGAN", "CANCELLED", "COMPLETED", "FAILED", "RUNNING", "STOPPED", "SUBMITTED", "Profile", "Run"]
