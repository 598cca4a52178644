"""What lies between two ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LEAST_PIECE = 64 << 10
_LARGEST_PIECE = 4 << 20
_LEAST_BUCKET = 1 << 20
_LARGEST_BUCKET = 4 << 20
# of a bucket's time on the wire, how much may be waiting for messages to arrive
_LATENCY_SHARE = 0.2


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes about latency_s + n / bytes_per_s from the sender's call to the receiver's return.

    `overhead_s` is what a message keeps a rank busy while all ranks have some: o and g of the LogP model (Culler et al. 1993)
    in one number.
    """

    latency_s: float
    bytes_per_s: float
    overhead_s: float = 0.0

    def piece_bytes(self, chunk_bytes: float, rounds: int) -> int:
        """The size of pieces in which chunks flow fastest through `rounds` rounds, from 64 KiB to 4 MiB.

        k pieces take (rounds - 1 + k) (latency + chunk / (k bandwidth)), which is least for pieces of
        sqrt(latency * bandwidth * chunk / (rounds - 1)). But a piece should be on the wire for no less time than a message
        keeps its ranks busy.
        """
        best = math.sqrt(self.latency_s * self.bytes_per_s * chunk_bytes / max(1, rounds - 1))
        return int(min(_LARGEST_PIECE, max(_LEAST_PIECE, self.overhead_s * self.bytes_per_s, best)))

    def bucket_bytes(self, ranks: int) -> int:
        """The smallest bucket, from 1 to 4 MiB, of whose all-reduce at most a fifth is latency.

        For 2 log2 p messages one after another and 2n bytes through each link, as a good topology has them.
        """
        waiting_s = 2 * math.log2(max(2, ranks)) * self.latency_s
        wanted = waiting_s * (1 - _LATENCY_SHARE) / _LATENCY_SHARE * self.bytes_per_s / 2
        return int(min(_LARGEST_BUCKET, max(_LEAST_BUCKET, wanted)))
