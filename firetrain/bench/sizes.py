"""Sizes as users write them: 65536, 64KiB, 27MB, or 4KiB:64MiB for a range in steps of a factor of four."""

from __future__ import annotations

import re

from firetrain.errors import UserError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_FACTOR = 4
_FLOAT32_BYTES = 4
_MOST_BYTES = 64 << 30
# what a rank needs at least to verify and time a sum, in terms of its size: the bucket, whole and real numbers in float32, and
# their sum in float64
VERIFIED_TIMES = 5


def parse_sizes(text: str) -> list[int]:
    """The sizes in bytes, each a multiple of 4, the size of a float32; UserError for text that cannot be read."""
    sizes = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        size = _bytes(first)
        most = _bytes(last) if colon else size
        if most < size:
            raise UserError(f"the sizes of a range rise: write {last}:{first} (got {part!r})")
        while size <= most:
            sizes.append(size)
            size *= _FACTOR
    return sizes


def tell_size(size_bytes: int) -> str:
    """A size in the largest unit that gives a whole number (64 KiB, 27 MB), otherwise in bytes."""
    for unit in ("GiB", "MiB", "KiB", "GB", "MB", "KB"):
        if size_bytes >= _UNITS[unit.upper()] and size_bytes % _UNITS[unit.upper()] == 0:
            return f"{size_bytes // _UNITS[unit.upper()]} {unit}"
    return f"{size_bytes} B"


def _bytes(text: str) -> int:
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise UserError(f"cannot read the size {text!r}: write for instance 65536, 64KiB, 27MB or 4KiB:64MiB")
    size = int(found[1]) * unit
    if size > _MOST_BYTES:
        raise UserError(f"a size must be at most {tell_size(_MOST_BYTES)} (got {text!r})")
    if size < _FLOAT32_BYTES or size % _FLOAT32_BYTES:
        raise UserError(f"a size must be a multiple of {_FLOAT32_BYTES} bytes, one float32 (got {text!r})")
    return size
