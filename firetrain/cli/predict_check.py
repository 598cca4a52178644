"""The `--check` option of `predict`, which compares recorded runs with predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.options import echo_json, option_names, refuse_given, was_given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firetrain.records.profile import Profile

# settings that --check takes from the recorded run
_FROM_THE_RUN = (
    "per_rank",
    "ranks_per_node",
    "what_if",
    "epochs",
    "runs",
    "images",
    "mtbf_h",
    "price",
    "watts",
    "checkpoint_s",
)


def refuse_with_check(
    options: dict[str, Any], *, explain: bool, overrides: tuple[str, ...], plots: Path | None
) -> None:
    """UserError if an option was given that `--check` would ignore."""
    unfit = option_names({key: options[key] for key in _FROM_THE_RUN})
    refuse_given(
        {**unfit, "--explain": explain, "--set": overrides}, "not with --check, which takes these settings from the run"
    )
    if not plots:
        given = {f"--{name}": was_given(name) for name in ("ranks", "reductions", "strategies")}
        refuse_given(given, "with --check, only together with --plots")


def show_checks(paths: Sequence[Path], profile: Profile, label: str, *, as_json: bool) -> list[dict[str, Any]]:
    """Print how far each run of a model is from its prediction, and add it to the history of errors in this folder."""
    from firetrain.cli.layers import layers_of
    from firetrain.predict.check import check_runs, keep
    from firetrain.predict.prediction import UNCALIBRATED
    from firetrain.report.prediction import check_in_words

    found = check_runs(paths, profile, label, layers_of)
    kept = keep(found, Path())
    if as_json:
        echo_json({"calibrated": profile.calibrated, "checked": found})
        return found
    for one in found:
        click.echo(check_in_words(one))
    click.echo(f"added to {kept}")
    if not profile.calibrated:
        click.echo(UNCALIBRATED)
    return found
