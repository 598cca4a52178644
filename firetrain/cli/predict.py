"""firetrain predict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.options import (
    amount_type,
    config_argument,
    echo_json,
    json_option,
    print_grid,
    ranks_type,
    refuse_given,
    set_option,
    was_given,
)
from firetrain.limits import MOST_IMAGES, MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firetrain.config import Config
    from firetrain.predict.model import Row
    from firetrain.predict.question import Question
    from firetrain.records.profile import Profile
    from firetrain.report.grid import Grid

_REDUCTIONS = "ring,tree,double-tree,pipelined-tree,halving-doubling,torus,hierarchical,direct,parameter-server"
_UNCALIBRATED = "UNCALIBRATED: links and speeds are assumed, not measured; firetrain bench profile measures them"


@click.command()
@config_argument
@click.option(
    "--profile", "profile_name", metavar="NAME|FILE", help="What was measured; without one, assumed links and speeds."
)
@click.option(
    "--ranks", default="1:1024", show_default=True, metavar="N,N|N:N", help="How many; A:B doubles from A to B."
)
@click.option("--ranks-per-node", type=ranks_type, help="[default: the profile's, else the config's]")
@click.option("--reductions", default=_REDUCTIONS, metavar="NAME,NAME", help="[default: all that have a formula]")
@click.option(
    "--per-rank", type=click.IntRange(1, MOST_IMAGES), help="Images per rank: the batch grows with the ranks."
)
@click.option(
    "--what-if", default="", metavar="KEY=xN,...", help="bandwidth, latency, compute, oversubscription, leaf."
)
@click.option("--epochs", metavar="BATCH:EPOCHS,...", help="Epochs to the target at some batches.")
@click.option(
    "--runs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Recorded runs to take these epochs from.",
)
@click.option("--images", type=click.IntRange(1, 1 << 40), help="Images in an epoch.")
@click.option("--mtbf-h", type=amount_type, help="Hours between failures of a node.")
@click.option("--checkpoint-s", type=amount_type, help="To write one, with --mtbf-h.  [default: 10]")
@click.option("--price", type=amount_type, help="Of a node's hour.")
@click.option("--watts", type=amount_type, help="Of a rank.")
@click.option("--explain", is_flag=True, help="Print the formulas with the numbers in them.")
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Draw scaling, parts and crossovers in here."
)
@click.option(
    "--check", "checks", type=click.Path(path_type=Path), metavar="RUN", multiple=True,
    help="Hold the prediction against a recorded run; may be repeated.",
)  # fmt: skip
@set_option
@json_option
def predict(
    config: str, profile_name: str | None, ranks: str, ranks_per_node: int | None, reductions: str, per_rank: int | None,
    what_if: str, epochs: str | None, runs: Path | None, images: int | None, mtbf_h: float | None, checkpoint_s: float | None,
    price: float | None, watts: float | None, explain: bool, plots: Path | None, checks: tuple[Path, ...],
    overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Foretell CONFIG's step time, scaling and time-to-accuracy on many ranks, for every reduction, from a profile.

    \b
    Examples:
      firetrain predict googlenet-firecaffe --profile titan-k20 --ranks 1:128
      firetrain predict squeezenet-b512 --ranks 1:131072 --per-rank 4 --what-if bandwidth=x2
      firetrain predict squeezenet-digits --profile profile.json --check results/RUN --plots plots
    """
    from firetrain.config import load_config
    from firetrain.config.comparison import split_reductions
    from firetrain.errors import UserError
    from firetrain.predict.epochs import epochs_of, epochs_through
    from firetrain.predict.label import model_label
    from firetrain.predict.model import Model, crossovers
    from firetrain.predict.model import as_json as rows_as_json
    from firetrain.predict.question import Question, WhatIf
    from firetrain.records.profile import Profile

    loaded = load_config(config, overrides).config
    checked: list[dict[str, Any]] = []
    profile = Profile.find(profile_name or "uncalibrated")
    if checks:
        unfit = {"--per-rank": per_rank, "--ranks-per-node": ranks_per_node, "--what-if": what_if, "--epochs": epochs,
                 "--runs": runs, "--images": images, "--mtbf-h": mtbf_h, "--price": price, "--watts": watts,
                 "--checkpoint-s": checkpoint_s, "--explain": explain, "--set": overrides}  # fmt: skip
        refuse_given(unfit, "not with --check, which asks what the run has done")
        if not plots:
            refuse_given(_given("ranks", "reductions"), "only with --plots, if there is a --check")
        checked = _show_checks(checks, profile, loaded, as_json)
        if not plots:
            return
    if as_json:
        refuse_given({"--explain": explain}, "not with --json, which has the parts already")
    if not mtbf_h:
        refuse_given({"--checkpoint-s": checkpoint_s}, "only with --mtbf-h")
    label = model_label(loaded)
    recipe = next((one for one in profile.recipes if one.model == label), None)
    if epochs:
        refuse_given({"--runs": runs}, "not with --epochs, which says the same")
    points = _points(epochs) if epochs else epochs_of(runs, loaded) if runs else recipe.epochs if recipe else ()
    images = images or (recipe.images if recipe else None)
    in_hours = {"--mtbf-h": mtbf_h, "--price": price, "--watts": watts, "--epochs": epochs, "--runs": runs,
                "--images": images}  # fmt: skip
    if not (points and images):
        refuse_given(in_hours, "hours to the target take both, epochs (--epochs or --runs) and --images")
    counts = _counts(ranks)
    batch = None if per_rank or loaded.batch.per_rank else loaded.batch.global_size
    notes = list(profile.notes)
    if not profile.calibrated:
        notes.insert(0, _UNCALIBRATED)
    if batch and (beyond := [count for count in counts if count > batch]):
        counts = [count for count in counts if count <= batch]
        notes.append(
            f"{len(beyond)} counts left out: more ranks than images in the batch of {batch}; --per-rank lets it grow"
        )
    if not counts:
        raise UserError(
            f"--ranks {ranks}: more ranks than images in the batch of {batch}; --per-rank lets it grow with them"
        )
    question = Question.of(
        loaded, counts, list(dict.fromkeys([*split_reductions(reductions), *(one["reduction"] for one in checked)])),
        ranks_per_node or profile.ranks_per_node or loaded.cluster.ranks_per_node, global_batch=batch,
        per_rank=per_rank or loaded.batch.per_rank, what_if=WhatIf.parse(what_if), images=images,
        epochs=epochs_through(points) if points else None, mtbf_h=mtbf_h, checkpoint_s=checkpoint_s or 10.0,
        price_per_node_hour=price, watts_per_rank=watts,
    )  # fmt: skip
    notes += _limits(question, profile, points)
    if not profile.message_gap and max(counts) > 1:
        notes.append(
            "what a message costs its ends was not measured: half the latency is assumed, the most that it can be "
            "(firetrain bench link measures it)"
        )
    model = Model(profile, question)
    rows = model.rows()
    if checks:
        pass  # told already
    elif as_json:
        echo_json(
            {"calibrated": profile.calibrated, "model": label, "notes": notes, "rows": rows_as_json(rows),
             "crossovers": crossovers(rows), "published": _published(profile, label, rows)}
        )  # fmt: skip
    else:
        _show(rows, notes, _published(profile, label, rows))
        if explain:
            _explain(model, question, rows)
    if plots:
        from firetrain.predict.check import history
        from firetrain.report.prediction_plot import write_plots

        title = "" if profile.calibrated else "UNCALIBRATED: links and speeds are assumed"
        for path in write_plots(rows, model, question, plots, title, history(Path()) if checks else ()):
            click.echo(path, err=True)


def _counts(text: str) -> list[int]:
    """`1:128` doubles, `1,3,6` are those."""
    from firetrain.errors import UserError

    first, colon, last = text.partition(":")
    parts = [first, last] if colon else text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", part) for part in parts):
        raise UserError(
            f"--ranks: expected numbers with commas between them, or the first and the last: 1:1024 (got {text!r})"
        )
    numbers = [int(part) for part in parts]
    if not all(1 <= number <= MOST_RANKS for number in numbers) or (colon and numbers[0] > numbers[1]):
        raise UserError(f"--ranks: from 1 to {MOST_RANKS}, the smaller first (got {text})")
    if not colon:
        return sorted(set(numbers))
    found = [numbers[0]]
    while found[-1] * 2 <= numbers[1]:
        found.append(found[-1] * 2)
    return found


def _points(text: str) -> list[tuple[int, float]]:
    from firetrain.errors import UserError

    try:
        points = [(int(batch), float(count)) for batch, count in (part.split(":") for part in text.split(","))]
    except ValueError:
        points = []
    if not points or any(batch < 1 or not 0 < count < 1e6 for batch, count in points):
        raise UserError(f"--epochs: expected BATCH:EPOCHS,..., for instance 32:64,1024:72 (got {text!r})")
    return points


def _limits(question: Question, profile: Profile, points: Sequence[tuple[int, float]]) -> list[str]:
    """What is beyond what was measured."""
    notes = []
    steps = [step for step in profile.steps if step.model == question.model]
    shares = [-(-question.batch(count) // count) for count in question.counts]
    measured = [step.batch_per_rank for step in steps]
    if measured and (min(shares) < min(measured) or max(shares) > max(measured)):
        notes.append(
            f"computing was measured at {', '.join(map(str, sorted(measured)))} images per rank; here "
            f"{' to '.join(map(str, sorted({min(shares), max(shares)})))} are asked for"
        )
    levels = {link.level for link in profile.links}
    if max(question.counts) > question.per_node and "between nodes" not in levels:
        notes.append("the profile has no links between nodes: those inside a node stand for them")
    if question.per_node > 1 and max(question.counts) > 1 and "inside a node" not in levels:
        notes.append("the profile has no links inside a node: those between nodes stand for them")
    largest = max(question.batch(count) for count in question.counts)
    if points and largest > max(batch for batch, _ in points):
        notes.append(
            f"epochs are known up to a batch of {max(points)[0]}; beyond it, to {largest}, they are extrapolated"
        )
    smallest = min(question.batch(count) for count in question.counts)
    if points and smallest < min(batch for batch, _ in points):
        notes.append(f"epochs are known from a batch of {min(points)[0]} on; {smallest} is below it")
    return notes


def _show(rows: Sequence[Row], notes: Sequence[str], published: Sequence[dict[str, Any]]) -> None:
    from firetrain.predict.model import crossovers

    print_grid(_grid(rows))
    for count, before, after in crossovers(rows):
        click.echo(f"from {count} ranks on take {after}, before it {before}")
    if any(row.ranks > 1 for row in rows):
        click.echo(
            "place: 1 + how many are surely faster; of one place: no difference to be seen; *: the simplest of the first"
        )
    last = next(row for row in rows if row.ranks == rows[-1].ranks and row.is_named)
    click.echo(f"on {last.ranks} ranks the largest part of a step is: {last.limit}")
    for one in published:
        gain = f", {one['foretold_speedup']:.1f}x to the same accuracy" if one["foretold_speedup"] else ""
        click.echo(
            f"published for {one['ranks']} ranks: {one['hours']} h, {one['speedup']}x; here {one['foretold_h']:.2f} h "
            f"({one['error']:+.1%}){gain}, with {one['reduction']} ({one['source']})"
        )
    for note in notes:
        click.echo(note)


def _grid(rows: Sequence[Row]) -> Grid:
    from firetrain.predict.model import PARTS
    from firetrain.report.grid import Grid

    optional = {"hours": "hours", "cost": "cost", "kWh": "kwh"}
    shown = {heading: key for heading, key in optional.items() if any(getattr(row, key) is not None for row in rows)}
    headings = [
        "ranks",
        "reduction",
        "place",
        "batch",
        "step ms",
        "95 %",
        *PARTS,
        "images/s",
        "speedup",
        "efficiency",
        *shown,
    ]
    lines: list[list[str]] = []
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before.ranks != row.ranks:
            lines.append([])
        lines.append(
            [
                str(row.ranks),
                row.reduction + (" *" if row.is_named and row.ranks > 1 else ""),
                str(row.place),
                str(row.global_batch),
                f"{1e3 * row.step_s:.1f}",
                f"{1e3 * row.low_s:.1f} to {1e3 * row.high_s:.1f}" if row.low_s < row.high_s else "-",
                *(f"{1e3 * row.parts[part]:.1f}" for part in PARTS),
                f"{row.images_per_s:,.0f}",
                f"{row.speedup:.1f}x",
                f"{row.efficiency:.0%}",
                *("-" if getattr(row, key) is None else f"{getattr(row, key):,.2f}" for key in shown.values()),
            ]  # fmt: skip
        )
    return Grid(headings, lines, names=2)


def _published(profile: Profile, label: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Published results beside what is foretold for them. Speedup is of time-to-accuracy, against one rank's own recipe."""
    found = []
    recipe = next((one for one in profile.recipes if one.model == label), None)
    for one in profile.published:
        row = next((row for row in rows if (row.ranks, row.reduction) == (one.ranks, one.reduction)), None)
        if one.model != label or row is None or not row.hours or recipe is None:
            continue
        alone = next(row for row in rows if row.ranks == 1) if any(row.ranks == 1 for row in rows) else None
        alone_h = min(recipe.epochs)[1] * recipe.images / alone.images_per_s / 3600 if alone else None
        found.append(
            {"ranks": one.ranks, "reduction": one.reduction, "hours": one.hours, "speedup": one.speedup, "foretold_h": row.hours,
             "error": row.hours / one.hours - 1, "foretold_speedup": alone_h / row.hours if alone_h else None,
             "source": one.source}
        )  # fmt: skip
    return found


def _explain(model: Any, question: Question, rows: Sequence[Row]) -> None:
    """Formulas, and their numbers for the largest count."""
    import numpy as np

    from firetrain.predict.model import PARTS
    from firetrain.predict.network import Shape

    network, count = model.network, rows[-1].ranks
    shape = Shape.of(count, question.per_node)
    click.echo(f"\nstep = {' + '.join(PARTS)}")
    click.echo(
        f"p = {count}, g = {shape.per_node}, m = {shape.nodes}; a1 = {float(network.inside.latency_s[0]):.3g} s, "
        f"b1 = {float(network.inside.s_per_byte[0]):.3g} s/byte, a2 = {float(network.between.latency_s[0]):.3g} s, "
        f"b2 = {float(network.between.s_per_byte[0]):.3g} s/byte, one pair {float(network.alone.s_per_byte[0]):.3g} s/byte, "
        f"c = {float(network.s_per_added_byte[0]):.3g} s/byte, o = {float(np.ravel(network.gap_s)[0]):.3g} s; with 32 senders "
        f"incast {float(network.incast[0]):.3g}, congestion "
        f"{float(network.congestion[0]):.3g}"
    )
    buckets = model.buckets(count)
    click.echo(f"buckets: {', '.join(f'{size / 1e6:.2f} MB ready at {ready:.0%}' for size, ready in buckets)}")
    for reduction in question.reductions if count > 1 else []:
        times = [float(model.exchange_s(count, reduction, size)[0]) for size, _ in buckets]
        text, overlap = model.formula_text(count, reduction), model.overlap(count, reduction)
        follows = f"; a bucket that follows another at once takes {overlap:.0%} of that" if overlap < 0.995 else ""
        click.echo(
            f"{reduction}: {text} = {' + '.join(f'{1e3 * time:.2f}' for time in times)} = {1e3 * sum(times):.2f} ms{follows}"
        )


def _given(*names: str) -> dict[str, bool]:
    """Which of these options the user wrote."""
    return {f"--{name}": was_given(name) for name in names}


def _show_checks(paths: Sequence[Path], profile: Profile, config: Config, as_json: bool) -> list[dict[str, Any]]:
    from firetrain.errors import UserError
    from firetrain.predict.check import check, keep
    from firetrain.predict.label import model_label
    from firetrain.records import Run

    found = [check(Run.open(path), profile) for path in paths]
    for path, one in zip(paths, found, strict=True):
        if one["model"] != model_label(config):
            raise UserError(f"{path} has trained {one['model']}, and not {model_label(config)} of config {config.name}")
    kept = keep(found, Path())
    if as_json:
        echo_json({"calibrated": profile.calibrated, "checked": found})
        return found
    for one in found:
        inside = "inside" if one["low_s"] <= one["measured_s"] <= one["high_s"] else "outside"
        click.echo(
            f"{one['run']}: measured {1e3 * one['measured_s']:.1f} ms per step, foretold {1e3 * one['foretold_s']:.1f} ms "
            f"({one['error']:+.1%}), {inside} of {1e3 * one['low_s']:.1f} to {1e3 * one['high_s']:.1f} ms"
        )
    click.echo(f"kept in {kept}")
    if not profile.calibrated:
        click.echo(_UNCALIBRATED)
    return found
