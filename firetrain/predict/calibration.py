"""A profile brought up to date with new measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.predict.formulas import find_formula
from firetrain.predict.label import model_label
from firetrain.predict.model import Model
from firetrain.predict.network import Network, Shape
from firetrain.predict.question import Question
from firetrain.records.profile import MeasuredLink, MeasuredStep, Profile, Quantity, Residual

# reductions that show what a network makes of several senders to one, and the factor by which they show it
CROWDED = {"parameter-server": "incast", "direct": "congestion"}

_MOST_CROWDED = 1000.0


@dataclass(frozen=True)
class Crowd:
    """Seconds of an all-reduce in which several nodes send to one at once."""

    reduction: str
    bytes: int
    seconds: Quantity


@dataclass(frozen=True)
class Measurements:
    """What was measured on `world`: steps without communication, one per batch; links; seconds per added byte; images per
    second that a node reads; seconds of a `whole` step as training has it; all-reduces with several senders to one; seconds
    between two messages of a rank."""

    world: World
    steps: Sequence[MeasuredStep]
    links: Sequence[MeasuredLink]
    added: Quantity
    read: Quantity
    whole: Quantity
    crowds: Sequence[Crowd]
    gap: Quantity | None = None

    @property
    def shape(self) -> Shape:
        """Of the world."""
        return Shape.of(self.world.size, self.world.size // len(self.world.nodes))


def calibrated(before: Profile, config: Config, measured: Measurements, machine: dict[str, Any]) -> Profile:
    """With these in place of what was known of the same model; what the model leaves of a whole step is kept too.

    The residual is not below zero: a step that was faster than foretold says that something was counted twice.
    """
    label, shape = model_label(config), measured.shape
    kept = [step for step in before.steps if step.model != label]
    steps = [step.model_copy(update={"images_per_s_read": measured.read}) for step in measured.steps]
    profile = before.with_links(measured.links, machine).model_copy(update={"steps": (*kept, *steps)})
    if shape.ranks == 1:  # what only several ranks show stays as it was
        added = before.s_per_added_byte or measured.added
        return profile.model_copy(update={"s_per_added_byte": added})
    others = [one for one in before.residuals if one.model != label]
    profile = profile.model_copy(
        update={
            "s_per_added_byte": measured.added,
            "ranks_per_node": shape.per_node,
            "residuals": tuple(others),
            "message_gap": measured.gap or profile.message_gap,
        }  # fmt: skip
    )
    profile = profile.model_copy(
        update={CROWDED[crowd.reduction]: _factor(profile, shape, crowd) for crowd in measured.crowds}
    )
    reduction = str(config.reduction.spec)
    question = Question.of(config, [shape.ranks], [reduction], shape.per_node, reads=False)
    foretold = Model(profile, question).rows()[-1].step_s
    left = _changed(measured.whole, lambda seconds: max(0.0, seconds - foretold))
    residual = Residual(model=label, ranks=shape.ranks, reduction=reduction, seconds=left)
    return profile.model_copy(update={"residuals": (*others, residual)})


def _factor(profile: Profile, shape: Shape, crowd: Crowd) -> Quantity:
    """With which the formula gives what was measured, by bisection: it never falls. Not below 1: the link alone."""
    network, formula = Network.measured(profile), find_formula(crowd.reduction)
    incast = CROWDED[crowd.reduction] == "incast"

    def seconds(factor: float) -> float:
        crowded = replace(network, incast=factor) if incast else replace(network, congestion=factor)
        return float(formula.seconds(shape, crowd.bytes, crowded))

    def factor(measured_s: float) -> float:
        low, high = 1.0, _MOST_CROWDED
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if seconds(middle) < measured_s else (low, middle)
        return low

    return _changed(crowd.seconds, factor)


def _changed(quantity: Quantity, change: Callable[[float], float]) -> Quantity:
    """The same with its value and its interval changed."""
    values = [
        change(value) for value in (quantity.value, quantity.low or quantity.value, quantity.high or quantity.value)
    ]
    return Quantity(value=values[0], low=values[1], high=values[2], count=quantity.count)
