"""Checkpoints: everything a run needs to go on, written whole or not at all."""

from firetrain.checkpoint.store import load, newest, save

__all__ = ["load", "newest", "save"]
