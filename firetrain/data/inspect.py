"""What a split looks like: counts, sizes, and what in a sample of it cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from firetrain.data.decode import BadImage
from firetrain.data.draws import permutation
from firetrain.data.images import Images


def inspect_split(images: Images, sample: int) -> dict[str, Any]:
    """Facts ready for JSON; up to `sample` images, always the same ones, are decoded."""
    labels = images.labels
    counts = np.bincount(labels, minlength=len(images.classes))
    chosen = np.sort(permutation(seed=0, epoch=0, count=len(labels))[:sample])
    sizes, bad = [], []
    for number in chosen.tolist():
        try:
            height, width, _ = images.read(number).shape
            sizes.append((height * width, f"{height}x{width}"))
        except BadImage as error:
            bad.append(str(error))
    return {
        "images": len(labels),
        "images_per_class": [int(counts.min()), int(counts.max())],
        "sampled": len(chosen),
        "smallest": min(sizes, default=(0, "-"))[1],
        "largest": max(sizes, default=(0, "-"))[1],
        "bad": bad,
    }
