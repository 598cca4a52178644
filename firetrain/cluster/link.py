"""The link between two ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LEAST_PIECE = 64 << 10
_LEAST_BUCKET = 1 << 20
_LARGEST_BYTES = 4 << 20
# NCCL's links are faster, so that the fixed time of a message costs more bytes
_LARGEST_NCCL_BYTES = 64 << 20
# allowed share of latency in the time of a bucket
_LATENCY_SHARE = 0.2


def largest_bytes(transport: str) -> int:
    """The size of the largest buckets and pieces over a transport.

    >>> largest_bytes("nccl") >> 20, largest_bytes("gloo") >> 20
    (64, 4)
    """
    return _LARGEST_NCCL_BYTES if transport == "nccl" else _LARGEST_BYTES


@dataclass(frozen=True)
class Link:
    """Latency and bandwidth of a link; a message of n bytes takes about latency_s + n / bytes_per_s.

    - `latency_s`: fixed time of a message, from the sender's call to the receiver's return, in seconds.
    - `bytes_per_s`: bandwidth in one direction.
    - `overhead_s`: time for which a message keeps a rank busy while all ranks send; it combines o and g of the LogP model
      (Culler et al. 1993).
    - `largest_bytes`: the largest bucket or piece to use.

    >>> gigabit = Link(latency_s=50e-6, bytes_per_s=1.2e8)
    >>> gigabit.piece_bytes(chunk_bytes=1 << 20, rounds=1), gigabit.bucket_bytes(ranks=4)
    (79318, 1048576)
    """

    latency_s: float
    bytes_per_s: float
    overhead_s: float = 0.0
    largest_bytes: int = _LARGEST_BYTES

    def piece_bytes(self, chunk_bytes: float, rounds: int) -> int:
        """The piece size in bytes with which a chunk passes through `rounds` rounds fastest, from 64 KiB to `largest_bytes`.

        k pieces take (rounds - 1 + k) (latency + chunk / (k bandwidth)), which is minimal for pieces of
        sqrt(latency * bandwidth * chunk / (rounds - 1)). Lower bound: a piece must take at least as long on the wire as the
        overhead of a message.
        """
        best = math.sqrt(self.latency_s * self.bytes_per_s * chunk_bytes / max(1, rounds - 1))
        return int(min(self.largest_bytes, max(_LEAST_PIECE, self.overhead_s * self.bytes_per_s, best)))

    def bucket_bytes(self, ranks: int) -> int:
        """The least bucket size in bytes, from 1 MiB to `largest_bytes`, whose all-reduce spends at most a fifth on latency.

        Computed for a topology with 2 log2 p consecutive messages and 2n bytes through each link.
        """
        waiting_s = 2 * math.log2(max(2, ranks)) * self.latency_s
        wanted = waiting_s * (1 - _LATENCY_SHARE) / _LATENCY_SHARE * self.bytes_per_s / 2
        return int(min(self.largest_bytes, max(_LEAST_BUCKET, wanted)))
