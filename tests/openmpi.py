"""Time Open MPI's MPI_Allreduce in the same way as `firetrain bench allreduce` times reductions.

The program is a rank of mpirun, and needs mpi4py:

    python tests/network.py --nodes 4 --mpirun python tests/openmpi.py --sizes 4KiB:64MiB --json openmpi.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from mpi4py import MPI

from firetrain.bench.sizes import parse_sizes

_ROW_BYTES, _LONGEST_ROW = 1 << 20, 20


def main() -> None:
    """Verify with whole numbers, then time the sum in place; rank 0 writes rows like those of bench allreduce."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="4KiB:64MiB")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    rows = []
    for size in parse_sizes(options.sizes):
        length = size // 4
        places = np.arange(length, dtype=np.int64)
        buffer = ((places * 7 + world.rank * 13) % 201 - 100).astype(np.float32)
        expected = sum((places * 7 + rank * 13) % 201 - 100 for rank in range(world.size))
        world.Allreduce(MPI.IN_PLACE, buffer)
        wrong = int((buffer != expected).sum())
        count = max(1, min(_LONGEST_ROW, _ROW_BYTES // size))
        times = [_time(world, buffer, count) for _ in range(options.repeats + 1)][1:]
        p10, median, p90 = (float(value) for value in np.percentile(times, [10, 50, 90]))
        algbw = size / median / 1e9
        rows.append({
            "reduction": "openmpi", "bytes": size, "dtype": "float32", "median_s": median, "p10_s": p10, "p90_s": p90,
            "algbw_gb_per_s": algbw, "busbw_gb_per_s": algbw * 2 * (world.size - 1) / world.size, "wrong": wrong,
            "nodes": options.nodes, "ranks": world.size,
        })  # fmt: skip
        if world.rank == 0:
            print(f"{size:>11} openmpi {median * 1e3:9.3f} ms, {wrong} wrong", flush=True)
    if world.rank == 0:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _time(world: MPI.Comm, buffer: np.ndarray, count: int) -> float:  # type: ignore[type-arg]
    """Seconds per call on the slowest rank, over `count` consecutive calls."""
    buffer[:] = 1e-6
    world.Barrier()
    started_s = MPI.Wtime()
    for _ in range(count):
        world.Allreduce(MPI.IN_PLACE, buffer)
    spent_s = (MPI.Wtime() - started_s) / count
    return float(world.allreduce(spent_s, MPI.MAX))


if __name__ == "__main__":
    main()
