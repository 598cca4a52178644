"""Checkpoints: the complete state that a run needs to resume, written completely or not at all."""

from firetrain.checkpoint.store import load, newest, newest_model, newest_step, save

__all__ = ["load", "newest", "newest_model", "newest_step", "save"]
