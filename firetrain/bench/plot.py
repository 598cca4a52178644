"""The plot of `firetrain bench allreduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firetrain.bench.allreduce import Measurement
from firetrain.records.figure import write_figure
from firetrain.words import counted

_MARKERS = "osD^vP*Xph<>"


def plot_allreduce(rows: Sequence[Measurement], path: Path) -> None:
    """Plot time (with the 10th to 90th percentile) and bus bandwidth against size. SVG, PNG or PDF by suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    times, speeds = figure.subplots(1, 2)
    for number, name in enumerate(dict.fromkeys(row.reduction for row in rows)):
        own = sorted((row for row in rows if row.reduction == name), key=lambda row: row.bytes)
        sizes = [row.bytes for row in own]
        look = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "color": f"C{number % 10}"}
        look |= {"linestyle": "--" if name in ("native", "openmpi") else "-"}
        times.plot(sizes, [row.median_s * 1e3 for row in own], label=name, **look)
        times.fill_between(
            sizes, [row.p10_s * 1e3 for row in own], [row.p90_s * 1e3 for row in own], alpha=0.15, color=look["color"]
        )
        speeds.plot(sizes, [row.busbw_gb_per_s for row in own], **look)
    times.set(xscale="log", yscale="log", xlabel="bytes", ylabel="time, ms", title="time, median")
    speeds.set(xscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s", title="bus bandwidth")
    for axes in (times, speeds):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    world = f"{counted(rows[0].ranks, 'rank')} on {counted(rows[0].nodes, 'node')}"
    figure.suptitle(f"all-reduce, {world}, {rows[0].wire_dtype} on the wire")
    write_figure(figure, path)
