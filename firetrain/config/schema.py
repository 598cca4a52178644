"""The config: its sections, their keys, types, defaults and bounds. The one place where they are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from firetrain.config.names import check_reduction
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.limits import (
    MOST_CLASSES,
    MOST_EPOCHS,
    MOST_IMAGES,
    MOST_PIXELS,
    MOST_RANKS,
    MOST_SECONDS,
    MOST_STEPS,
    MOST_THREADS,
)

Positive = Annotated[int, Field(ge=1)]
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]
Images = Annotated[int, Field(ge=1, le=MOST_IMAGES)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Epochs = Annotated[int, Field(ge=1, le=MOST_EPOCHS)]
Share = Annotated[float, Field(gt=0, le=1)]

MODELS = (
    "alexnet", "googlenet", "googlenet_mini", "googlenet_paper", "lenet", "nin", "squeezenet1_0", "squeezenet1_1",
    "squeezenet_mini",
)  # fmt: skip
# torchvision's GoogLeNet has it from the start
NORMALISED = ("googlenet",)
# beyond it linear scaling is known to fail without batch norm
LINEAR_LIMIT = 8
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

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

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

    batch_norm: bool | None = Field(None, description="a batch norm after every convolution; default off")

    @property
    def is_normalised(self) -> bool:
        """Whether it has batch norm."""
        return self.name in NORMALISED or bool(self.batch_norm)

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Model:
        heads = self.name in ("googlenet", "googlenet_paper")
        self.refuse_unless(heads, ("auxiliary_heads",), "googlenet and googlenet_paper")
        self.refuse_unless(self.name not in NORMALISED, ("batch_norm",), "models that come without")
        self.refuse_unless(bool(self.auxiliary_heads), ("auxiliary_weight",), "auxiliary_heads: true")
        return self


class Data(Section):
    """Which images, at which size, and how they are varied in training."""

    name: Literal[DATASETS]  # type: ignore[valid-type]
    root: str | None = Field(None, description="the data's folder; relative to where firetrain is started")
    image_size: Annotated[int, Field(ge=8, le=MOST_PIXELS)] = Field(
        description="pixels on each side, as the model sees them"
    )
    augmentation: Literal["none", "flip", "shift-flip", "random-resized-crop"] = "none"
    on_bad_image: Literal["fail", "skip"] = "fail"
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = Field(
        None, description="loading threads per rank; default: the rank's share of the cores"
    )
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="dogs-vs-cats: share of the labelled images kept for evaluation, default 0.1"
    )
    images: Images | None = Field(None, description="synthetic: how many training images, default 4096")
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | None = Field(
        None, description="synthetic: how many classes, default 10"
    )

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

    global_size: Images = Field(description="images per step, over all ranks; stays the same when their number changes")
    per_rank: Images | None = Field(
        None,
        description="images per step and rank, in place of global_size: the batch grows with the ranks (weak scaling)",
    )
    per_rank_max: Images | None = Field(
        None, description="images one rank holds at once; a larger part is split and its gradients accumulated"
    )


class Optimizer(Section):
    """SGD with momentum, LARS (You, Gitman and Ginsburg 2017) or LAMB (You et al. 2020)."""

    name: Literal["sgd", "lars", "lamb"] = "sgd"
    preset: Literal["firetrain", "paper", "nvcaffe", "mlperf", "timm"] | None = Field(
        None, description="lars: whose habits hold for what is not given, default firetrain"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="lamb: its first beta")
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    excluded: Annotated[tuple[Literal["bias", "norm"], ...], Field(strict=False)] | None = Field(
        None, description="parameters without weight decay and without a trust ratio; default both kinds"
    )
    excluded_rate: Literal["base", "raw"] | None = Field(
        None,
        description="lars, lamb: rate of the excluded parameters: the small batch's (default) or the large one's own",
    )
    trust_coefficient: Annotated[float, Field(gt=0)] | None = Field(None, description="lars: eta, default 0.001")
    trust_clip: bool | None = Field(None, description="lars: the rate is at most the global one (LARC), default off")
    rate_in_momentum: bool | None = Field(
        None, description="lars: as in the paper and Caffe; default outside, as torch has it"
    )
    decay_in_norm: bool | None = Field(
        None, description="lars: |g| + decay |w| below the ratio, as in the paper (default)"
    )
    zero_norm: Literal["coefficient", "one"] | None = Field(
        None, description="lars: trust ratio where |w| or |g| is 0: eta (default), or 1 as most libraries have it"
    )
    epsilon: Annotated[float, Field(ge=0)] | None = Field(None, description="below the ratio: lars 0, lamb 1e-6")
    beta2: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="lamb: default 0.999")

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> Optimizer:
        lars = ("preset", "trust_coefficient", "trust_clip", "rate_in_momentum", "decay_in_norm", "zero_norm")
        self.refuse_unless(self.name == "lars", lars, "lars")
        self.refuse_unless(self.name != "sgd", ("excluded_rate", "epsilon"), "lars and lamb")
        self.refuse_unless(self.name == "lamb", ("beta2",), "lamb")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        if self.nesterov and self.name == "lamb":
            raise ValueError("nesterov is for sgd and lars")
        return self

    @property
    def settled(self) -> dict[str, Any]:
        """LARS's and LAMB's options with the preset in place of what is not given."""
        chosen = PRESETS[self.preset or "firetrain"]
        return {key: value if (own := getattr(self, key)) is None else own for key, value in chosen.items()}


# what implementations differ in, by whose it is; read in their sources
PRESETS: dict[str, dict[str, Any]] = {
    "firetrain": {
        "excluded": ("bias", "norm"), "excluded_rate": "base", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": False, "decay_in_norm": True, "zero_norm": "coefficient", "epsilon": 0.0,
    },
    # You, Gitman and Ginsburg 2017, equation 6 and algorithm 1; which parameters are excluded it does not say
    "paper": {
        "excluded": (), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": True, "decay_in_norm": True, "zero_norm": "one", "epsilon": 0.0,
    },
    # NVIDIA/caffe, sgd_solver.cpp: all blobs adapted, the coefficient times (1 - momentum)
    "nvcaffe": {
        "excluded": (), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": True, "decay_in_norm": False, "zero_norm": "one", "epsilon": 0.0,
    },
    # MLPerf's TensorFlow 2 LARSOptimizer with its skip list
    "mlperf": {
        "excluded": ("bias", "norm"), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": True, "decay_in_norm": True, "zero_norm": "one", "epsilon": 0.0,
    },
    # timm.optim.Lars with timm's parameter groups
    "timm": {
        "excluded": ("bias", "norm"), "excluded_rate": "raw", "trust_coefficient": 0.001, "trust_clip": False,
        "rate_in_momentum": False, "decay_in_norm": True, "zero_norm": "one", "epsilon": 1e-8,
    },
}  # fmt: skip


# the learning rate grows with this power of the batch: Goyal et al. 2017, Krizhevsky 2014
RULES = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


class LearningRate(Section):
    """The learning rate as a function of the step."""

    base: Annotated[float, Field(gt=0)] = Field(description="the rate that suits base_batch")
    base_batch: Images | None = Field(None, description="the batch that base was tuned for; default the global batch")
    scaling: str | float = Field(
        "none", description="none, linear, sqrt, or an exponent e: base (batch / base_batch)^e"
    )
    peak: Annotated[float, Field(gt=0)] | None = Field(
        None, description="the rate after warmup, in place of scaling: LARS's, with base for what has no trust ratio"
    )
    warmup_from: Literal["base", "zero"] | None = Field(
        None, description="where warmup starts: at base (default if the peak is above it), or at zero"
    )
    decay_from: Literal["start", "warmup_end"] | None = Field(
        None, description="poly, linear, cosine: whether the schedule counts the steps of warmup; default from its end"
    )
    warmup_epochs: Annotated[float, Field(ge=0, le=MOST_EPOCHS)] = 0.0
    schedule: Literal["constant", "step", "poly", "linear", "cosine"] = "constant"
    power: Annotated[float, Field(gt=0, le=1000)] | None = Field(None, description="poly: (1 - t/T)^power, default 1")
    every_epochs: Annotated[float, Field(gt=0, le=MOST_EPOCHS)] | None = Field(
        None, description="step: epochs between two drops"
    )
    factor: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="step: the rate's factor at a drop, default 0.1"
    )
    floor: Annotated[float, Field(ge=0)] | None = Field(
        None, description="poly, linear, cosine: the last rate, default 0"
    )

    @field_validator("scaling")
    @classmethod
    def _a_rule(cls, scaling: str | float) -> str | float:
        if scaling in RULES or (isinstance(scaling, float | int) and 0 <= scaling <= 1):
            return scaling
        raise ValueError(f"must be one of {', '.join(RULES)}, or an exponent from 0 to 1 (got {scaling!r})")

    @property
    def exponent(self) -> float:
        """Of the batch, in the peak."""
        return RULES[self.scaling] if isinstance(self.scaling, str) else float(self.scaling)

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> LearningRate:
        self.refuse_unless(self.schedule == "poly", ("power",), "schedule: poly")
        self.refuse_unless(self.schedule == "step", ("every_epochs", "factor"), "schedule: step")
        self.refuse_unless(
            self.schedule in ("poly", "linear", "cosine"), ("floor",), "schedule: poly, linear or cosine"
        )
        self.refuse_unless(
            self.schedule in ("poly", "linear", "cosine"), ("decay_from",), "schedule: poly, linear or cosine"
        )
        self.refuse_unless(self.warmup_epochs > 0, ("warmup_from",), "warmup_epochs above 0")
        self.refuse_unless(self.scaling != "none", ("base_batch",), "scaling: linear, sqrt or an exponent")
        if self.peak is not None and self.scaling != "none":
            raise ValueError("peak and scaling both say what the rate is after warmup: give one of them")
        if self.scaling != "none" and self.base_batch is None:
            raise ValueError(f"scaling: {self.scaling} needs base_batch, the batch that base was tuned for")
        if self.schedule == "step" and self.every_epochs is None:
            raise ValueError("schedule: step needs every_epochs")
        return self


class Reduction(Section):
    """How gradients are summed over the ranks."""

    name: str = Field("native", description="as name, or with parameters as name:key=value,key=value")
    parameters: dict[str, str | int | float] = Field(default_factory=dict, description="the same as a mapping")
    bucket_mib: Annotated[float, Field(gt=0, le=1 << 16)] | None = Field(
        None, description="gradients reduced at once, in MiB; null: from the latency and bandwidth of the links"
    )
    wire_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="of numbers between ranks; sums stay float32 wherever a plan adds"
    )
    profile: str | None = Field(None, description="a profile.json of firetrain bench, for links and for auto")
    checksum_every_steps: Steps | None = Field(
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
    max_epochs: Epochs = 1
    max_steps: Steps | None = None
    evaluate_every_epochs: Epochs = 1
    train_on: bool = Field(
        False, description="go on to max_epochs when top1 is reached; time-to-accuracy still counts to the first time"
    )

    @model_validator(mode="after")
    def _only_with_a_target(self) -> Target:
        if self.train_on and self.top1 is None:
            raise ValueError("train_on has no effect here: only with top1; remove it")
        return self


class Cluster(Section):
    """How many ranks, and how they talk."""

    nodes: Ranks = 1
    ranks_per_node: Ranks = 1
    transport: Literal["auto", "gloo", "nccl"] = "auto"
    timeout_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = Field(
        300.0, description="how long a rank waits for a silent peer"
    )

    @property
    def ranks(self) -> int:
        """On all nodes."""
        return self.nodes * self.ranks_per_node

    @model_validator(mode="after")
    def _not_too_many(self) -> Cluster:
        if self.ranks > MOST_RANKS:
            raise ValueError(
                f"{self.nodes} nodes with {self.ranks_per_node} ranks each are {self.ranks} ranks, of at most {MOST_RANKS}"
            )
        return self


class Checkpoint(Section):
    """What is kept of a run while it goes on."""

    every_epochs: Epochs | None = Field(None, description="null: none at the end of epochs")
    every_steps: Steps | None = Field(None, description="within epochs; a run that is asked to stop writes one anyway")
    keep: Annotated[int, Field(ge=1, le=10**6)] = 2


class Log(Section):
    """What is told while the run goes on."""

    every_steps: Steps = 10
    noise_scale: bool = Field(
        False, description="measure the gradient noise scale in each epoch; needs 2 ranks or more"
    )


class Provenance(Section):
    """Where a recipe comes from."""

    status: Literal["published", "derived", "unverified"] = Field(
        description="published: read in a primary source; derived: from one, by a rule; unverified: from memory or never run"
    )
    source: str


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

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="of the training loss (Szegedy et al. 2016, section 7); evaluation is without"
    )
    provenance: Provenance | None = None
    force: bool = Field(False, description="run what is refused because it is known to fail: for experiments")

    @model_validator(mode="after")
    def _one_batch(self) -> Config:
        ranks = self.cluster.ranks
        if self.batch.per_rank and self.batch.per_rank * ranks != self.batch.global_size:
            raise ValueError(
                f"batch.per_rank: {self.batch.per_rank} on {ranks} ranks makes a batch of {self.batch.per_rank * ranks}, and "
                f"batch.global_size says {self.batch.global_size}: remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _noise_of_equal_shares(self) -> Config:
        ranks = self.cluster.ranks
        if self.log.noise_scale and self.batch.global_size % ranks:
            raise ValueError(
                f"log.noise_scale needs a batch that the ranks share evenly (batch.global_size: {self.batch.global_size}, ranks: "
                f"{ranks})"
            )
        return self

    @model_validator(mode="after")
    def _warmup_rises(self) -> Config:
        base = self.learning_rate.base
        if self.learning_rate.warmup_from == "base" and base >= self.peak_rate:
            raise ValueError(
                f"learning_rate.warmup_from: base, {base:g}, is not below the rate after warmup, {self.peak_rate:g}: take zero"
            )
        return self

    @model_validator(mode="after")
    def _not_known_to_fail(self) -> Config:
        if self.force or self.model.is_normalised:
            return self
        rate, batch = self.learning_rate, self.batch.global_size
        if rate.exponent == 1 and rate.base_batch and batch > LINEAR_LIMIT * rate.base_batch:
            raise ValueError(
                f"linear scaling over {batch / rate.base_batch:g} times the batch fails on {self.model.name}, which has no "
                f"batch norm: beyond {LINEAR_LIMIT} times take scaling 0.6 (GoogLeNet's published recipe), lars, or "
                "model.batch_norm: true; force: true to see it"
            )
        section = self.optimizer
        if section.name == "lars" and section.settled["excluded"] and section.settled["excluded_rate"] == "raw":
            raise ValueError(
                f"excluded_rate: raw gives the biases of {self.model.name}, which has no batch norm, a rate that is made for "
                "a trust ratio: it learns nothing; take base, or force: true to see it"
            )
        return self

    @property
    def peak_rate(self) -> float:
        """The learning rate after warmup: base scaled from base_batch to the global batch."""
        rate = self.learning_rate
        if rate.peak is not None:
            return rate.peak
        ratio = self.batch.global_size / rate.base_batch if rate.base_batch else 1.0
        return rate.base * float(ratio**rate.exponent)
