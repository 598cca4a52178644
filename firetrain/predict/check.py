"""Compare predictions with recorded runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.config.files import read_regular, refuse_irregular
from firetrain.config.label import model_label
from firetrain.config.sections.strategy import DATA_PARALLEL, method_of
from firetrain.errors import CannotCreate, UserError
from firetrain.limits import MOST_SECONDS
from firetrain.predict.predicted_step import PredictedStep
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import Question
from firetrain.records import Run
from firetrain.records.count import PositiveCount
from firetrain.records.file import cannot_write
from firetrain.records.profile import Profile
from firetrain.strategy.layer import Layer

HISTORY = "prediction-errors.jsonl"


class _Checked(BaseModel):
    """What a line of the history must have."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    run: str
    model: str
    global_batch: PositiveCount
    ranks: PositiveCount
    strategy: str = DATA_PARALLEL
    reduction: str
    measured_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)]
    predicted_s: float
    low_s: float
    high_s: float


LayersOf = Callable[[Config], Sequence[Layer]]


def predict_rows(
    config: Config, profile: Profile, reductions: Sequence[str], ranks: int, nodes: int, **more: Any
) -> list[PredictedStep]:
    """Predict the config's step for each reduction; `more`: further fields of the Question.

    UserError if nodes have different numbers of ranks.
    """
    if nodes < 1 or ranks % nodes:
        raise UserError(f"{ranks} ranks on {nodes} nodes: predictions need the same number of ranks on every node")
    return Predictor(profile, Question.of(config, [ranks], reductions, ranks // nodes, **more)).rows()


def refuse_unpredictable(config: Config, profile: Profile, reductions: Sequence[str], world: World) -> None:
    """UserError if the steps of these reductions in this world cannot be predicted from the profile."""
    predict_rows(config, profile, reductions, world.size, len(world.nodes), reads=False)


def predict_steps(
    config: Config, profile: Profile, reductions: Sequence[str], measured: Mapping[str, Any]
) -> dict[str, Any]:
    """The predicted seconds per step of each contender of `firetrain bench step`, with the error of the prediction."""
    rows = predict_rows(config, profile, reductions, measured["ranks"], measured["nodes"], reads=False)
    found = {}
    for row in rows:
        name = f"firetrain {row.reduction}"
        error = row.step_s / measured["step_s"][name]["median"] - 1
        found[name] = {"value": row.step_s, "low": row.low_s, "high": row.high_s, "error": error}
    return found


def check(run: Run, profile: Profile, layers_of: LayersOf) -> dict[str, Any]:
    """Compare the median step of a run with its prediction; UserError if the run has too few steps.

    `layers_of`: the layers of a config's model, called for strategies other than data-parallel.
    """
    config, steps, summary = run.config(), run.metrics("step"), run.summary()
    if len(steps) < 2:
        raise UserError(f"{run.path} has {len(steps)} logged steps: too few for a comparison")
    if "ranks" not in run.facts():
        raise UserError(f"{run.path} does not record its number of ranks")
    ranks = int(run.facts()["ranks"])
    nodes = int(summary.get("nodes") or config.cluster.nodes)
    strategy = str(run.placement if config.strategy.profile else config.strategy.spec)
    layers = () if config.strategy.is_data_parallel else layers_of(config)
    (row,) = predict_rows(
        config, profile, [str(config.reduction.spec)], ranks, nodes, strategies=[strategy], layers=layers
    )
    steps_s = [step.get("step_s", 0.0) for step in steps[1:]]  # the first line includes the warm-up
    if min(steps_s) <= 0:
        raise UserError(f"{run.path / 'metrics.jsonl'}: damaged, a step_s is not a number above 0")
    measured_s = median(steps_s)
    return {
        "run": run.name, "model": model_label(config.model, config.data), "global_batch": row.global_batch, "ranks": ranks,
        "strategy": row.strategy, "reduction": row.reduction, "measured_s": measured_s, "predicted_s": row.step_s,
        "low_s": row.low_s, "high_s": row.high_s, "error": row.step_s / measured_s - 1,
    }  # fmt: skip


def check_runs(paths: Sequence[Path], profile: Profile, model: str, layers_of: LayersOf) -> list[dict[str, Any]]:
    """`check` of each run; UserError if one of them trained a different model than the one labelled `model`."""
    found = [check(Run.open(path), profile, layers_of) for path in paths]
    for path, one in zip(paths, found, strict=True):
        if one["model"] != model:
            raise UserError(f"{path} trained {one['model']}, not {model}")
    return found


def keep(found: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Append checked runs to the history of errors in `folder`; UserError or CannotCreate if that fails."""
    path = folder / HISTORY
    refuse_irregular(path)
    with cannot_write(path, CannotCreate), path.open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in found)
    return path


def history(folder: Path) -> list[dict[str, Any]]:
    """The history of errors in `folder`, with the latest entry of each run and method; UserError if it is unreadable."""
    path = folder / HISTORY
    found = dict[tuple[str, str], dict[str, Any]]()
    for number, line in enumerate(read_regular(path).splitlines(), 1):
        try:
            one = _Checked.model_validate_json(line).model_dump(exclude_unset=True)
            found[one["run"], method_of_line(one)] = one
        except (ValidationError, UserError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise UserError(
                f"{path}:{number}: not a checked run ({reason}); rename the file to start a new history"
            ) from None
    return list(found.values())


def method_of_line(line: Mapping[str, Any]) -> str:
    """The method of a checked run; lines that were written before there were strategies have none."""
    return method_of(line.get("strategy", DATA_PARALLEL), line["reduction"])
