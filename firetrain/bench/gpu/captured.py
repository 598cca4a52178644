"""Plans over NCCL as CUDA graphs: an experiment, which training adopts when it has been measured to be faster."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from firetrain.reduction.interface import Bucket, Pending
from firetrain.reduction.nccl_executor import Issued, NcclExecutor
from firetrain.transport.device import end_of, issued_on, synchronize


class Captured(NcclExecutor):
    """Issues all messages of a bucket by one call, which saves the host's work for each wave; buckets must be prepared."""

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Run the plan of each bucket once, which allocates its memory and connects its ranks, and then capture it."""
        super().prepare(buckets)
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        contents = [bucket.buffer.clone() for bucket in buckets]
        # all before the first is captured: a graph keeps the addresses of the memory that it uses
        for bucket in buckets:
            super().start(bucket).wait()
            synchronize(bucket.buffer.device)
        for bucket, content in zip(buckets, contents, strict=True):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                for wave in self._program(len(bucket)):
                    self._exchange(bucket.buffer, *wave)
            bucket.buffer.copy_(content)
            self._graphs[bucket] = graph

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Replay the messages of `bucket`, which is then summed in place over all ranks."""
        with issued_on(self._stream):
            self._graphs[bucket].replay()
        end = end_of(self._stream)
        if end is not None:
            self._transport.watchdog.watch(end, lambda: f"step {step}, bucket {bucket.number} as a CUDA graph")
        return Issued(end)

    def close(self) -> None:
        """Destroy the graphs first: NCCL does not destroy a communicator as long as a graph has operations of it."""
        synchronize(self._transport.device)
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        super().close()
