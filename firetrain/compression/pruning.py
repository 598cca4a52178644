"""Sets the smallest weights of layers to zero (Han, Pool, Tran and Dally 2015)."""

from __future__ import annotations

import numpy as np

from firetrain.coding.tensor import Floats
from firetrain.config.compression import LayerRecipe


def density_of(weights: Floats, recipe: LayerRecipe) -> float:
    """The share of a layer's weights that its recipe keeps."""
    if recipe.threshold is not None and weights.size:
        return float((np.abs(weights) > recipe.threshold * weights.std()).mean())
    return 1.0 if recipe.density is None else recipe.density


def pruned(weights: Floats, density: float) -> Floats:
    """The weights without the smallest ones, so that a share of `density` is left, and at least one.

    >>> pruned(np.array([0.5, -0.1, 0.2, -2.0], np.float32), 0.5).tolist()
    [0.5, 0.0, 0.0, -2.0]
    """
    kept = max(1, round(density * weights.size))
    if kept >= weights.size:
        return weights
    flat = weights.flatten()
    smallest = np.argpartition(np.abs(flat), weights.size - kept)[: weights.size - kept]
    flat[smallest] = 0.0
    return flat.reshape(weights.shape)
