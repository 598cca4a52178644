"""A plot of the report: a figure for files, and for the page, which shows the values of a point."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# replaced by the colour of the page's text
INK = "#010203"
COLOURS = (
    "#3b6fb6", "#d1495b", "#5aa469", "#b9770e", "#7d5ba6", "#2a9d8f", "#8d6e63", "#c2569b", "#607d8b", "#9e9d24", "#ef6c00",
    "#455a64",
)  # fmt: skip


@dataclass
class Plot:
    """A figure with a file name, a title, a description, and texts of its points: (axes, x, y, text)."""

    name: str
    title: str
    description: str
    figure: Figure
    points: list[tuple[Axes, float, float, str]] = field(default_factory=list)

    def svg(self) -> str:
        """The SVG for a page: its text is not converted to paths, and has the colour of the page's text."""
        import matplotlib

        target = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self.name, "font.family": "sans-serif"}):
            self.figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = target.getvalue()
        return text[text.index("<svg") :].replace(INK, "currentColor")

    def marks(self) -> list[list[Any]]:
        """[x, y, text] of every point, in units of the SVG from its upper left corner. Call `svg` first."""
        height = self.figure.get_figheight() * 72
        found = []
        for axes, x, y, text in self.points:
            across, up = axes.transData.transform((x, y)) * 72 / self.figure.dpi
            found.append([round(float(across), 1), round(float(height - up), 1), text])
        return found


def new_figure(height_in: float = 4.0, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with the page's colours, and its axes row by row."""
    import matplotlib
    from matplotlib.figure import Figure

    ink: Any = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context({**ink, "font.size": 10, "legend.labelcolor": INK}):
        figure = Figure(figsize=(7.2, height_in), layout="constrained")
        several = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in several:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure, several


def plain_text(text: str) -> str:
    """Escape the text for matplotlib, which reads dollars as formulas and omits labels with a leading underscore."""
    return text.replace("$", r"\$").lstrip("_")
