"""A report as a self-contained HTML file."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from firetrain.cluster import World
from firetrain.errors import CannotCreate, FiretrainError
from firetrain.records.file import write_whole
from firetrain.report.groups import Group, settings
from firetrain.report.history import History
from firetrain.report.plots import plots
from firetrain.report.report import Report
from firetrain.report.tables import Table

_PLANS, _LARGEST_PLAN = 6, 32
_COMPARED = 12


def page(report: Report, refresh_s: int | None = None) -> str:
    """The HTML of the page; `refresh_s`: the browser reloads it after this time."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("firetrain.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    drawn = [{"plot": plot, "svg": plot.svg(), "marks": json.dumps(plot.marks())} for plot in plots(report)]
    return environment.get_template("page.html.j2").render(
        report=report,
        refresh_s=refresh_s,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        cards=_cards(report),
        main=report.main,
        tables=[*report.tables, report.runs],
        text_table=Table.text_table,
        drawn=drawn,
        topologies=list(_topologies(report)),
        common=_common(report),
        differing=_differing(report),
        compared=report.groups[:_COMPARED],
        environments=[(one.label, _environment(one)) for one in report.groups[:_COMPARED]],
        commands=[(one.name, command(one)) for one in report.histories],
    )


def write_page(report: Report, path: Path) -> None:
    """Write the page, replacing an older one only when the new one is complete. CannotCreate if that fails."""
    write_whole(path, page(report), kind=CannotCreate)


def command(one: History) -> str:
    """The command that repeats the run, with its resolved config and seed, on the same numbers of nodes and ranks."""
    nodes = _nodes(one)
    return f"firetrain launch {shlex.quote(str(one.run.config_path))} --nodes {nodes} --ranks-per-node {one.ranks // nodes}"


def _nodes(one: History) -> int:
    return int(one.summary.get("nodes") or one.config.cluster.nodes)


def _cards(report: Report) -> list[tuple[str, str, str]]:
    """The cards of the summary: (title, value, what it belongs to)."""
    ended = sum(len(one.ended) for one in report.groups)
    cards = [("runs", str(len(report.histories)), f"{len(report.groups)} configs, {ended} runs ended")]
    times = [(found, one) for one in report.groups if (found := one.middle_time(report.clock))]
    timed = [(seconds, one) for seconds, one in times if math.isfinite(seconds)]
    if timed:
        seconds, one = min(timed, key=lambda pair: pair[0])
        cards.append(("fastest to its target", f"{seconds:,.1f} s", one.label))
    speedups = [(one.speedup.value, one) for one in report.against if one.speedup]
    if speedups:
        value, against = max(speedups, key=lambda pair: pair[0])
        cards.append(("largest speedup", f"{value:.2f}x", f"{against.group.label} against {against.baseline.label}"))
    accurate = [(top1, one) for one in report.groups if (top1 := one.middle("top1")) is not None]
    if accurate:
        top1, one = max(accurate, key=lambda pair: pair[0])
        cards.append(("highest top-1", f"{top1:.2%}", one.label))
    return cards


def _topologies(report: Report) -> Iterator[tuple[str, str]]:
    """(name, drawing as a data URL) of plans that the runs used: at most `_PLANS`, of up to `_LARGEST_PLAN` ranks."""
    from firetrain.config.names import TOPOLOGIES, installed_names
    from firetrain.topology.catalogue import find_topology
    from firetrain.topology.svg import draw

    seen: set[tuple[str, str]] = set()
    for group in report.groups:
        one = group.first
        spec, nodes = one.config.reduction.spec, _nodes(one)
        world = World.even(nodes, one.ranks // nodes)
        known = spec.name in installed_names(TOPOLOGIES) and 1 < world.size <= _LARGEST_PLAN
        known = known and one.config.strategy.servers is None
        if not known or (str(spec), str(world)) in seen or len(seen) == _PLANS:
            continue
        seen.add((str(spec), str(world)))
        try:
            text = draw(find_topology(str(spec))(world), world)
        except FiretrainError:
            continue
        data = base64.b64encode(text.encode()).decode()
        yield f"{spec}, {world}", f"data:image/svg+xml;base64,{data}"


def _common(report: Report) -> list[tuple[str, Any]]:
    """The settings that all groups share."""
    every = [settings(one.first) for one in report.groups]
    return [(key, value) for key, value in every[0].items() if all(one.get(key) == value for one in every)]


def _differing(report: Report) -> list[tuple[str, list[tuple[str, bool]]]]:
    """The settings in which groups differ: (setting, [(value, whether it differs from the baseline) for each group])."""
    shown = [settings(one.first) for one in report.groups[:_COMPARED]]
    base = settings(report.baseline.first)
    shared = {key for key, _ in _common(report)}
    return [
        (key, [(_text(one.get(key)), one.get(key) != base[key]) for one in shown]) for key in base if key not in shared
    ]


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _environment(group: Group) -> list[tuple[str, str]]:
    """The machine and the software of the first run of a group."""
    facts = group.first.facts
    machine = facts.get("machine") or {}
    packages = ", ".join(f"{name} {version}" for name, version in (machine.get("packages") or {}).items())
    shown = {
        "firetrain": machine.get("firetrain"), "commit": machine.get("commit"), "python": machine.get("python"),
        "packages": packages, "processor": machine.get("processor"), "cores": machine.get("cores"), "gpu": facts.get("gpu"),
        "nccl": facts.get("nccl"), "site": facts.get("site"), "hosts": ", ".join(facts.get("hosts") or []),
    }  # fmt: skip
    return [(key, str(value)) for key, value in shown.items() if value]
