"""The `data` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from firetrain.config import names
from firetrain.config.own import Own
from firetrain.config.sections.section import Argument, ImageCount, Section, known_or_own
from firetrain.limits import MOST_CLASSES, MOST_PIXELS, MOST_THREADS

DATASETS = ("digits", "dogs-vs-cats", "folders", "idx", "packed", "synthetic", "tiny-imagenet")
MADE_BY_CODE = ("digits", "synthetic")


class DataSection(Section):
    """The images, their size, and their augmentation in training."""

    name: str = Field(description=f"{', '.join(DATASETS)}; or data of your own: package.module:name, or ./file.py:name")
    arguments: dict[str, Argument] | None = Field(
        None, description="data of your own: what its function is called with"
    )
    folder: str | None = Field(
        None, description="data of your own: its folder; default: the config's, then where firetrain is started"
    )
    root: str | None = Field(None, description="the data's folder; relative to where firetrain is started")
    image_size: Annotated[int, Field(ge=8, le=MOST_PIXELS)] = Field(
        description="height and width of the model's input, in pixels"
    )
    augmentation: Literal["none", "flip", "shift-flip", "random-resized-crop"] = "none"
    on_bad_image: Literal["fail", "skip"] = "fail"
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = Field(
        None, description="loading threads per rank; default: the rank's share of the cores, and 1 for data of your own"
    )
    decode_in: Literal["threads", "process"] | None = Field(
        None,
        description="image files: decode in threads of each rank (default), or in a process of its own beside each rank, whose "
        "threads do not compete with training for the GIL",
    )
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="dogs-vs-cats: share of the labelled images kept for evaluation, default 0.1"
    )
    images: ImageCount | None = Field(None, description="synthetic: number of training images, default 4096")
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | None = Field(
        None, description="synthetic: number of classes, default 10"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_or_own(name, DATASETS, names.DATASETS, "data")

    @property
    def own(self) -> Own | None:
        """The user's own code that opens the data; None for firetrain's datasets."""
        return Own.of(self.name, self.folder, names.DATASETS)

    def readers(self, most: int) -> int:
        """How many threads read images, if `most` may. One reads data of the user's own, which may have one open file."""
        return self.threads or (1 if self.own else most)

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> DataSection:
        own = self.own is not None
        self.refuse_unless(own, ("arguments", "folder"), "data of your own")
        files = self.name not in MADE_BY_CODE and not own
        self.refuse_unless(files, ("root",), "data that is read from files")
        of_files = ("dogs-vs-cats", "folders", "tiny-imagenet")
        self.refuse_unless(self.name in of_files, ("decode_in",), f"image files ({', '.join(of_files)})")
        self.refuse_unless(self.name == "dogs-vs-cats", ("validation_share",), "dogs-vs-cats")
        self.refuse_unless(self.name == "synthetic", ("images", "classes"), "synthetic")
        if self.root is None and files:
            raise ValueError(f"{self.name} is read from files: give its folder as root")
        return self
