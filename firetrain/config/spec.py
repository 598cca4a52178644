"""Names with parameters, as users write them: `ring`, `parameter-server:servers=2`, `hierarchical:inner=ring,outer=tree`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from firetrain.errors import UserError, unknown


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text]


_READ: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": _switch}
_EXPECTED = {"bool": "true or false"}


class Within(NamedTuple):
    """The bounds, both included, of a parameter, whose type its module names.

    >>> from typing import Annotated
    >>> Rank = Annotated[int, Within(1, 4096)]  # def powersgd(context, rank: Rank = 4): ...
    """

    least: float
    most: float


@dataclass(frozen=True)
class Spec:
    """A name with parameters, `name:key=value,key=value`, in the order given."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, parameters: Mapping[str, object] | None = None) -> Spec:
        """The spec in `text`, with further `parameters` from a mapping; UserError if it cannot be parsed."""
        name, colon, rest = text.partition(":")
        pairs = [part.partition("=") for part in rest.split(",")] if colon else []
        if not name or any(not (key and equals and value) for key, equals, value in pairs):
            raise UserError(f"cannot read {text!r}: parameters are written name:key=value,key=value")
        given = [(key, value) for key, _, value in pairs]
        given += [(key, str(value)) for key, value in (parameters or {}).items()]
        twice = sorted({key for key, _ in given if [other for other, _ in given].count(key) > 1})
        if twice:
            raise UserError(f"{name}: {', '.join(twice)} is given twice")
        return cls(name, tuple(given))

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in self.parameters)
        return f"{self.name}:{pairs}" if pairs else self.name

    def arguments(self, function: Callable[..., Any], given: int = 1) -> dict[str, Any]:
        """The parameters as keyword arguments of `function`, excluding its first `given`; UserError if one does not fit.

        A parameter fits its annotation: a number, a text, a switch, or a type that its module gives a name, which is a Literal or
        a number `Within` bounds.
        """
        accepted = parameters_of(function, given)
        found = {}
        for key, value in self.parameters:
            if key not in accepted:
                if not accepted:
                    raise UserError(f"{self.name} has no parameters ({key}={value})")
                raise UserError(f"{self.name}: {unknown('parameter', key, accepted)}")
            annotation = accepted[key].annotation
            named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
            kind = named.removesuffix(" | None")
            known = getattr(function, "__globals__", {}).get(kind)  # a type with a name
            choices, within = get_args(known), None
            if get_origin(known) is Annotated:
                number, *others = choices
                kind, choices = getattr(number, "__name__", "str"), ()
                within = next((one for one in others if isinstance(one, Within)), None)
            if choices and value not in choices:
                raise UserError(f"{self.name}: {unknown(key, value, choices)}")
            try:
                found[key] = _READ.get(kind, str)(value)
            except (KeyError, ValueError):
                raise UserError(f"{self.name}: {key} is {value!r}, expected {_EXPECTED.get(kind, kind)}") from None
            if within and not within.least <= found[key] <= within.most:
                raise UserError(f"{self.name}: {key} must be from {within.least:g} to {within.most:g} ({key}: {value})")
        return found


def parse_list(text: str) -> list[Spec]:
    """The specs in a text, separated by commas; a part like `outer=tree` belongs to the spec before it."""
    parts: list[str] = []
    for part in text.split(","):
        key, equals, _ = part.partition("=")
        if parts and equals and ":" not in key:
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return [Spec.parse(part) for part in parts]


def parameters_of(function: Callable[..., Any], given: int = 1) -> dict[str, inspect.Parameter]:
    """The parameters that a user can set: all parameters of `function` except the first `given`."""
    return dict(list(inspect.signature(function).parameters.items())[given:])
