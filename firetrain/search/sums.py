"""The time of sums of gradients, by the number of ranks that take part and the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sums:
    """Times measured or predicted for some sizes, with straight lines between them.

    - `sizes_bytes`: ascending; the last one is at least as large as all gradients together.
    - `ns`: for each number of ranks that sum, the nanoseconds of each size. They must not decrease.

    >>> sums = Sums((0, 1000, 3000), {4: (100, 600, 2600)})
    >>> sums(4, 2000), sums.least(4, np.array([500, 2000]), most_bytes=2000)
    (1600, array([ 300., 1600.]))
    """

    sizes_bytes: Sequence[int]
    ns: Mapping[int, Sequence[int]]
    _known: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    def __call__(self, ranks: int, size_bytes: int) -> int:
        """Nanoseconds in which `ranks` ranks sum `size_bytes`."""
        key = ranks, size_bytes
        if key not in self._known:
            self._known[key] = int(self.many(ranks, np.array([size_bytes]))[0])
        return self._known[key]

    def many(self, ranks: int, sizes_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same for several sizes; int64 of their shape."""
        return np.ceil(np.interp(sizes_bytes, self.sizes_bytes, self.ns[ranks])).astype(np.int64)

    def least(self, ranks: int, sizes_bytes: NDArray[np.int64], most_bytes: int) -> NDArray[np.float64]:
        """Lower bounds of the nanoseconds that gradients of these sizes add to sums, in proportion to their bytes.

        A gradient is summed in a bucket of at most `most_bytes`, or alone if it is larger. float64 of the sizes' shape.
        """
        # interpolation is linear, so that the time per byte is least at a listed size, or at an end
        listed = np.unique([*(size for size in self.sizes_bytes if 0 < size < most_bytes), most_bytes])
        per_byte = np.interp(listed, self.sizes_bytes, self.ns[ranks]) / listed
        from_here = np.append(np.minimum.accumulate(per_byte[::-1])[::-1], np.inf)
        alone = np.interp(sizes_bytes, self.sizes_bytes, self.ns[ranks])
        least: NDArray[np.float64] = np.minimum(alone, sizes_bytes * from_here[np.searchsorted(listed, sizes_bytes)])
        return least
