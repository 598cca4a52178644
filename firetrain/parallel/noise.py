"""The gradient noise scale, which estimates the largest batch that is still efficient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class NoiseScale:
    """The noise scale tr(S) / |G|^2 of an epoch, from gradients at two batch sizes (McCandlish et al. 2018, appendix A.1).

    The small batch b is that of a rank, the large batch B that of all ranks. |g_b|^2 and |g_B|^2 are the squared norms of
    their mean gradients, averaged over the epoch. Then |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b) and
    tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B). Steps whose batch cannot be divided evenly are left out.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._steps: list[Tensor] = []
        self._images = torch.zeros((), dtype=torch.float64)

    def add(self, own_squared: Tensor, mean_gradients: Sequence[Tensor], images: float | Tensor) -> None:
        """Add a step of `images` images. `own_squared`: squared norm of this rank's summed gradients. The host does not wait."""
        count = own_squared.new_zeros(()) + images
        even = (count > 0) & (count % self._ranks == 0)
        self._images = torch.where((self._images == 0) & even, count, self._images.to(count.device))
        counts = even & (count == self._images)
        own = (count / self._ranks).clamp(min=1)
        large = torch.stack([gradient.double().square().sum() for gradient in mean_gradients]).sum()
        step = torch.stack([own_squared / own**2, large, torch.ones_like(large)])
        self._steps.append(torch.where(counts, step, 0.0))

    def take(self) -> Tensor:
        """[sum of |g_b|^2 of this rank, sum of |g_B|^2, steps], float64, to be summed over the ranks; resets the sums."""
        steps, self._steps = self._steps, []
        return torch.stack(steps).sum(0) if steps else torch.zeros(3, dtype=torch.float64)

    def estimate(self, totals: Tensor) -> tuple[float, float, float]:
        """(noise scale in images, |G|^2, tr(S)) from the sum of `take` over the ranks; not finite if |G|^2 is not positive."""
        small, large, count = (float(value) for value in totals)
        images = int(self._images)
        return estimate(small / max(1.0, count), large / max(1.0, count), images // self._ranks, images)


def estimate(small_squared: float, large_squared: float, small: int, large: int) -> tuple[float, float, float]:
    """(tr(S) / |G|^2, |G|^2, tr(S)) from the mean squared norms at two batch sizes."""
    if not 0 < small < large:
        return float("nan"), float("nan"), float("nan")
    signal = (large * large_squared - small * small_squared) / (large - small)
    noise = (small_squared - large_squared) / (1 / small - 1 / large)
    return (noise / signal if signal > 0 else float("inf")), signal, noise
