"""Words for numbers."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "epoch"), counted(18, "epoch")
    ('1 epoch', '18 epochs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
