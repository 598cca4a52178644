"""The gradient noise scale: how far the batch can still grow before it gives less than it costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class NoiseScale:
    """tr(S) / |G|^2 of an epoch, from the gradients of two batch sizes (McCandlish et al. 2018, appendix A.1).

    The small batch is a rank's part, the large one that of all ranks: with |g_b|^2 and |g_B|^2 the squared norms of their mean
    gradients, averaged over the epoch, |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b) and tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B).
    Steps whose batch cannot be divided evenly are left out.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._small: list[Tensor] = []
        self._large: list[Tensor] = []
        self._images = 0

    def add(self, own_squared: Tensor, mean_gradients: Sequence[Tensor], images: int) -> None:
        """A step of `images` images: this rank's squared norm of its summed gradients, and the mean gradients of all ranks."""
        if images % self._ranks or (self._images and images != self._images):
            return
        self._images = images
        own = images // self._ranks
        self._small.append(own_squared / own**2)
        self._large.append(torch.stack([gradient.double().square().sum() for gradient in mean_gradients]).sum())

    def take(self) -> Tensor:
        """[sum of this rank's small ones, sum of the large ones, steps], to be summed over the ranks; begins anew."""
        if not self._small:
            return torch.zeros(3, dtype=torch.float64)
        sums = [torch.stack(self._small).sum(), torch.stack(self._large).sum()]
        steps = torch.tensor(float(len(self._small)), dtype=torch.float64, device=sums[0].device)
        self._small, self._large = [], []
        return torch.stack([*sums, steps])

    def estimate(self, totals: Tensor) -> tuple[float, float, float]:
        """(noise scale in images, |G|^2, tr(S)) from `take` summed over the ranks; not finite where |G|^2 is not above zero."""
        small, large, count = (float(value) for value in totals)
        return estimate(small / max(1.0, count), large / max(1.0, count), self._images // self._ranks, self._images)


def estimate(small_squared: float, large_squared: float, small: int, large: int) -> tuple[float, float, float]:
    """(tr(S) / |G|^2, |G|^2, tr(S)) from the mean squared norms at two batch sizes."""
    if not 0 < small < large:
        return float("nan"), float("nan"), float("nan")
    signal = (large * large_squared - small * small_squared) / (large - small)
    noise = (small_squared - large_squared) / (1 / small - 1 / large)
    return (noise / signal if signal > 0 else float("inf")), signal, noise
