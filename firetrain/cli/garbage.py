"""How often Python looks for garbage in cycles. Commands make many objects that stay, and hardly any cycles."""

from __future__ import annotations

import atexit
import gc

_USUAL = gc.get_threshold()
_RARELY = 20_000, 10, 10  # objects, collections, collections; as gc.set_threshold has them


def collect_rarely() -> None:
    """Look through objects rarely, and not once more at the end of the process: what is then in a cycle is not finalised.

    Saves a fifth of the processor time of commands that load torch (results/LOG.md).
    """
    gc.set_threshold(*_RARELY)
    atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Before a model computes, when torch is loaded: look through new objects as often as Python does.

    Cycles of a user's model may hold tensors.
    """
    gc.freeze()
    gc.set_threshold(*_USUAL)
