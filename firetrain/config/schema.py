"""The config as a whole: its sections, and the checks between sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from firetrain.config.known_failures import known_failures
from firetrain.config.names import STALENESS_CANCELS, rate_without_effect
from firetrain.config.sections.batch import BatchSection
from firetrain.config.sections.checkpoint import CheckpointSection
from firetrain.config.sections.cluster import ClusterSection
from firetrain.config.sections.data import DataSection
from firetrain.config.sections.learning_rate import LearningRateSection
from firetrain.config.sections.log import LogSection
from firetrain.config.sections.model import ModelSection, refuse_small_images
from firetrain.config.sections.optimizer import OptimizerSection
from firetrain.config.sections.provenance import ProvenanceSection
from firetrain.config.sections.reduction import ReductionSection
from firetrain.config.sections.section import Section, WrongValue, as_mistake
from firetrain.config.sections.strategy import StrategySection
from firetrain.config.sections.target import TargetSection


class Config(Section):
    """The config of a run: everything that its numbers depend on.

    >>> from firetrain.config import load_config
    >>> config = load_config("quickstart").config
    >>> config.cluster.ranks, config.reduction.name
    (4, 'tree')
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="of convolutions and matrix products; tf32 rounds their inputs to 10 bits, on GPUs that support it",
    )
    deterministic: bool = Field(
        False, description="on GPUs, only kernels that give the same bits every time, as CPUs do anyway; slower"
    )
    channels_last: bool = True
    compile: bool = Field(
        False,
        description="torch.compile, for all batch sizes before the first step; takes minutes, which count as start-up",
    )
    compile_unit: Literal["model", "block"] | None = Field(
        None,
        description="what is compiled at once, with compile: true; model (default): the whole model, whose gradients then all "
        "arrive at the end of backward; block: each block, so that communication overlaps with backward",
    )
    model: ModelSection
    data: DataSection
    batch: BatchSection
    optimizer: OptimizerSection = Field(default_factory=lambda: OptimizerSection.model_validate({}))
    learning_rate: LearningRateSection
    strategy: StrategySection = Field(default_factory=lambda: StrategySection.model_validate({}))
    reduction: ReductionSection = Field(default_factory=lambda: ReductionSection.model_validate({}))
    target: TargetSection = Field(default_factory=lambda: TargetSection.model_validate({}))
    cluster: ClusterSection = Field(default_factory=lambda: ClusterSection.model_validate({}))
    checkpoint: CheckpointSection = Field(default_factory=lambda: CheckpointSection.model_validate({}))
    log: LogSection = Field(default_factory=lambda: LogSection.model_validate({}))

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="label smoothing in the training loss (Szegedy et al. 2016, section 7); evaluation does not use it",
    )
    provenance: ProvenanceSection | None = None
    force: bool = Field(False, description="allow settings that are known to fail (for experiments)")

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Config:
        self.refuse_unless(self.compile, ("compile_unit",), "compile: true")
        return self

    @model_validator(mode="after")
    def _rates_that_staleness_divides(self) -> Config:
        servers = self.strategy.servers
        if servers and dict(servers.policy.parameters).get("rate") and self.optimizer.name in STALENESS_CANCELS:
            raise WrongValue(("strategy",), rate_without_effect(self.optimizer.name))
        return self

    @model_validator(mode="after")
    def _images_that_the_model_takes(self) -> Config:
        refuse_small_images(self.model.name, self.model.stem or "", self.data.image_size)
        return self

    @model_validator(mode="after")
    def _one_batch(self) -> Config:
        ranks = self.cluster.ranks
        if self.batch.per_rank and self.batch.per_rank * ranks != self.batch.global_size:
            raise ValueError(
                f"batch.per_rank x ranks = {self.batch.per_rank} x {ranks} = {self.batch.per_rank * ranks}, but "
                f"batch.global_size is {self.batch.global_size}: remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _what_placements_cannot_do(self) -> Config:
        if self.strategy.is_data_parallel or self.strategy.servers:
            return self
        for given, path, what in (
            (self.compile, ("compile",), "compile: true"),
            (self.log.noise_scale, ("log", "noise_scale"), "log.noise_scale: true"),
            (self.data.on_bad_image == "skip", ("data", "on_bad_image"), "data.on_bad_image: skip"),
            (
                self.reduction.spec.name == "horovod",
                ("reduction", "name"),
                "reduction.name: horovod, which sums over all ranks only",
            ),
        ):
            if given:
                raise WrongValue(
                    path, f"strategy {self.strategy.spec} does not support {what}; use strategy.name: data-parallel"
                )
        return self

    @model_validator(mode="after")
    def _what_servers_cannot_do(self) -> Config:
        servers = self.strategy.servers
        if servers is None:
            return self
        for given, path, what in (
            (self.compile, ("compile",), "compile: true"),
            (self.log.noise_scale, ("log", "noise_scale"), "log.noise_scale: true"),
            (
                bool(self.batch.per_rank), ("batch", "per_rank"),
                "batch.per_rank, because servers compute no gradients; give batch.global_size",
            ),
        ):  # fmt: skip
            if given:
                raise WrongValue(path, f"strategy {self.strategy.spec} does not support {what}")
        with as_mistake():
            servers.workers(self.cluster.ranks, self.batch.global_size)
        return self

    @model_validator(mode="after")
    def _noise_of_equal_shares(self) -> Config:
        ranks = self.cluster.ranks
        if self.log.noise_scale and self.batch.global_size % ranks:
            raise ValueError(
                f"log.noise_scale needs a batch that divides evenly among the ranks (batch.global_size: "
                f"{self.batch.global_size}, ranks: {ranks})"
            )
        return self

    @model_validator(mode="after")
    def _warmup_rises(self) -> Config:
        base = self.learning_rate.base
        if self.learning_rate.warmup_from == "base" and base >= self.peak_rate:
            raise ValueError(
                f"learning_rate.warmup_from: base ({base:g}) is not below the rate after warmup ({self.peak_rate:g}): use zero"
            )
        return self

    @model_validator(mode="after")
    def _not_known_to_fail(self) -> Config:
        if not self.force:
            for failure in known_failures(self.model, self.batch, self.learning_rate, self.optimizer):
                raise ValueError(f"{failure.what}: {failure.advice}; set force: true to run it anyway")
        return self

    @property
    def peak_rate(self) -> float:
        """The learning rate after warmup at this config's batch."""
        return self.learning_rate.peak_for(self.batch.global_size)
