"""Checkpoints: everything a run needs to go on, written whole or not at all."""

from firetrain.checkpoint.store import load, newest, newest_step, save

__all__ = ["load", "newest", "newest_step", "save"]
