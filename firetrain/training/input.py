"""The images that a run reads: a dataset, and a loader for each of its splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import torch

from firetrain.config.sections.data import DataSection
from firetrain.data.batch import Batch, prefetched
from firetrain.data.images import Dataset
from firetrain.data.loader import Loader
from firetrain.data.order import Samples
from firetrain.data.resident import ResidentLoader, fits
from firetrain.transport.device import is_gpu, new_stream
from firetrain.transport.transport import Transport


class Input:
    """The training and test images that one rank reads, in micro-batches of at most `largest_batch` images."""

    def __init__(
        self, section: DataSection, seed: int, dataset: Dataset, transport: Transport, largest_batch: int
    ) -> None:
        self.dataset, self._transport, self._stream = dataset, transport, new_stream(transport.device)
        # no batch has an image twice, so that memory for more images than there are would not be used
        train, test = (min(largest_batch, len(images.labels)) for images in (dataset.train, dataset.test))
        self._train = make_loader(section, seed, dataset, transport, train, train=True)
        self._test = make_loader(section, seed, dataset, transport, test, train=False)

    def training_batches(self, micro_batches: Iterable[Samples], epoch: int) -> Iterator[Batch]:
        """The images of each micro-batch, in order."""
        return prefetched(self._train.batches(micro_batches, epoch), self._transport.device, self._stream)

    def test_batches(self, micro_batches: Iterable[Samples]) -> Iterator[Batch]:
        """The test images of each micro-batch, in order."""
        return prefetched(self._test.batches(micro_batches, epoch=0), self._transport.device, self._stream)

    def bad_samples(self) -> set[int]:
        """The unreadable training images that this rank has met."""
        return set(self._train.bad)

    def bad_images(self) -> int:
        """The number of different unreadable images on all ranks; each rank prints its own. Collective."""
        count = 0
        for loader, images in ((self._train, self.dataset.train), (self._test, self.dataset.test)):
            met = torch.zeros(len(images.labels), device=self._transport.device)
            for sample, reason in sorted(loader.bad.items()):
                met[sample] = 1
                with suppress(OSError):
                    print(f"skipped {reason}", flush=True)
            count += int(self._transport.sum(met).count_nonzero())
        return count

    def close(self) -> None:
        """End the threads of both loaders."""
        self._train.close()
        self._test.close()


def make_loader(
    section: DataSection, seed: int, dataset: Dataset, transport: Transport, largest_batch: int, *, train: bool
) -> Loader | ResidentLoader:
    """The loader of a split, which a GPU keeps if it is small; by default with as many threads as the rank computes with."""
    images = dataset.train if train else dataset.test
    augmentation = section.augmentation if train else "none"
    if fits(images, section.image_size, augmentation, transport.device):
        return ResidentLoader(images, section.image_size, transport.device, augmentation, seed)
    return Loader(
        images,
        section.image_size,
        largest_batch,
        augmentation=augmentation,
        seed=seed,
        threads=section.readers(torch.get_num_threads()),
        skip_bad=section.on_bad_image == "skip",
        apart=section.decode_in == "process",
        pin_memory=is_gpu(transport.device),
    )
