"""Plot a config's learning rate, for a terminal or to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firetrain.config import Config
from firetrain.optim.learning_rate import LearningRate
from firetrain.records.figure import write_figure

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_COLUMNS, _ROWS = 72, 8
# assumed, so that the data need not be opened; the curve over epochs hardly depends on it
_STEPS_PER_EPOCH = 1000


def points(config: Config) -> list[tuple[float, float]]:
    """(epoch, rate) at equal distances over the run."""
    rate = LearningRate.of(config, _STEPS_PER_EPOCH)
    last = max(1, rate.total_steps - 1)
    steps = [round(number * last / (_COLUMNS - 1)) for number in range(_COLUMNS)]
    return [(step / _STEPS_PER_EPOCH, rate.rate(step)) for step in steps]


def text(config: Config) -> str:
    """The curve for a terminal: eight rows, the highest rate at the top."""
    found = points(config)
    lines = bars([rate for _, rate in found], _ROWS)
    end = f"{found[-1][0]:.0f} epochs"
    lines.append(" " * 11 + "0" + end.rjust(_COLUMNS - 1))
    return "\n".join(lines)


def bars(values: Sequence[float], rows: int, highest: float | None = None) -> list[str]:
    """Values from 0 up as bars of `rows` lines; the highest value is written at the left."""
    top = highest or max(values) or 1.0
    heights = [round(value / top * rows * 8) for value in values]
    lines = []
    for row in range(rows - 1, -1, -1):
        label = f"{top:g}" if row == rows - 1 else "0" if row == 0 else ""
        lines.append(f"{label:>10} " + "".join(_EIGHTHS[max(0, min(8, height - 8 * row))] for height in heights))
    return lines


def plot(config: Config, path: Path) -> None:
    """Write the curve as SVG, PNG or PDF by suffix; CannotCreate if that fails."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    epochs, rates = _columns(points(config))
    axes.plot(epochs, rates)
    axes.set(xlabel="epoch", ylabel="learning rate", title=config.name, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    write_figure(figure, path)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
