"""Streams of symbols: the bytes of their Huffman tables are those that reading the stream bit by bit finds."""

from __future__ import annotations

import numpy as np
import pytest

from firetrain.coding.entropy import Symbols, encode_symbols, table_bytes

# in which the lengths of the codes for code lengths come (RFC 1951, section 3.2.7)
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
_END = 256
# a symbol of a table that repeats a length: the bits that say how often
_REPEATS = {16: (2, 3), 17: (3, 3), 18: (7, 11)}


class Bits:
    """A deflated stream, read bit by bit."""

    def __init__(self, stream: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(stream, np.uint8), bitorder="little").tolist()
        self.at = 0

    def number(self, count: int) -> int:
        """The next bits as a number, the lowest first."""
        self.at += count
        return sum(bit << place for place, bit in enumerate(self._bits[self.at - count : self.at]))

    def symbol(self, codes: dict[tuple[int, int], int]) -> int:
        """The symbol of the next code; `codes` has a symbol for each (length, code)."""
        code = length = 0
        while (length, code) not in codes:
            code, length = 2 * code + self.number(1), length + 1
        return codes[length, code]


def codes_of(lengths: list[int]) -> dict[tuple[int, int], int]:
    """The canonical codes of symbols with these lengths, of which 0 is none."""
    found, code = {}, 0
    for length in range(1, 16):
        for symbol, own in enumerate(lengths):
            if own == length:
                found[length, code] = symbol
                code += 1
        code *= 2
    return found


def table_bits(stream: bytes) -> int:
    """The bits of the headers of all blocks of a deflated stream, which have dynamic codes."""
    bits, total, last = Bits(stream), 0, 0
    while not last:
        began = bits.at
        last, kind = bits.number(1), bits.number(2)
        assert kind == 2, "a block with codes of its own"
        literals, distances, count = bits.number(5) + 257, bits.number(5) + 1, bits.number(4) + 4
        lengths = [0] * 19
        for place in _ORDER[:count]:
            lengths[place] = bits.number(3)
        codes, found = codes_of(lengths), list[int]()
        while len(found) < literals + distances:
            symbol = bits.symbol(codes)
            width, least = _REPEATS.get(symbol, (0, 1))
            found += (bits.number(width) + least) * [found[-1] if symbol == 16 else symbol if symbol < 16 else 0]
        total += bits.at - began
        codes = codes_of(found[:literals])
        while bits.symbol(codes) != _END:
            pass
    return total


def symbols(name: str) -> Symbols:
    draw = np.random.default_rng(1)
    return {
        "few": np.repeat(np.arange(4, dtype=np.uint8), 1000),
        "skewed": np.minimum(draw.geometric(0.2, 100_000) - 1, 63).astype(np.uint8),
        "many": draw.binomial(255, 0.5, 70_000).astype(np.uint8),
    }[name]


@pytest.mark.parametrize("name", ["few", "skewed", "many"])
def test_the_bytes_of_tables_are_those_in_the_stream(name: str) -> None:
    stream = encode_symbols([(symbols(name), 8)])
    assert table_bytes(stream, [symbols(name)]) == pytest.approx(table_bits(stream[1:]) / 8, abs=2)


def test_each_tensor_has_tables_of_its_own() -> None:
    parts = [symbols(name) for name in ("few", "skewed", "many", "few")]
    stream = encode_symbols([(part, 8) for part in parts])
    assert table_bytes(stream, parts) == pytest.approx(table_bits(stream[1:]) / 8, abs=2)
    alone = sum(len(encode_symbols([(part, 8)])) for part in parts)
    assert alone - 2 * len(parts) <= len(stream) <= alone < len(encode_symbols([(np.concatenate(parts), 8)]))


def test_fixed_numbers_of_bits_have_no_tables() -> None:
    even = np.arange(256, dtype=np.uint8)
    assert table_bytes(encode_symbols([(even, 8)]), [even]) == 0
