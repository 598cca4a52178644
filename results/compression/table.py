"""Print the tables of README.md from sizes.json, and draw accuracy against bytes.

Usage: python results/compression/table.py [--tables]; with --tables nothing is drawn
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from firetrain.config import load_config
from firetrain.models.catalogue import MODELS, make_model, model_by_name
from firetrain.records.figure import write_figure

HERE = Path(__file__).parent
FOUND: dict[str, dict[str, dict[str, Any]]] = json.loads((HERE / "sizes.json").read_text())
# network -> (config, overrides)
CONFIGS = {
    "lenet-300-100": ("lenet-mnist", ["model.name=lenet_300_100"]),
    "lenet-5": ("lenet-mnist", []),
    "squeezenet-digits": ("squeezenet-digits", []),
    "squeezenet-cifar10": ("squeezenet-cifar10", []),
    "squeezenet1_0": ("squeezenet-digits", ["model.name=squeezenet1_0", "model.stem=imagenet", "data.image_size=64"]),
    "alexnet": ("squeezenet-digits", ["model.name=alexnet", "model.stem=imagenet", "data.image_size=64"]),
}
CLASSES = {"squeezenet1_0": 1000, "alexnet": 1000}
# parts of a file and their headings
STREAMS = {
    "codes": "codes", "gaps": "gaps", "tables": "tables", "values": "shared values", "numbers": "other", "header": "header",
}  # fmt: skip
# Iandola et al. 2016, table 2: (network, compression, published MB, times smaller than AlexNet, top-1 and top-5 %)
PUBLISHED = (
    ("alexnet", None, 240, 1, "57.2, 80.3"), ("alexnet", "SVD", 48, 5, "56.0, 79.4"),
    ("alexnet", "pruning alone", 27, 9, "57.2, 80.3"), ("alexnet", "deep", 6.9, 35, "57.2, 80.3"),
    ("squeezenet1_0", None, 4.8, 50, "57.5, 80.3"), ("squeezenet1_0", "deep 8 bits", 0.66, 363, "57.5, 80.3"),
    ("squeezenet1_0", "deep 6 bits", 0.47, 510, "57.5, 80.3"),
)  # fmt: skip
# network -> (what its images are called, marks of the axis of accuracy in percent)
PLOTTED = {
    "squeezenet-digits": ("digits", (10, 50, 90, 98, 99)),
    "squeezenet-cifar10": ("CIFAR-10", (10, 20, 30, 40, 50, 60, 70)),
}
MARKERS = {"deep": "o", "sharing alone": "s", "pruning alone": "^", "SVD": "x"}


def dense_bytes(network: str) -> int:
    """Four bytes for each parameter."""
    name, overrides = CONFIGS[network]
    config = load_config(name, overrides).config
    return 4 * sum(one.numel() for one in make_model(config.model, CLASSES.get(network, 10), seed=1).parameters())


def by_compression(network: str) -> dict[str, list[dict[str, Any]]]:
    """The facts of all seeds, by compression."""
    seeds = list(FOUND[network].values())
    return {name: [seed[name] for seed in seeds] for name in seeds[0] if name != "trained"}


def table(network: str) -> None:
    """Print a row for each compression: medians over seeds, and the points of accuracy that each seed has lost.

    Of networks whose images are not here there are no accuracies; seconds are the most of all seeds.
    """
    dense, trained = dense_bytes(network), [seed["trained"]["top1"] for seed in FOUND[network].values()]
    top1 = "" if network in CLASSES else f", top-1 {', '.join(f'{value:.2%}' for value in trained)}"
    scored = ["compressed in s", "read in s", "opened in s"] if network in CLASSES else ["top-1 %", "points lost"]
    print(f"\n{network}: {dense:,} bytes in float32{top1}\n")
    print(f"| {' | '.join(['compression', 'bytes', 'times smaller', *scored, *STREAMS.values()])} |")
    print(f"|---|---:|---:|{'---:|' * len(scored)}{'---:|' * len(STREAMS)}")
    for name, facts in by_compression(network).items():
        size = int(median(one["bytes"] for one in facts))
        middle = next(one for one in facts if one["bytes"] == size)["sizes"]
        # from what a file was compressed, if it was not trained on the machine of the others
        starts = [one.get("from_top1", before) for before, one in zip(trained, facts, strict=True)]
        lost = [100 * (before - one["top1"]) for before, one in zip(starts, facts, strict=True)]
        scores = [" ".join(f"{100 * one['top1']:.2f}" for one in facts), " ".join(f"{one:+.2f}" for one in lost)]
        if network in CLASSES:
            most = {key: max(one[key] for one in facts) for key in ("run_s", "open_s", "open_command_s")}
            scores = [f"{most['run_s']:.1f}", f"{most['open_s']:.3f}", f"{most['open_command_s']:.1f}"]
        cells = [f"{size:,}", f"{dense / size:.1f}", *scores, *(f"{middle[key]:,}" for key in STREAMS)]
        print(f"| {name} | {' | '.join(cells)} |")


def published() -> None:
    """Print the table of the SqueezeNet paper, with our bytes beside the published ones."""
    print(
        "\n| network | compression | MB | published | times smaller than AlexNet | published | published top-1, top-5 % |\n"
        "|---|---|---:|---:|---:|---:|---|"
    )
    whole = dense_bytes("alexnet")
    for network, name, megabytes, times, accuracies in PUBLISHED:
        size = median(one["bytes"] for one in by_compression(network)[name]) if name else dense_bytes(network)
        print(
            f"| {network} | {name or 'none'} | {size / 1e6:.2f} | {megabytes} | {whole / size:.0f} | {times} | {accuracies} |"
        )


def models() -> None:
    """Print the parameters of every network of firetrain, and their bytes in float32, as it is made by default."""
    print("\n| network | parameters | MB in float32 |\n|---|---:|---:|")
    for name in MODELS:
        count = sum(one.numel() for one in model_by_name(name).parameters())
        print(f"| {name} | {count:,} | {4 * count / 1e6:.3g} |")


def plot(network: str) -> None:
    """Draw the accuracy of each seed against the bytes of its file."""
    images, percents = PLOTTED[network]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for method, marker in MARKERS.items():
        facts = [one for name, some in by_compression(network).items() if name.startswith(method) for one in some]
        sizes, scores = ([one[key] for one in facts] for key in ("bytes", "top1"))
        axes.plot([size / 1000 for size in sizes], scores, marker, fillstyle="none", label=method)
    trained = [seed["trained"]["top1"] for seed in FOUND[network].values()]
    axes.plot([dense_bytes(network) / 1000] * len(trained), trained, "+", label="not compressed")
    axes.set(
        xscale="log",
        yscale="logit",  # tells 98 from 99 %, and has room for 10 %
        xlabel="kB on disk",
        ylabel="top-1 % (logit scale)",
        title=f"SqueezeNet 1.1 on {images}, three seeds",
    )
    for axis, marks, unit in (
        (axes.xaxis, (200, 500, 1000, 2000, 3000), 1.0),
        (axes.yaxis, percents, 0.01),
    ):
        axis.set_ticks([unit * mark for mark in marks], labels=[f"{mark:,}" for mark in marks])
        axis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    for path in write_figure(figure, HERE / f"accuracy-{network.partition('-')[2]}", ".svg"):
        print(f"\nwritten to {path}")


if __name__ == "__main__":
    *others, alexnet = CONFIGS
    for one in others:
        table(one)
    published()
    table(alexnet)
    models()
    for one in () if "--tables" in sys.argv else PLOTTED:
        plot(one)
