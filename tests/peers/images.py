"""Data as torchvision and Hugging Face have it."""

from __future__ import annotations

from typing import Any

import numpy as np


def torchvisions(images: int = 48) -> tuple[Any, Any]:
    """torchvision's FakeData: PIL images of noise in four classes."""
    from torchvision.datasets import FakeData

    return FakeData(images, (3, 32, 32), 4), FakeData(16, (3, 32, 32), 4, random_offset=images)


def hugging_faces() -> Any:
    """A DatasetDict of PIL images and named classes."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image

    features = Features({"image": Image(), "label": ClassLabel(names=["dark", "bright"])})
    draws = np.random.default_rng(1)

    def some(count: int) -> Dataset:
        labels = [number % 2 for number in range(count)]
        pixels = [draws.integers(128 * label, 128 * label + 128, (32, 32, 3), np.uint8) for label in labels]
        return Dataset.from_dict({"image": pixels, "label": labels}, features=features)

    return DatasetDict(train=some(64), test=some(16))
