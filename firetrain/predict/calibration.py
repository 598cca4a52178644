"""A profile brought up to date with new measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.predict.formulas import find_formula
from firetrain.predict.label import model_label
from firetrain.predict.model import Model, Question
from firetrain.predict.network import Network, Shape
from firetrain.records.profile import MeasuredLink, MeasuredStep, Profile, Quantity, Residual

# reductions that show what a network makes of several senders to one, and the factor by which they show it
CROWDED = {"parameter-server": "incast", "direct": "congestion"}


@dataclass(frozen=True)
class Crowd:
    """Seconds of an all-reduce in which several nodes send to one at once."""

    reduction: str
    bytes: int
    seconds: Quantity


@dataclass(frozen=True)
class Measurements:
    """What was measured on `world`: steps without communication, one per batch; links; seconds per added byte; images per
    second that a node reads; seconds of a `whole` step as training has it; all-reduces with several senders to one."""

    world: World
    steps: Sequence[MeasuredStep]
    links: Sequence[MeasuredLink]
    added: Quantity
    read: Quantity
    whole: Quantity
    crowds: Sequence[Crowd]

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
    others = [one for one in before.residuals if one.model != label]
    profile = before.with_links(measured.links, machine).model_copy(
        update={
            "steps": (*kept, *measured.steps), "s_per_added_byte": measured.added, "images_per_s_read": measured.read,
            "residuals": tuple(others),
        }
    )  # fmt: skip
    if shape.ranks == 1:
        return profile
    factors = {CROWDED[crowd.reduction]: _factor(profile, shape, crowd) for crowd in measured.crowds}
    profile = profile.model_copy(update={"ranks_per_node": shape.per_node, **factors})
    reduction = str(config.reduction.spec)
    foretold = Model(profile, Question.of(config, [shape.ranks], [reduction], shape.per_node)).rows()[-1].step_s
    left = _changed(measured.whole, lambda seconds: max(0.0, seconds - foretold))
    residual = Residual(model=label, ranks=shape.ranks, reduction=reduction, seconds=left)
    return profile.model_copy(update={"residuals": (*others, residual)})


def _factor(profile: Profile, shape: Shape, crowd: Crowd) -> Quantity:
    """With which the formula gives what was measured: it is a straight line in it. Not below 1: the link alone."""
    network, formula = Network.measured(profile), find_formula(crowd.reduction)
    plain = replace(network, incast=1.0, congestion=1.0)
    incast = CROWDED[crowd.reduction] == "incast"
    crowded = replace(plain, incast=2.0) if incast else replace(plain, congestion=2.0)
    first_s, second_s = (float(formula.seconds(shape, crowd.bytes, one)) for one in (plain, crowded))
    return _changed(crowd.seconds, lambda seconds: max(1.0, 1 + (seconds - first_s) / (second_s - first_s)))


def _changed(quantity: Quantity, change: Callable[[float], float]) -> Quantity:
    """The same with its value and its interval changed."""
    values = [
        change(value) for value in (quantity.value, quantity.low or quantity.value, quantity.high or quantity.value)
    ]
    return Quantity(value=values[0], low=values[1], high=values[2], count=quantity.count)
