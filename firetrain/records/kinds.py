"""What the values in run.json and summary.json must be; keys may be absent, and others may be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from firetrain.limits import MOST_RANKS
from firetrain.records.count import MOST_COUNTED, Count
from firetrain.records.parts import OF_A_STEP, SPENT

_Number = Annotated[float, Field(ge=-MOST_COUNTED, le=MOST_COUNTED)]
_Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]


_adapters: dict[tuple[int, str], TypeAdapter[Any]] = {}


def wrong(content: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    """What is wrong with the first value that is not of its kind; empty if all are.

    >>> wrong({"jobs": [7, "x"]}, FACTS)
    "jobs.1 is 'x'"
    """
    for key in (key for key in content if key in kinds):
        if (id(kinds), key) not in _adapters:
            _adapters[id(kinds), key] = TypeAdapter(kinds[key])
        try:
            _adapters[id(kinds), key].validate_python(content[key], strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "value_error":
                return f"{key}: {first['ctx']['error']}"
            return f"{'.'.join((key, *_path(content[key], first['loc'])))} is {first['input']!r}"
    return ""


def _path(value: Any, place: tuple[str | int, ...]) -> Iterator[str]:
    """The keys and numbers in a place that pydantic tells, without the members of unions."""
    for part in place:
        if isinstance(value, dict | list) and part in (value if isinstance(value, dict) else range(len(value))):
            value = value[part]  # type: ignore[index]
            yield str(part)


def _is_date(text: str) -> str:
    datetime.fromisoformat(text)
    return text


def _mapping(kinds: Mapping[str, Any]) -> Any:
    """A mapping in which some values are of a kind."""

    def checked(content: dict[str, Any]) -> dict[str, Any]:
        if found := wrong(content, kinds):
            raise ValueError(found)
        return content

    return Annotated[dict[str, Any], AfterValidator(checked)]


_NAMES = list[str] | None
# the options with which a job was submitted
_ASKED = {"segments": Annotated[int, Field(ge=1, le=100)] | None, "env": _NAMES, "pass_env": _NAMES}
FACTS: dict[str, Any] = dict.fromkeys(("name", "state", "reason", "site", "arm", "strategy", "reduction", "world"), str) | {
    "created": Annotated[str, AfterValidator(_is_date)], "machine": _mapping({"packages": dict[str, str] | None}),
    "config": dict[str, Any], "asked": _mapping(_ASKED),
    "jobs": list[Count], "hosts": list[str], "warnings": list[str], "ranks": _Ranks, "version": Count,
    "price_per_node_hour": _Number, "node_of": Annotated[list[Count], Field(min_length=1, max_length=MOST_RANKS)],
}  # fmt: skip
SUMMARY: dict[str, Any] = {"state": str, "reached": bool, "reduction": dict[str, Any], "attempts": Count} | dict.fromkeys(
    ("top1", "top5", "epochs", "steps", "images", "world_size", "nodes", "elapsed_s", "train_s", "images_per_s", "bad_images",
     *(part.key for part in (*SPENT, *OF_A_STEP))), _Number,
) | dict.fromkeys(("time_to_accuracy_s", "epochs_to_target"), _Number | None)  # fmt: skip
