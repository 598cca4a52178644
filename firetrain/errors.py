"""What can go wrong, and the exit code each kind of failure ends with.

Exit codes: 1 failed, 2 the user's input, and from sysexits.h 69 (not available), 73 (cannot create), 74 (cannot write).
"""

from __future__ import annotations

from collections.abc import Iterable


class FiretrainError(Exception):
    """A failure that firetrain can explain; its text is all that the user is shown."""

    exit_code = 1


class UserError(FiretrainError):
    """The user's input is wrong: told in full, nothing was started."""

    exit_code = 2


class LostPeer(FiretrainError):
    """Another rank is gone or silent. The cause is elsewhere: who judges a run looks at the other ranks first."""

    exit_code = 69


class CannotCreate(FiretrainError):
    """A file or folder could not be made."""

    exit_code = 73


class CannotWrite(FiretrainError):
    """What was to be kept could not be written: a full disk, a quota. What was written before is still there."""

    exit_code = 74


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` was probably meant to be."""
    from difflib import get_close_matches  # most commands make no mistake

    close = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return close[0] if close else None


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """One line for a name that does not exist: what was meant, perhaps, and what does exist."""
    names = sorted(valid)
    meant = nearest(name, names)
    hint = f", did you mean {meant}?" if meant else ""
    return f"unknown {kind} {name!r}{hint} (valid: {', '.join(names) or 'none'})"
