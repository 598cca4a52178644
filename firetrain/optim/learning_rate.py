"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from firetrain.config import Config
from firetrain.config.sections.learning_rate import LearningRateSection

__all__ = ["LearningRate"]


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of each step 0, 1, ... `total_steps`-1, in float64; it depends only on the config.

    Gradual warmup (Goyal et al. 2017, section 2.2) increases the rate linearly in each step from `base` to the peak, starting
    at zero if `base` is not below the peak or if `warmup_from: zero`. Then the schedule runs to the last step. It is counted
    from the end of warmup (as in MLPerf) or from the start of the run (as in Caffe). Drops of the schedule `step` are always
    counted from the start.

    >>> from firetrain.config import load_config
    >>> rate = LearningRate.of(load_config("squeezenet-digits").config, steps_per_epoch=11)
    >>> rate.warmup_steps, rate.rate(rate.warmup_steps)
    (55, 0.005)
    """

    section: LearningRateSection
    peak: float
    steps_per_epoch: int
    total_steps: int

    @classmethod
    def of(cls, config: Config, steps_per_epoch: int) -> LearningRate:
        """The learning rate of a run whose epochs have `steps_per_epoch` steps."""
        total = config.target.max_epochs * steps_per_epoch
        return cls(
            config.learning_rate, config.peak_rate, steps_per_epoch, min(total, config.target.max_steps or total)
        )

    @property
    def warmup_steps(self) -> int:
        """The number of warmup steps."""
        return round(self.section.warmup_epochs * self.steps_per_epoch)

    def rate(self, step: int) -> float:
        """The learning rate of `step`."""
        if step < self.warmup_steps:
            start = self.section.base if self.section.base < self.peak and self.section.warmup_from != "zero" else 0.0
            return start + (self.peak - start) * (step + 1) / self.warmup_steps
        first = 0 if self.section.decay_from == "start" else self.warmup_steps
        share = min(1.0, (step - first) / max(1, self.total_steps - first))
        floor = self.section.floor or 0.0
        if self.section.schedule == "step":
            every_steps = (self.section.every_epochs or 1) * self.steps_per_epoch
            drops = int(step / every_steps)
            return self.peak * math.pow(self.section.factor or 0.1, drops)
        decay: float = {
            "constant": 1.0,
            "linear": 1.0 - share,
            "poly": math.pow(1.0 - share, self.section.power or 1.0),
            "cosine": 0.5 * (1.0 + math.cos(math.pi * share)),
        }[self.section.schedule]
        return floor + (self.peak - floor) * decay

    def explain(self, batch_size: int) -> str:
        """The rule with its numbers, as one line for the log."""
        rule = self.section
        text = f"{rule.base:g}" if rule.peak is None else f"{rule.peak:g} (given; base {rule.base:g})"
        if rule.scaling != "none":
            share = f"{batch_size}/{rule.base_batch}"
            power = {"linear": f"x {share}", "sqrt": f"x sqrt({share})"}.get(
                str(rule.scaling), f"x ({share})^{rule.scaling}"
            )
            source = {"linear": "linear scaling, Goyal et al. 2017", "sqrt": "square-root scaling, Krizhevsky 2014"}
            text += f" {power} = {self.peak:g} ({source.get(str(rule.scaling), 'scaling by a power of the batch')})"
        begin = f" from {'zero' if rule.warmup_from == 'zero' else 'base'}" if rule.warmup_from else ""
        warmup = (
            f", warmup {rule.warmup_epochs:g} epochs ({self.warmup_steps} steps){begin}" if self.warmup_steps else ""
        )
        power = f" of power {rule.power or 1:g}" if rule.schedule == "poly" else ""
        counted = ", counted from the start" if rule.decay_from == "start" else ""
        return f"{text}{warmup}, then {rule.schedule}{power} over {max(0, self.total_steps - self.warmup_steps)} steps{counted}"
