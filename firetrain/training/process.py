"""The end of a rank's process: its exit code and its error message."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import torch

from firetrain.errors import FiretrainError


def leave(code: int = 0) -> NoReturn:
    """End the process with this exit code, without shutting down the interpreter.

    Threads that wait for lost peers would block the shutdown. A library's thread that releases a tensor during the shutdown ends
    the process with SIGABRT ("terminate called without an active exception", seen after a clean run).
    """
    with suppress(OSError):  # the disk may be full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def fail(error: BaseException, debug: bool) -> NoReturn:
    """Print the error, with a traceback if it is unexpected or with `debug`, and end the process with its exit code."""
    if isinstance(error, torch.OutOfMemoryError):
        text = str(error).partition(". ")[0]
        error = FiretrainError(
            f"{text}. Lower batch.per_rank_max, which splits a rank's images into smaller micro-batches"
        )
    known = isinstance(error, FiretrainError)
    with suppress(OSError):
        if not known or debug:
            traceback.print_exception(error)
        if known:
            print(f"firetrain: {error}", file=sys.stderr)
    leave(error.exit_code if isinstance(error, FiretrainError) else 1)
