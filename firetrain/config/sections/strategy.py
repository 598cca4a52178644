"""The `strategy` section."""

from __future__ import annotations

from pydantic import Field, model_validator

from firetrain.config.names import (
    AUTO_STRATEGY,
    PARAMETER_SERVER,
    ParameterServer,
    check_strategy,
    is_placement_file,
)
from firetrain.config.sections.section import Section, as_mistake
from firetrain.config.spec import Spec
from firetrain.errors import UserError

DATA_PARALLEL = "data-parallel"


def method_of(strategy: str, reduction: str) -> str:
    """A strategy and a reduction in words: the reduction, after the strategy if that is not data-parallel.

    Parameter servers reduce nothing. Their policy is named, so that none of them has the name of a reduction.

    >>> method_of("parameter-server", "ring"), method_of("data-parallel", "parameter-server")
    ('parameter-server:policy=sync', 'parameter-server')
    """
    spec = Spec.parse(strategy)
    if spec.name == PARAMETER_SERVER:
        return str(Spec(spec.name, tuple({"policy": "sync", **dict(spec.parameters)}.items())))
    return reduction if strategy == DATA_PARALLEL else f"{strategy}, {reduction}"


class StrategySection(Section):
    """How the model is placed on the ranks."""

    name: str = Field(
        DATA_PARALLEL,
        description="a name, with parameters name:key=value,key=value; a placement file (.yaml); auto:profile=FILE, which "
        "searches when training starts; or parameter-server:policy=NAME, whose servers own the weights",
    )
    parameters: dict[str, str | int | bool] = Field(default_factory=dict, description="the parameters as a mapping")

    @model_validator(mode="after")
    def _known(self) -> StrategySection:
        with as_mistake():
            check_strategy(self.spec)
        return self

    @property
    def spec(self) -> Spec:
        """The name with its parameters, whichever way they are given."""
        found = {
            key: str(value).lower() if isinstance(value, bool) else value for key, value in self.parameters.items()
        }
        return Spec.parse(self.name, found)

    @property
    def is_file(self) -> bool:
        """Whether the name is that of a placement file."""
        return is_placement_file(self.name)

    @property
    def profile(self) -> str | None:
        """The profile by which the placement is searched when training starts; None if it is known."""
        return dict(self.spec.parameters)["profile"] if self.spec.name == AUTO_STRATEGY else None

    @property
    def servers(self) -> ParameterServer | None:
        """The servers that own the weights, and the policy of the workers; None under other strategies."""
        return ParameterServer.of(self.spec) if self.spec.name == PARAMETER_SERVER else None

    @property
    def is_data_parallel(self) -> bool:
        """Whether every rank has the whole model."""
        return self.spec.name == DATA_PARALLEL

    def refuse_placed(self, command: str) -> None:
        """UserError if the strategy is one that `command` does not time."""
        if not self.is_data_parallel:
            raise UserError(
                f"{command} times data-parallel training, and strategy.name is {self.spec}: use strategy.name={DATA_PARALLEL}, "
                "or firetrain bench strategies"
            )
