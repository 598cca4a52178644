"""Entropy coding of codes and gaps: the Huffman codes of zlib, without its search for repetitions, or fixed numbers of bits."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

Symbols = NDArray[np.uint8]
_RAW = -15  # deflate without zlib's header and checksum
_HUFFMAN, _FIXED = b"\x00", b"\x01"
# symbols of a block, each of which has a table of its own, at zlib's highest memory level
_BLOCK = (1 << 15) - 1


def encode_symbols(tensors: Sequence[tuple[Symbols, int]]) -> bytes:
    """A byte that names the form, and the symbols of all tensors, each with its number of bits, in the form of fewer bytes."""
    huffman = deflate([symbols.tobytes() for symbols, _ in tensors])
    bits = [np.unpackbits(symbols[:, None], axis=1)[:, 8 - width :].ravel() for symbols, width in tensors]
    fixed = np.packbits(np.concatenate([np.empty(0, np.uint8), *bits])).tobytes()
    return _HUFFMAN + huffman if len(huffman) < len(fixed) else _FIXED + fixed


def decode_symbols(stream: bytes, counts: Sequence[tuple[int, int]]) -> Symbols:
    """The symbols of all tensors in one array; `counts` has the number of symbols and of bits of each tensor.

    ValueError if there are fewer or more.

    >>> decode_symbols(encode_symbols([(np.array([5, 1, 7], np.uint8), 3)]), [(3, 3)]).tolist()
    [5, 1, 7]
    """
    if stream[:1] == _HUFFMAN:
        return np.frombuffer(inflate(stream[1:], sum(count for count, _ in counts)), np.uint8)
    coded = np.frombuffer(stream[1:], np.uint8)
    if stream[:1] != _FIXED or len(coded) != -(-sum(count * width for count, width in counts) // 8):
        raise ValueError("a stream does not have as many symbols as its tensors need")
    found, at = [np.empty(0, np.uint8)], 0
    for count, width in counts:
        for first in range(0, count, _BLOCK):
            symbols = min(_BLOCK, count - first)
            end = at + symbols * width
            bits = np.unpackbits(coded[at // 8 : -(-end // 8)])[at % 8 : at % 8 + symbols * width].reshape(
                symbols, width
            )
            found.append(np.packbits(np.pad(bits, ((0, 0), (8 - width, 0))), axis=1).ravel())
            at = end
    return np.concatenate(found)


def table_bytes(stream: bytes, tensors: Sequence[Symbols]) -> int:
    """The bytes of Huffman tables in the stream of these tensors: all but the codes of symbols, and of the ends of blocks.

    >>> symbols = np.repeat(np.arange(4, dtype=np.uint8), 1000)
    >>> stream = encode_symbols([(symbols, 8)])
    >>> len(stream), table_bytes(stream, [symbols])  # codes of 2 bits, of which one and that of the end have 3
    (1140, 13)
    """
    if stream[:1] != _HUFFMAN:
        return 0
    blocks = [one[first : first + _BLOCK] for one in tensors for first in range(0, len(one), _BLOCK)]
    return max(0, len(stream) - 1 - -(-sum(map(_code_bits, blocks)) // 8))


def _code_bits(block: Symbols) -> int:
    """The bits of the symbols of a block and of its end in an optimal prefix code (Huffman 1952)."""
    counts = [int(count) for count in np.bincount(block) if count] + [1]
    heapify(counts)
    total = 0
    while len(counts) > 1:
        merged = heappop(counts) + heappop(counts)
        total += merged
        heappush(counts, merged)
    return total


def deflate(tensors: Sequence[bytes]) -> bytes:
    """The symbols of all tensors as Huffman codes, with their tables.

    A block ends with each tensor, because a code for the symbols of several layers has more bits than one for each of them.
    """
    coder = zlib.compressobj(9, zlib.DEFLATED, _RAW, 9, zlib.Z_HUFFMAN_ONLY)
    *before, last = [symbols for symbols in tensors if symbols] or [b""]
    coded = [coder.compress(symbols) + coder.flush(zlib.Z_BLOCK) for symbols in before]
    return b"".join([*coded, coder.compress(last), coder.flush()])


def inflate(coded: bytes, length: int) -> bytes:
    """The `length` symbols; ValueError if there are fewer or more.

    >>> inflate(deflate([b"wei", b"ghts"]), 7)
    b'weights'
    """
    decoder = zlib.decompressobj(_RAW)
    if length > 8 * len(coded):  # repetitions, which firetrain never writes, could ask for any amount of memory
        raise ValueError(f"its Huffman codes are too few for {length:,} symbols")
    try:
        found = decoder.decompress(coded, length + 1)
    except zlib.error as error:
        raise ValueError(f"its Huffman codes cannot be read: {error}") from None
    if len(found) != length or not decoder.eof or decoder.unused_data:
        raise ValueError(f"its Huffman codes are not those of {length:,} symbols")
    return found
