"""How many more bytes codes and gaps have, tables included, than exact Huffman codes of each layer without tables, in percent.

For the files that measure.py has written. Usage: python results/compression/huffman.py FOLDER
"""

from __future__ import annotations

import sys
from collections import defaultdict
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np

from firetrain.coding.entropy import Symbols, encode_symbols
from firetrain.coding.file import read


def main(folder: Path) -> None:
    """Print the least and the most percent of all seeds, for each compression of each network."""
    found = defaultdict(list)
    for path in sorted(folder.glob("*/seed-*.fire")):
        tensors = read(path).tensors
        coded = [encode_symbols([(one.codes, one.bits) for one in tensors])]
        coded.append(encode_symbols([(one.gaps, one.gap_bits) for one in tensors]))
        least = sum(bits(symbols) for one in tensors for symbols in (one.codes, one.gaps)) / 8
        if least:
            found[path.parent.name, path.stem[len("seed-1-") :]].append(100 * (sum(map(len, coded)) / least - 1))
    for (network, compression), percents in found.items():
        print(f"{network:20} {compression:30} {min(percents):.2f} to {max(percents):.2f} %")


def bits(symbols: Symbols) -> int:
    """The bits of all symbols in an optimal prefix code (Huffman 1952)."""
    counts = [int(count) for count in np.bincount(symbols) if count]
    heapify(counts)
    total = 0 if len(counts) > 1 else len(symbols)
    while len(counts) > 1:
        merged = heappop(counts) + heappop(counts)
        total += merged
        heappush(counts, merged)
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1]))
