"""Words for numbers."""

from __future__ import annotations

from collections.abc import Iterable


def named(numbers: Iterable[int], noun: str) -> str:
    """Some of several things, by their numbers.

    >>> named([0, 3], "worker")
    'workers 0, 3'
    """
    texts = list(map(str, numbers))
    return f"{noun}{'s' if len(texts) > 1 else ''} {', '.join(texts)}"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "epoch"), counted(18, "epoch")
    ('1 epoch', '18 epochs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
