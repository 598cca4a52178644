"""The kinds of failures, and their exit codes.

Exit codes: 1 (failed), 2 (invalid user input), and from sysexits.h 69 (not available), 73 (cannot create), 74 (cannot write).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_CPU_ALLOCATION = re.compile(r"DefaultCPUAllocator: .*tried to allocate (\d+) bytes")
_LONGEST_WORD, _SHOWN_CHARACTERS = 600, 100
# of ASCII and Latin-1, without tab and newline
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class FiretrainError(Exception):
    """A failure that firetrain can explain; only its text is printed."""

    exit_code = 1


class UserError(FiretrainError):
    """Invalid user input. All mistakes are reported, and nothing was started."""

    exit_code = 2


class LostPeer(FiretrainError):
    """Another rank died or stopped responding. Failures of other ranks take precedence, because the cause is there."""

    exit_code = 69


class CannotCreate(FiretrainError):
    """A file or folder could not be created."""

    exit_code = 73


class CannotWrite(FiretrainError):
    """A file could not be written, because of a full disk or a quota. Older files are unchanged."""

    exit_code = 74


def out_of_memory(error: BaseException) -> str:
    """What an error of torch or Python says about memory that could not be allocated; empty for any other error.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12884901888 bytes."))
    'out of memory: 12.9 GB more could not be allocated'
    """
    text = str(error)
    if isinstance(error, RuntimeError) and (found := _CPU_ALLOCATION.search(text)):
        return f"out of memory: {int(found[1]) / 1e9:,.1f} GB more could not be allocated"
    if isinstance(error, MemoryError):
        return f"out of memory: {text}" if text else "out of memory"
    # torch's class, without importing torch
    return text.partition(". ")[0] if type(error).__name__ == "OutOfMemoryError" else ""


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is most similar to `name`; None if none is similar."""
    from difflib import get_close_matches  # imported here: most commands never need it

    close = get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return close[0] if close else None


def shortened(message: str) -> str:
    """A message in which no word is longer than any path that a person would type: the rest of a longer one is counted.

    Control characters, which a terminal would obey, are escaped.

    >>> shortened("unknown config " + "x" * 5000)[-60:]
    'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (4,900 more characters)'
    >>> print(shortened("nothing at data\\x1b[2J"))
    nothing at data\\x1b[2J
    """
    message = _CONTROL_CHARACTER.sub(lambda found: repr(found[0])[1:-1], message)
    return re.sub(
        rf"(\S{{{_SHOWN_CHARACTERS}}})(\S{{{_LONGEST_WORD - _SHOWN_CHARACTERS},}})",
        lambda found: f"{found[1]}... ({len(found[2]):,} more characters)",
        message,
    )


def control_character(text: str) -> str:
    """The first control character of a text, escaped; empty if there is none. A terminal would obey it.

    >>> print(control_character("data\\x1b[2J"))
    \\x1b
    """
    found = _CONTROL_CHARACTER.search(text)
    return repr(found[0])[1:-1] if found else ""


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message for an unknown name, with the most similar name and all valid ones."""
    names = sorted(valid)
    meant = nearest(name, names)
    hint = f", did you mean {meant}?" if meant else ""
    return f"unknown {kind} {name!r}{hint} (valid: {', '.join(names) or 'none'})"
