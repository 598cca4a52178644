"""The base class of all sections of a config, and the bounded numbers that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from firetrain.config.names import installed_names
from firetrain.config.own import Own
from firetrain.errors import UserError, nearest
from firetrain.limits import MOST_EPOCHS, MOST_IMAGES, MOST_OF_ANYTHING, MOST_RANKS, MOST_STEPS

Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]
ImageCount = Annotated[int, Field(ge=1, le=MOST_IMAGES)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Epochs = Annotated[int, Field(ge=1, le=MOST_EPOCHS)]
Share = Annotated[float, Field(gt=0, le=1)]
# a value for code of the user's own
Argument = (
    bool
    | Annotated[int, Field(ge=-MOST_OF_ANYTHING, le=MOST_OF_ANYTHING)]
    | Annotated[float, Field(ge=-MOST_OF_ANYTHING, le=MOST_OF_ANYTHING)]
    | str
    | None
)


class Section(BaseModel):
    """A section of the config: it rejects unknown keys, converts no types silently, and is immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def refuse_unless(self, condition: bool, keys: tuple[str, ...], where: str) -> None:
        """ValueError if any of `keys` is set although `condition` is false; `where` describes when the keys apply."""
        given = [key for key in keys if getattr(self, key) is not None]
        if given and not condition:
            verb = "has" if len(given) == 1 else "have"
            raise ValueError(
                f"{', '.join(given)} {verb} no effect here (only with {where}): remove it or set it to null"
            )


class WrongValue(ValueError):
    """A mistake in the value at `path`, for checks between sections; a ValueError counts for the section that is checked."""

    def __init__(self, path: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.path = path


def known_or_own(name: str, known: Sequence[str], group: str, what: str) -> str:
    """The name; ValueError if it is neither one of `known`, nor an entry point of `group`, nor code of the user's own.

    `what`: for errors.
    """
    known = [*known, *installed_names(group)]
    if ":" in name:
        with as_mistake():
            Own.parse(name)
    elif name not in known:
        meant = nearest(name, known)
        raise ValueError(
            f"must be one of {', '.join(known)}{f', did you mean {meant}?' if meant else ''}, or {what} of your own: "
            f"package.module:name, or ./file.py:name (got {name!r})"
        )
    return name


@contextmanager
def as_mistake() -> Iterator[None]:
    """Turn a UserError into a validation error, which is reported with file and line."""
    try:
        yield
    except UserError as error:
        raise ValueError(str(error)) from None
