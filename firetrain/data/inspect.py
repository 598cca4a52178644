"""Facts about a split: counts, image sizes, and unreadable images in a sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from firetrain.data.decode import BadImage
from firetrain.data.draws import permutation
from firetrain.data.images import Images


def inspect_split(images: Images, sample: int) -> dict[str, Any]:
    """The facts, ready for JSON; up to `sample` images are decoded, always the same ones."""
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
        "empty_classes": int((counts == 0).sum()),
        "sampled": len(chosen),
        "smallest": min(sizes, default=(0, "-"))[1],
        "largest": max(sizes, default=(0, "-"))[1],
        "bad": bad,
    }
