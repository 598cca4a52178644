"""Entropy coding of bytes: the Huffman codes of zlib, without its search for repetitions."""

from __future__ import annotations

import zlib

_RAW = -15  # deflate without zlib's header and checksum


def deflate(symbols: bytes) -> bytes:
    """The symbols as Huffman codes, with their tables."""
    coder = zlib.compressobj(9, zlib.DEFLATED, _RAW, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(symbols) + coder.flush()


def inflate(coded: bytes, length: int) -> bytes:
    """The `length` symbols; ValueError if there are fewer or more.

    >>> inflate(deflate(b"weights"), 7)
    b'weights'
    """
    decoder = zlib.decompressobj(_RAW)
    try:
        found = decoder.decompress(coded, length + 1)
    except zlib.error as error:
        raise ValueError(f"its Huffman codes cannot be read: {error}") from None
    if len(found) != length or not decoder.eof or decoder.unused_data:
        raise ValueError(f"its Huffman codes are not those of {length:,} symbols")
    return found
