"""The config: its sections, their keys, types, defaults and bounds. The one place where they are written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from firetrain.config.names import check_reduction
from firetrain.config.spec import Spec
from firetrain.errors import UserError

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]

MODELS = ("alexnet", "googlenet", "googlenet_paper", "lenet", "nin", "squeezenet1_0", "squeezenet1_1")
DATASETS = ("digits", "dogs-vs-cats", "folders", "idx", "synthetic", "tiny-imagenet")


@contextmanager
def _as_mistake() -> Iterator[None]:
    """What a user got wrong becomes one of the config's mistakes, told with its place."""
    try:
        yield
    except UserError as error:
        raise ValueError(str(error)) from None


class Section(BaseModel):
    """A part of the config: no unknown key, no silent conversion, never changed after loading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def refuse_unless(self, condition: bool, keys: tuple[str, ...], where: str) -> None:
        """An option that would do nothing is a mistake: raise ValueError for those of `keys` that were given."""
        given = [key for key in keys if getattr(self, key) is not None]
        if given and not condition:
            verb = "has" if len(given) == 1 else "have"
            raise ValueError(
                f"{', '.join(given)} {verb} no effect here: only with {where}; remove it or set it to null"
            )


class Model(Section):
    """Which network, and for which size of image its first layers are made."""

    name: Literal[MODELS]  # type: ignore[valid-type]
    stem: Literal["imagenet", "small"] = Field("imagenet", description="small: for images of 16 to 64 pixels")
    auxiliary_heads: bool | None = Field(None, description="GoogLeNet's two extra classifiers; default off")
    auxiliary_weight: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="weight of each extra classifier's loss, default 0.3 (Szegedy et al. 2015, section 5)"
    )

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Model:
        self.refuse_unless(self.name.startswith("googlenet"), ("auxiliary_heads",), "googlenet and googlenet_paper")
        self.refuse_unless(bool(self.auxiliary_heads), ("auxiliary_weight",), "auxiliary_heads: true")
        return self


class Data(Section):
    """Which images, at which size, and how they are varied in training."""

    name: Literal[DATASETS]  # type: ignore[valid-type]
    root: str | None = Field(None, description="the data's folder; relative to where firetrain is started")
    image_size: Annotated[int, Field(ge=8, le=1024)] = Field(description="pixels on each side, as the model sees them")
    augmentation: Literal["none", "flip", "shift-flip", "random-resized-crop"] = "none"
    on_bad_image: Literal["fail", "skip"] = "fail"
    threads: Positive | None = Field(
        None, description="loading threads per rank; default: the rank's share of the cores"
    )
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="dogs-vs-cats: share of the labelled images kept for evaluation, default 0.1"
    )
    images: Positive | None = Field(None, description="synthetic: how many training images, default 4096")
    classes: Annotated[int, Field(ge=2)] | None = Field(None, description="synthetic: how many classes, default 10")

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Data:
        self.refuse_unless(self.name not in ("digits", "synthetic"), ("root",), "data that is read from files")
        self.refuse_unless(self.name == "dogs-vs-cats", ("validation_share",), "dogs-vs-cats")
        self.refuse_unless(self.name == "synthetic", ("images", "classes"), "synthetic")
        if self.root is None and self.name not in ("digits", "synthetic"):
            raise ValueError(f"{self.name} is read from files: give its folder as root")
        return self


class Batch(Section):
    """How many images one step is made of."""

    global_size: Positive = Field(description="images per step, over all ranks")
    per_rank_max: Positive | None = Field(
        None, description="images one rank holds at once; a larger part is split and its gradients accumulated"
    )


class Optimizer(Section):
    """SGD with momentum, or LARS (You, Gitman and Ginsburg 2017)."""

    name: Literal["sgd", "lars"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    excluded: Annotated[tuple[Literal["bias", "norm"], ...], Field(strict=False)] = Field(
        ("bias", "norm"), description="parameters without weight decay and without LARS's trust ratio"
    )
    trust_coefficient: Annotated[float, Field(gt=0)] | None = Field(None, description="lars: eta, default 0.001")
    excluded_rate: Literal["base", "raw"] | None = Field(
        None, description="lars: learning rate of the excluded parameters: the small batch's (default) or LARS's own"
    )

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Optimizer:
        self.refuse_unless(self.name == "lars", ("trust_coefficient", "excluded_rate"), "lars")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class LearningRate(Section):
    """The learning rate as a function of the step."""

    base: Annotated[float, Field(gt=0)] = Field(description="the rate that suits base_batch")
    base_batch: Positive | None = Field(None, description="the batch that base was tuned for; default the global batch")
    scaling: Literal["none", "linear", "sqrt"] = "none"
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["constant", "step", "poly", "linear", "cosine"] = "constant"
    power: Annotated[float, Field(gt=0)] | None = Field(None, description="poly: (1 - t/T)^power, default 1")
    every_epochs: Annotated[float, Field(gt=0)] | None = Field(None, description="step: epochs between two drops")
    factor: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="step: the rate's factor at a drop, default 0.1"
    )
    floor: Annotated[float, Field(ge=0)] | None = Field(
        None, description="poly, linear, cosine: the last rate, default 0"
    )

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> LearningRate:
        self.refuse_unless(self.schedule == "poly", ("power",), "schedule: poly")
        self.refuse_unless(self.schedule == "step", ("every_epochs", "factor"), "schedule: step")
        self.refuse_unless(
            self.schedule in ("poly", "linear", "cosine"), ("floor",), "schedule: poly, linear or cosine"
        )
        self.refuse_unless(self.scaling != "none", ("base_batch",), "scaling: linear or sqrt")
        if self.scaling != "none" and self.base_batch is None:
            raise ValueError(f"scaling: {self.scaling} needs base_batch, the batch that base was tuned for")
        if self.schedule == "step" and self.every_epochs is None:
            raise ValueError("schedule: step needs every_epochs")
        return self


class Reduction(Section):
    """How gradients are summed over the ranks."""

    name: str = Field("native", description="as name, or with parameters as name:key=value,key=value")
    parameters: dict[str, str | int | float] = Field(default_factory=dict, description="the same as a mapping")
    bucket_mib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="gradients reduced at once, in MiB; null: from the latency and bandwidth of the links"
    )
    wire_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="of numbers between ranks; sums stay float32 wherever a plan adds"
    )
    profile: str | None = Field(None, description="a profile.json of firetrain bench, for links and for auto")
    checksum_every_steps: Positive | None = Field(
        100, description="how often the ranks compare a checksum of all parameters; null: never"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        with _as_mistake():
            check_reduction(Spec.parse(name))
        return name

    @model_validator(mode="after")
    def _fitting(self) -> Reduction:
        with _as_mistake():
            check_reduction(self.spec)
        return self

    @property
    def spec(self) -> Spec:
        """The name with its parameters, whichever way they were given."""
        return Spec.parse(self.name, self.parameters)


class Target(Section):
    """When training has done what it was started for, and when it gives up."""

    top1: Share | None = Field(None, description="stop when this share of the test images is classified right")
    max_epochs: Positive = 1
    max_steps: Positive | None = None
    evaluate_every_epochs: Positive = 1


class Cluster(Section):
    """How many ranks, and how they talk."""

    nodes: Positive = 1
    ranks_per_node: Positive = 1
    transport: Literal["auto", "gloo", "nccl"] = "auto"
    timeout_s: Annotated[float, Field(gt=0)] = Field(300.0, description="how long a rank waits for a silent peer")


class Checkpoint(Section):
    """What is kept of a run while it goes on."""

    every_epochs: Positive | None = Field(None, description="null: none at the end of epochs")
    every_steps: Positive | None = Field(
        None, description="within epochs; a run that is asked to stop writes one anyway"
    )
    keep: Positive = 2


class Log(Section):
    """What is told while the run goes on."""

    every_steps: Positive = 10


class Config(Section):
    """A whole run: everything that decides its numbers."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    channels_last: bool = True
    compile: bool = Field(False, description="torch.compile; the first step then takes minutes, told as start-up")
    model: Model
    data: Data
    batch: Batch
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer.model_validate({}))
    learning_rate: LearningRate
    reduction: Reduction = Field(default_factory=lambda: Reduction.model_validate({}))
    target: Target = Field(default_factory=lambda: Target.model_validate({}))
    cluster: Cluster = Field(default_factory=lambda: Cluster.model_validate({}))
    checkpoint: Checkpoint = Field(default_factory=lambda: Checkpoint.model_validate({}))
    log: Log = Field(default_factory=lambda: Log.model_validate({}))

    @property
    def peak_rate(self) -> float:
        """The learning rate after warmup: base scaled from base_batch to the global batch."""
        rate, ratio = self.learning_rate, 1.0
        if rate.base_batch is not None:
            ratio = self.batch.global_size / rate.base_batch
        factor: float = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rate.scaling]
        return rate.base * factor
