"""The learning rate over a run, drawn before the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firetrain.config import Config
from firetrain.errors import CannotCreate
from firetrain.optim.learning_rate import LearningRate

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_COLUMNS, _ROWS = 72, 8
# where the data's size is not known without opening it, the curve over epochs is as good as the same
_STEPS_PER_EPOCH = 1000


def points(config: Config) -> list[tuple[float, float]]:
    """(epoch, rate), evenly over the run."""
    rate = LearningRate.of(config, _STEPS_PER_EPOCH)
    last = max(1, rate.total_steps - 1)
    steps = [round(number * last / (_COLUMNS - 1)) for number in range(_COLUMNS)]
    return [(step / _STEPS_PER_EPOCH, rate.rate(step)) for step in steps]


def text(config: Config) -> str:
    """For a terminal: eight rows, the highest rate at the top."""
    found = points(config)
    lines = bars([rate for _, rate in found], _ROWS)
    end = f"{found[-1][0]:.0f} epochs"
    lines.append(" " * 11 + "0" + end.rjust(_COLUMNS - 1))
    return "\n".join(lines)


def bars(values: Sequence[float], rows: int, highest: float | None = None) -> list[str]:
    """Values from 0 up as columns of `rows` lines, the highest one named at the left; one column each."""
    top = highest or max(values) or 1.0
    heights = [round(value / top * rows * 8) for value in values]
    lines = []
    for row in range(rows - 1, -1, -1):
        label = f"{top:g}" if row == rows - 1 else "0" if row == 0 else ""
        lines.append(f"{label:>10} " + "".join(_EIGHTHS[max(0, min(8, height - 8 * row))] for height in heights))
    return lines


def picture(config: Config, path: Path) -> None:
    """The same as SVG, PNG or PDF by suffix; CannotCreate if that fails."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    epochs, rates = _columns(points(config))
    axes.plot(epochs, rates)
    axes.set(xlabel="epoch", ylabel="learning rate", title=config.name, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CannotCreate(f"cannot write the plot {path}: {error}") from None


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
