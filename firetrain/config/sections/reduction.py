"""The `reduction` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from firetrain.config.names import check_reduction
from firetrain.config.sections.section import Section, Steps, as_mistake
from firetrain.config.spec import Spec

_GRADIENT_BYTES = 4


def bytes_of_bucket(mib: float) -> int:
    """The bytes of a bucket of so many MiB: whole gradients in float32, at least one.

    >>> bytes_of_bucket(0.3), bytes_of_bucket(1e-7)
    (314572, 4)
    """
    return max(1, int(mib * 2**20 / _GRADIENT_BYTES)) * _GRADIENT_BYTES


class ReductionSection(Section):
    """How gradients are summed over the ranks."""

    name: str = Field("native", description="a name, or with parameters name:key=value,key=value")
    parameters: dict[str, str | int | float] = Field(default_factory=dict, description="the parameters as a mapping")
    bucket_mib: Annotated[float, Field(gt=0, le=1 << 16)] | None = Field(
        None, description="size of a bucket of gradients in MiB; null: computed from the links' latency and bandwidth"
    )
    wire_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="type of numbers sent between ranks; sums stay float32 wherever a plan adds"
    )
    profile: str | None = Field(None, description="a profile.json of firetrain bench; used for links and by auto")
    checksum_every_steps: Steps | None = Field(
        100, description="steps between two comparisons of all ranks' parameters by checksum; null: never"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        with as_mistake():
            check_reduction(Spec.parse(name))
        return name

    @model_validator(mode="after")
    def _fitting(self) -> ReductionSection:
        with as_mistake():
            check_reduction(self.spec)
        return self

    @property
    def spec(self) -> Spec:
        """The name with its parameters, whichever way they are given."""
        return Spec.parse(self.name, self.parameters)

    @property
    def bucket_bytes(self) -> int | None:
        """The size of a bucket of gradients in bytes; None: computed from the links."""
        return None if self.bucket_mib is None else bytes_of_bucket(self.bucket_mib)

    @property
    def wire_bytes(self) -> int:
        """The bytes of a number on the wire."""
        return 4 if self.wire_dtype == "float32" else 2
