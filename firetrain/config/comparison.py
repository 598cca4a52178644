"""The comparison that `firetrain compare` runs, from a file or from options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, field_validator, model_validator

from firetrain.config.document import Document, Position
from firetrain.config.files import read_yaml
from firetrain.config.load import find_config, load_config
from firetrain.config.names import check_reduction, check_strategy, reduction_names
from firetrain.config.sections.section import Ranks, Section, as_mistake
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.config.shipped import shipped
from firetrain.config.spec import Spec, parse_list
from firetrain.config.validation import validate
from firetrain.errors import UserError, unknown
from firetrain.limits import MOST_RANKS

Texts = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
Counts = Annotated[tuple[Ranks, ...], Field(strict=False, min_length=1)]
# the most combinations of configs, arms, reductions, worlds and repeats, each of which is a run
MOST_TRIALS = 2_000
_MOST_STEPS = 100_000
REDUCTIONS = ("ring", "tree", "double-tree", "hierarchical", "parameter-server", "native", "auto")

# those of which a script needs nothing but a name
REDUCTIONS_OF_COMMANDS = tuple(name for name in REDUCTIONS if name != "auto")


class Comparison(Section):
    """Every config with every strategy and reduction on several numbers of nodes, repeated several times."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    configs: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="names of shipped configs, or files"
    )
    command: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="a command of your own that is compared in place of configs"
    )
    folder: str = Field(".", description="where the command is run")
    overrides: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="section.key=value, applied to all configs"
    )
    arms: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(
        default_factory=dict, description="arms of each config by name, each with its own overrides"
    )
    reductions: Texts = REDUCTIONS
    strategies: Texts = (DATA_PARALLEL,)
    nodes: Counts = (1, 2)
    ranks_per_node: Counts = (1,)
    repeats: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="number of repeats, each with all reductions in shuffled order; to the target: number of seeds"
    )
    steps: Annotated[int, Field(ge=1, le=_MOST_STEPS)] | None = Field(
        20, description="timed steps of each trial; null: each trial trains to its config's target"
    )
    warmup_steps: Annotated[int, Field(ge=0, le=_MOST_STEPS)] | None = Field(
        None, description="untimed steps at the start of each trial; default 5"
    )

    @field_validator("reductions")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        with as_mistake():
            for name in names:
                check_reduction(Spec.parse(name))
        return names

    @field_validator("strategies")
    @classmethod
    def _known_strategies(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        with as_mistake():
            for name in names:
                check_strategy(Spec.parse(name))
        return names

    @field_validator("arms")
    @classmethod
    def _nameable(cls, arms: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        odd = [name for name in arms if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", name)]
        if odd:
            raise ValueError(
                f"names must consist of letters, digits, dots, dashes and underscores (got {', '.join(map(repr, odd))})"
            )
        return arms

    @field_validator("ranks_per_node", mode="before")
    @classmethod
    def _one_or_several(cls, count: Any) -> Any:
        return [count] if isinstance(count, int) else count

    @field_validator("configs", "reductions", "strategies", "nodes", "ranks_per_node")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is listed twice")
        return values

    @model_validator(mode="after")
    def _configs_or_command(self) -> Comparison:
        """Reject comparisons of nothing, and settings of a command that only configs have."""
        if bool(self.configs) == bool(self.command):
            raise ValueError("a comparison needs either configs or a command")
        if self.command and (self.steps is None or self.arms or self.overrides or self.strategies != (DATA_PARALLEL,)):
            raise ValueError(
                "a command has reductions and steps, and no config with arms, overrides, strategies or a target"
            )
        return self

    @model_validator(mode="after")
    def _decides_itself(self) -> Comparison:
        """Reject overrides of keys that the comparison itself sets for each trial."""
        owned = {"cluster.nodes": "nodes", "cluster.ranks_per_node": "ranks_per_node"}
        owned |= dict.fromkeys(("reduction.name", "reduction.parameters"), "reductions")
        owned |= dict.fromkeys(("strategy.name", "strategy.parameters"), "strategies")
        if self.steps is not None:
            owned |= dict.fromkeys(
                ("target.max_steps", "target.max_epochs", "target.evaluate_every_epochs", "target.top1"), "steps"
            )
        for text in (*self.overrides, *(text for arm in self.arms.values() for text in arm)):
            key = text.partition("=")[0].strip()
            if key in owned:
                raise ValueError(f"a comparison sets {key} itself: use {owned[key]} instead")
        return self

    @model_validator(mode="after")
    def _not_too_many(self) -> Comparison:
        ranks = max(self.nodes) * max(self.ranks_per_node)
        if ranks > MOST_RANKS:
            raise ValueError(
                f"{max(self.nodes)} nodes with {max(self.ranks_per_node)} ranks each are {ranks} ranks; the limit is {MOST_RANKS}"
            )
        lists = (
            self.configs or (self.command,),
            self.arms or ("",),
            self.strategies,
            self.reductions,
            self.nodes,
            self.ranks_per_node,
        )
        trials = math.prod(map(len, lists)) * self.repeats
        if trials > MOST_TRIALS:
            raise ValueError(f"{trials:,} trials; a comparison may have at most {MOST_TRIALS:,}: lower repeats")
        return self

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Comparison:
        self.refuse_unless(self.steps is not None, ("warmup_steps",), "steps")
        return self

    @property
    def untimed_steps(self) -> int:
        """The number of untimed steps of each trial."""
        return 0 if self.steps is None else 5 if self.warmup_steps is None else self.warmup_steps

    def text(self) -> str:
        """The comparison as YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, default_flow_style=None)


def shipped_comparisons() -> dict[str, Path]:
    """The comparisons that come with firetrain, by name."""
    return shipped("firetrain.configs.compare", "configs/compare")


def load_comparison(name: str, options: Mapping[str, Any]) -> Comparison:
    """The comparison called `name`: a shipped name, a file, or a single config. Command-line options replace its values.

    UserError, or ConfigError with all mistakes.
    """
    path = find_config(name, shipped_comparisons())
    document = read_yaml(path)
    if "configs" not in document.data:
        stem = load_config(name).config.name  # reports mistakes of the config first
        document = Document(str(path), {"name": stem, "configs": [name]})
    for key, value in options.items():
        before = document.data.get(key)
        # --set adds to the file's overrides; the other options replace the file's values
        document.data[key] = [*before, *value] if key == "overrides" and isinstance(before, list) else value
        document.positions[(key,)] = Position(f"--{key.replace('_', '-')}")
    return validate(document, Comparison)


def comparison_of_command(name: str, command: Sequence[str], folder: str, options: Mapping[str, Any]) -> Comparison:
    """The comparison of reductions in a command of the user's own. UserError, or ConfigError with all mistakes."""
    data = {
        "reductions": list(REDUCTIONS_OF_COMMANDS),
        **options,
        "name": name,
        "command": list(command),
        "folder": folder,
    }
    known = [name for name in reduction_names() if name != "auto"]
    for name in (Spec.parse(text).name for text in data["reductions"]):
        if name == "auto":
            raise UserError("--reductions: auto would measure during the steps of a command: name the others")
        if name not in known:
            raise UserError(f"--reductions: {unknown('reduction', name, known)}")
    positions: dict[tuple[str | int, ...], Position] = {
        (key,): Position(f"--{key.replace('_', '-')}") for key in options
    }
    return validate(Document("the command line", data, positions), Comparison)


def split_specs(text: str) -> list[str]:
    """A text such as `ring,hierarchical:inner=ring,outer=tree` as a list; UserError if it cannot be parsed."""
    return [str(spec) for spec in parse_list(text)]


def split_counts(text: str, option: str, most: int) -> Iterator[int]:
    """A text such as `1,2,4` as numbers; UserError, which names the option, if one is no number from 1 to `most`."""
    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]+\s*", part):
            raise UserError(f"{option}: expected numbers separated by commas, such as 1,2,4 (got {text!r})")
        digits = part.strip().lstrip("0")
        if len(digits) > len(str(most)) or not 1 <= int(digits or 0) <= most:
            raise UserError(f"{option}: {part.strip()} is not from 1 to {most}")
        yield int(digits)
