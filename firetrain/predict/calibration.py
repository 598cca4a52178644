"""Update a profile with new measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.config.sections.batch import BatchSection
from firetrain.errors import UserError
from firetrain.predict.formulas import find_formula
from firetrain.predict.network import Network, Shape
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import Question
from firetrain.records.profile import MeasuredLink, MeasuredStep, Profile, Quantity, Residual

# reductions in which several nodes send to one, and the factor of the network that is fitted to their time
CROWDED = {"parameter-server": "incast", "direct": "congestion"}

_MOST_CROWDED = 1000.0


@dataclass(frozen=True)
class Crowd:
    """The time of an all-reduce in which several nodes send to one simultaneously."""

    reduction: str
    bytes: int
    seconds: Quantity


@dataclass(frozen=True)
class Measurements:
    """The measurements of `firetrain bench profile` on `world`.

    `steps`: without communication, one per batch size.
    `added`: seconds per added byte.
    `read`: images per second that a node loads.
    `whole`: seconds of a whole training step.
    `crowds`: all-reduces with several senders to one node.
    `gap`: seconds between two messages of a rank.
    """

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
        """The world as nodes and ranks per node."""
        return Shape.of(self.world.size, self.world.size // len(self.world.nodes))


def refuse_uncalibratable(batch: BatchSection, reduction: str, world: World) -> None:
    """UserError if a step with this batch cannot be timed on `world`, or if its reduction has no formula."""
    size, most = batch.global_size, batch.per_rank_max
    if size < world.size:
        raise UserError(f"a batch of {size} is too small for {world.size} ranks: every rank needs an image")
    if most is not None and -(-size // world.size) > most:
        raise UserError(f"bench profile does not support micro-batches: set batch.per_rank_max to null (is {most})")
    find_formula(reduction)
    if len({len(ranks) for ranks in world.nodes}) > 1:
        raise UserError(f"bench profile needs the same number of ranks on every node (got {world})")


def calibrated(before: Profile, config: Config, measured: Measurements, machine: dict[str, Any]) -> Profile:
    """The profile with these measurements instead of earlier ones of the same model, and with the residual of a whole step.

    The residual is at least zero: a negative one would mean that a part was counted twice.
    """
    label, shape = model_label(config.model, config.data), measured.shape
    kept = [step for step in before.steps if step.model != label]
    steps = [step.model_copy(update={"images_per_s_read": measured.read}) for step in measured.steps]
    profile = before.with_links(measured.links, machine).model_copy(update={"steps": (*kept, *steps)})
    if shape.ranks == 1:  # measurements that need several ranks are kept
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
    predicted = Predictor(profile, question).rows()[-1].step_s
    left = _changed(measured.whole, lambda seconds: max(0.0, seconds - predicted))
    residual = Residual(model=label, ranks=shape.ranks, reduction=reduction, seconds=left)
    return profile.model_copy(update={"residuals": (*others, residual)})


def _factor(profile: Profile, shape: Shape, crowd: Crowd) -> Quantity:
    """Solve for the factor that makes the formula match the measurement; at least 1."""
    from scipy.optimize import brentq

    network, formula = Network.measured(profile), find_formula(crowd.reduction)
    incast = CROWDED[crowd.reduction] == "incast"

    def seconds(factor: float) -> float:
        crowded = replace(network, incast=factor) if incast else replace(network, congestion=factor)
        return float(formula.seconds(shape, crowd.bytes, crowded))

    def factor(measured_s: float) -> float:
        if seconds(1.0) >= measured_s or seconds(_MOST_CROWDED) <= measured_s:
            return 1.0 if seconds(1.0) >= measured_s else _MOST_CROWDED
        return float(brentq(lambda factor: seconds(factor) - measured_s, 1.0, _MOST_CROWDED))

    return _changed(crowd.seconds, factor)


def _changed(quantity: Quantity, change: Callable[[float], float]) -> Quantity:
    """The quantity with `change` applied to its value and both ends of its interval."""
    values = [
        change(value) for value in (quantity.value, quantity.low or quantity.value, quantity.high or quantity.value)
    ]
    return Quantity(value=values[0], low=values[1], high=values[2], count=quantity.count)
