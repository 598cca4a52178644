"""The end of a rank's process: its exit code and its error message."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from firetrain.errors import FiretrainError, out_of_memory

LESS_MEMORY = "Lower batch.per_rank_max, which splits a rank's images into smaller micro-batches"


def leave(code: int = 0) -> NoReturn:
    """End the process with this exit code, without shutting down the interpreter.

    Threads that wait for lost peers would block the shutdown. A library's thread that releases a tensor during the shutdown ends
    the process with SIGABRT ("terminate called without an active exception", seen after a clean run).
    """
    with suppress(OSError):  # the disk may be full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def fail(error: BaseException, debug: bool, advice: str = LESS_MEMORY) -> NoReturn:
    """Print the error, with a traceback if it is unexpected or with `debug`, and end the process with its exit code.

    `advice`: what to do if memory was exhausted.
    """
    text = f"{exhausted}. {advice}" if (exhausted := out_of_memory(error)) else str(error)
    known = bool(exhausted) or isinstance(error, FiretrainError)
    with suppress(OSError):
        if not known or debug:
            traceback.print_exception(error)
        if known:
            print(f"firetrain: {text}", file=sys.stderr)
    leave(error.exit_code if isinstance(error, FiretrainError) else 1)
