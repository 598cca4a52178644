"""The interface between the training loop and a strategy, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from firetrain.data.batch import Batch
from firetrain.data.order import Samples
from firetrain.records.parts import Part


class Worker(Protocol):
    """One rank's share of a strategy.

    Contract: all ranks call the same methods in the same order. After `backward` and `finish`, every parameter of this rank has
    the same gradient of the mean loss over the global batch as on a single process, up to rounding, if the model has no batch
    norm and the reduction loses nothing. The optimiser, the schedule, metrics and checkpoints do not depend on the strategy.
    """

    @property
    def model(self) -> nn.Module:
        """The model on this rank, or the rank's share of it."""

    @property
    def parameters(self) -> int:
        """The number of parameters of the whole model."""

    @property
    def largest_batch(self) -> int:
        """The size of this rank's largest micro-batch, in images."""

    def micro_batches(self, samples: Samples) -> list[Samples]:
        """The micro-batches of a global batch in which this rank takes part."""

    def reads(self, micro_batch: Samples) -> Samples:
        """The images of a micro-batch that this rank reads; perhaps none."""

    def backward(
        self, batches: Iterator[Batch], micro_batches: Sequence[Samples], epoch: int, lap: Callable[[Part], None] = ...
    ) -> Tensor:
        """Forward and backward passes of these micro-batches; returns this rank's [sum of losses, images], float64.

        `batches` yields the images of each that this rank reads.

        `lap(DATA)` is called when a micro-batch has been loaded, and `lap(COMPUTE)` after its backward pass.
        """

    def finish(self, images: float | Tensor) -> None:
        """Complete the gradients: wait for their sums, and divide them by `images`, the images of the global batch."""

    def finite(self) -> Tensor:
        """Whether all gradients are finite, as a boolean scalar on the device; the same on every rank."""

    def update(self, rate: float) -> None:
        """Update the parameters by one step of the optimiser at this learning rate."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Context manager: evaluation mode, with identical batch-norm statistics on all ranks."""

    def evaluation_batches(self, images: int) -> list[Samples]:
        """The micro-batches of images 0 to `images` - 1 for `predict`; together, the ranks return each image once."""

    def predict(self, batch: Batch, micro_batch: Samples) -> tuple[Tensor, Tensor]:
        """(logits [n, classes], float32; labels [n]) of this rank's images of a micro-batch, of which it has read `batch`."""

    def warm_up(self, image_size: int, training: Collection[int], evaluation: Collection[int]) -> None:
        """Compile the model for micro-batches of these sizes; parameters and statistics do not change."""

    def noise_scale(self) -> tuple[float, float, float] | None:
        """(noise scale in images, |G|^2, tr(S)) over the steps since the last call; None if the config does not ask for it."""

    def unreduced(self) -> AbstractContextManager[None]:
        """Context manager: no communication; each rank keeps its own gradients."""

    def check_bits(self, step: int) -> None:
        """Compare the parameters that ranks share by checksum; RanksDiffer names the step and the ranks that differ."""

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint: parameters, and the state of the optimiser."""

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`, from the same or from another number of ranks."""

    def facts(self) -> dict[str, Any]:
        """Facts about this strategy for the run's record, ready for JSON."""

    def describe(self) -> str:
        """One line for the log that describes the strategy."""

    def close(self) -> None:
        """Release hooks, threads and process groups."""
