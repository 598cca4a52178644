"""Print the tables of README.md from the rows that measure.sh wrote, and draw the plot. Usage: table.py [FOLDER]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from firetrain.bench.allreduce import Measurement
from firetrain.bench.plot import plot_allreduce
from firetrain.bench.sizes import tell_size

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
FIRST = ("native", "openmpi", "auto")
# reduction -> (its bound on p ranks in units of n/B, for n bytes at B bytes/s, and the largest ratio that was aimed for)
BOUNDS = {
    "native": ("2(p-1)/p", 1.5, ""),
    "ring": ("2(p-1)/p", 1.5, "1.05"),
    "halving-doubling": ("2(p-1)/p", 1.5, "1.25"),
    "double-tree": ("2", 2.0, "1.15"),
    "tree": ("2 log2(p)", 4.0, "1.08"),
}


def rows(*names: str) -> list[dict[str, Any]]:
    """The rows of these files, by name without `.json`."""
    return [row for name in names for row in json.loads((FOLDER / f"{name}.json").read_text())]


def by_size(table: list[dict[str, Any]]) -> None:
    """Print milliseconds, a row per size and a column per reduction; the fastest in each row is bold."""
    names = sorted(
        {row["reduction"] for row in table}, key=lambda name: (FIRST.index(name) if name in FIRST else 9, name)
    )
    print(f"| bytes | {' | '.join(f'`{name}`' for name in names)} | auto chose |")
    print("|---" * (len(names) + 2) + "|")
    for size in sorted({row["bytes"] for row in table}):
        line = {row["reduction"]: row for row in table if row["bytes"] == size}
        best = min(row["median_s"] for row in line.values())
        cells = []
        for name in names:
            text = f"{line[name]['median_s'] * 1e3:.3g}" if name in line else ""
            cells.append(f"**{text}**" if name in line and line[name]["median_s"] == best else text)
        chosen = line.get("auto", {}).get("chosen") or ""
        print(f"| {tell_size(size)} | {' | '.join(cells)} | {chosen} |")


def one_size(table: list[dict[str, Any]]) -> None:
    """Print a row per reduction."""
    print("| reduction | ms, median (p10 to p90) | busbw, GB/s | relative error | MB inside + between nodes |")
    print("|---|---|---|---|---|")
    for row in table:
        wire = "unknown"
        if row["wire_bytes_inside_nodes"] is not None:
            wire = f"{row['wire_bytes_inside_nodes'] / 1e6:.0f} + {row['wire_bytes_between_nodes'] / 1e6:.0f}"
        times = f"{row['median_s'] * 1e3:.1f} ({row['p10_s'] * 1e3:.1f} to {row['p90_s'] * 1e3:.1f})"
        print(f"| `{row['reduction']}` | {times} | {row['busbw_gb_per_s']:.3f} | {row['error']:.1e} | {wire} |")


def bounds(large: dict[str, float], whole_s: float) -> None:
    """Print seconds of 27 MB on four ranks relative to the bound; `whole_s`: n/B."""
    print("| reduction | bound | ms | ratio | goal |\n|---|---|---|---|---|")
    for name, (formula, factor, goal) in BOUNDS.items():
        bound_s = factor * whole_s
        bound, ms = f"{formula} n/B = {bound_s * 1e3:.0f} ms", f"{large[name] * 1e3:.0f}"
        print(f"| `{name}` | {bound} | {ms} | {large[name] / bound_s:.2f} | {goal} |")


def steps() -> None:
    """Print the training steps beside those of DistributedDataParallel."""
    print(
        "| model | firetrain, ms | DistributedDataParallel, ms | ratio, median of pairs | exposed, firetrain | exposed, DDP |"
    )
    print("|---|---|---|---|---|---|")
    for model in ("squeezenet1_1", "googlenet"):
        found = json.loads((FOLDER / f"step-{model}.json").read_text())
        cells = []
        for key, unit, digits in (("step_s", 1e3, 0), ("ratio", 1, 2), ("exposed_communication_s", 1e3, 0)):
            for one in found[key].values():
                median, low, high = (one[name] * unit for name in ("median", "min", "max"))
                cells.append(f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        print(f"| `{model}` | {' | '.join(cells)} |")


def compare(table: list[dict[str, Any]]) -> None:
    """Print for each size the best plan relative to Gloo, and auto relative to the best single reduction (Gloo included)."""
    for size in sorted({row["bytes"] for row in table}):
        line = {
            row["reduction"]: row["median_s"] for row in table if row["bytes"] == size and row["reduction"] != "openmpi"
        }
        auto = line.pop("auto", None)
        plans = {name: seconds for name, seconds in line.items() if name != "native"}
        best = min(plans, key=plans.__getitem__)
        of_auto = f"; auto {auto / min(line.values()) - 1:+.1%} relative to the best" if auto else ""
        print(f"{tell_size(size)}: {best} takes {plans[best] / line['native']:.2f} of Gloo's time{of_auto}")


def main() -> None:
    """Print the tables and draw the plot."""
    links = json.loads((FOLDER / "profile.json").read_text())["links"]
    for link in links:
        print(
            f"{link['level']}, {link['pairs']}: {link['latency_s'] * 1e6:.0f} us, {link['bytes_per_s'] / 1e6:.1f} MB/s"
        )
    one_per_node = rows("small", "large", "openmpi")
    by_size(one_per_node)
    goodput = next(link["bytes_per_s"] for link in links if link["pairs"] == "one")
    large = {row["reduction"]: row["median_s"] for row in one_per_node if row["bytes"] == 27_000_000}
    print(f"\n27 MB compared with n/B = {27e6 / goodput * 1e3:.1f} ms (B {goodput / 1e6:.1f} MB/s):")
    for name, seconds in large.items():
        print(
            f"  {name}: {seconds * 1e3:.1f} ms, {seconds / (27e6 / goodput):.3f} n/B, {seconds / large['native']:.3f} of native"
        )
    bounds(large, 27e6 / goodput)
    print()
    compare(one_per_node)
    for name in ("few", "two-per-node-few", "two-per-node", "bfloat16", "bfloat16-two-per-node"):
        print(f"\n{name}")
        one_size(rows(name))
    print()
    steps()
    keys = Measurement.__dataclass_fields__
    plain = [Measurement(**{key: row.get(key) for key in keys}) for row in one_per_node]
    plot_allreduce([row for row in plain if row.reduction != "auto"], FOLDER / "reductions.svg")


if __name__ == "__main__":
    main()
