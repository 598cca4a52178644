"""Tensors come back from gaps, codes and values as they were, and files as they were written."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from firetrain.coding.entropy import decode_symbols, deflate, inflate
from firetrain.coding.file import MAGIC, CompressedModel, decode, encode, read, write
from firetrain.coding.gaps import gaps_of, positions_of
from firetrain.coding.tensor import CompressedTensor, Floats, low_rank, raw, shared, sparse
from firetrain.compression.pruning import density_of, pruned
from firetrain.config.compression import LayerRecipe
from firetrain.errors import CannotCreate, UserError
from firetrain.report.compressed import headline, table


def weights(shape: tuple[int, ...], density: float = 1.0, seed: int = 1) -> Floats:
    return pruned(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), density)


def model(*tensors: CompressedTensor) -> CompressedModel:
    return CompressedModel({"name": "lenet", "stem": "small"}, {"name": "digits", "image_size": 28}, 10, tensors)


SEVERAL = model(
    raw("conv1.bias", weights((20,))), shared("conv1.weight", weights((20, 3, 5, 5)), 5, 4),
    shared("fc1.weight", weights((50, 80), 0.1), 6, 5), sparse("fc2.weight", weights((10, 50), 0.2), 4),
    low_rank("fc3.weight", weights((12, 16)), 3), sparse("none", np.zeros((3, 4), np.float32), 4),
)  # fmt: skip


@given(st.sets(st.integers(0, 3000)), st.integers(1, 8))
def test_positions_come_back_from_gaps_whatever_their_bits(positions: set[int], bits: int) -> None:
    given_positions = np.array(sorted(positions), np.int64)
    gaps, fillers = gaps_of(given_positions, bits)
    assert (positions_of(gaps)[~fillers] == given_positions).all() and gaps.max(initial=0) < 1 << bits
    # the fewest fillers: one for each full reach of zeros before an entry
    zeros = np.diff(given_positions, prepend=-1) - 1
    assert fillers.sum() == (zeros // (1 << bits)).sum()


def test_the_published_gaps_of_a_file_of_a_third_of_the_weights_need_few_fillers() -> None:
    """With 4 bits at a density of 0.33, the chance of 16 zeros in a row is 0.67^16; at 0.08 with 5 bits it is 0.92^32."""
    for density, bits in ((0.33, 4), (0.08, 5)):
        kept = np.flatnonzero(weights((400, 500), density))
        _, fillers = gaps_of(kept, bits)
        expected = (1 - density) ** (1 << bits)
        assert fillers.mean() == pytest.approx(expected / (1 + expected), rel=0.15)


@pytest.mark.parametrize("density", [0.05, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_codes_keep_the_zeros_and_few_values(density: float, bits: int) -> None:
    array = weights((40, 60), density)
    found = shared("fc", array, bits, 4)
    assert ((found.array() == 0) == (array == 0)).all() and len(np.unique(found.array())) <= 1 << bits
    assert (shared("fc", found.array(), bits, 4).array() == found.array()).all(), "what shares values is kept as it is"
    assert (sparse("fc", array, 3).array() == array).all() and found.density == pytest.approx(density, abs=1e-3)


def test_a_product_is_the_best_one_of_its_rank() -> None:
    array = weights((30, 20))
    errors = [float(np.linalg.norm(low_rank("fc", array, rank).array() - array)) for rank in (1, 5, 20)]
    middle = np.linalg.svd(array.astype(np.float64), compute_uv=False)
    assert errors == pytest.approx([np.linalg.norm(middle[rank:]) for rank in (1, 5, 20)], rel=1e-5, abs=1e-4)


def test_pruning_keeps_the_largest_weights() -> None:
    array = weights((50, 40))
    kept = pruned(array, 0.25)
    assert np.count_nonzero(kept) == 500 and np.abs(kept[kept != 0]).min() >= np.abs(array[kept == 0]).max()
    assert np.count_nonzero(pruned(array, 1e-9)) == 1
    share_of_three = density_of(array, LayerRecipe(threshold=1.0))
    assert share_of_three == pytest.approx(0.317, abs=0.03), (
        "of a normal distribution, outside of one standard deviation"
    )


@pytest.mark.parametrize("kind", ["gaps", "codes"])
def test_huffman_codes_with_their_tables_are_within_0_7_per_cent_of_the_best_code(kind: str) -> None:
    draw = np.random.default_rng(1)
    gaps, codes = draw.geometric(0.3, 400_000) - 1, 32 + 8 * draw.standard_normal(400_000)
    symbols = np.clip(gaps if kind == "gaps" else codes, 0, 63).astype(np.uint8)
    layers = np.split(np.concatenate([symbols, symbols // 8]), [100_000, 400_000])  # the last one has other symbols
    coded = deflate([layer.tobytes() for layer in layers])
    best = sum(map(best_prefix_code_bytes, layers))
    assert 0.99 * best < len(coded) < 1.007 * best
    assert inflate(coded, 2 * len(symbols)) == b"".join(layer.tobytes() for layer in layers)


def best_prefix_code_bytes(symbols: NDArray[np.uint8]) -> float:
    """Of all symbols, without the table (Huffman 1952)."""
    counts = [int(count) for count in np.bincount(symbols) if count]
    bits = 0
    while len(counts) > 1:
        counts.sort()
        counts[:2] = [sum(counts[:2])]
        bits += counts[0]
    return bits / 8


def test_repetitions_which_ask_for_much_from_few_bytes_are_refused() -> None:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    coded = coder.compress(bytes(1_000_000)) + coder.flush()
    with pytest.raises(ValueError, match="are too few for 1,000,000 symbols"):
        inflate(coded, 1_000_000)


def test_a_file_that_would_give_back_other_bits_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_bit_less(content: bytes) -> CompressedModel:
        found = decode(content)
        tensors = [replace(one, values=np.nextafter(one.values, np.float32(0))) for one in found.tensors]
        return replace(found, tensors=tensors)

    monkeypatch.setattr("firetrain.coding.file.decode", with_a_bit_less)
    with pytest.raises(UserError, match="was not written: conv1.bias would have other bits"):
        write(SEVERAL, tmp_path / "model.fire")
    assert not (tmp_path / "model.fire").exists()


def test_a_file_has_everything_and_its_parts_sum_to_its_size(tmp_path: Path) -> None:
    path = tmp_path / "model.fire"
    size_bytes = write(SEVERAL, path)
    found = read(path)
    assert path.stat().st_size == size_bytes == sum(found.sizes.values())
    assert (found.model, found.data, found.classes) == (SEVERAL.model, SEVERAL.data, 10)
    for name, array in SEVERAL.state().items():
        assert found.state()[name].dtype == np.float32 and (found.state()[name] == array).all(), name
    assert encode(found) == path.read_bytes()
    halves = CompressedModel(SEVERAL.model, SEVERAL.data, 10, SEVERAL.tensors, "float16")
    again = decode(encode(halves)).state()
    assert len(encode(halves)) < size_bytes
    assert np.allclose(again["fc1.weight"], SEVERAL.state()["fc1.weight"], rtol=1e-3)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda content: b"", "it is empty"), (lambda content: b"PK" + content, "it does not begin as one"),
        (lambda content: content[:20], "its checksum is"), (lambda content: content[:-30], "its checksum is"),
        (lambda content: MAGIC + b"\x09" + content[8:], "it has version 9, and this firetrain reads version 1"),
        (lambda content: MAGIC + b"\x00" + content[8:], "it has version 0, and this firetrain reads version 1"),
        (lambda content: content[:50] + bytes([content[50] ^ 1]) + content[51:], "it is damaged or truncated"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_what_is_wrong(damage: object, told: str, tmp_path: Path) -> None:
    path = tmp_path / "model.fire"
    path.write_bytes(damage(encode(SEVERAL)))  # type: ignore[operator]
    with pytest.raises(UserError, match=r"model\.fire is not a readable compressed model") as caught:
        read(path)
    assert told in str(caught.value)
    with pytest.raises(UserError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(CannotCreate):
        write(SEVERAL, tmp_path / "none" / "model.fire")


def test_a_product_is_that_of_all_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    one = low_rank("fc", weights((70, 30)), 4)
    whole = one.array()
    monkeypatch.setattr("firetrain.coding.tensor._TOGETHER", 64)
    np.testing.assert_allclose(one.array(), whole, rtol=1e-6)


def test_a_model_that_no_file_can_hold_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrain.coding.file._MOST_ELEMENTS", 6_000)
    with pytest.raises(UserError, match=r"a compressed model has at most 6,000 numbers \(got 6,"):
        write(SEVERAL, tmp_path / "model.fire")
    assert not (tmp_path / "model.fire").exists()


def test_whatever_is_in_a_file_it_is_refused_in_words_or_read(tmp_path: Path) -> None:
    """Also where the checksum fits: files are made by anybody."""
    draw, content = random.Random(1), encode(SEVERAL)
    for number in range(1500):
        changed = bytearray(content[: draw.randrange(1, len(content))] if number % 3 == 0 else content)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        if number % 2 and len(changed) > 12:
            changed[-4:] = struct.pack("<I", zlib.crc32(bytes(changed[:-4])))
        (tmp_path / "model.fire").write_bytes(bytes(changed))
        try:
            state = read(tmp_path / "model.fire").state()
        except UserError:
            continue
        assert sum(array.size for array in state.values()) <= 1 << 28


def test_whatever_a_header_says_it_is_refused_in_words_or_read(tmp_path: Path) -> None:
    """Numbers of the tensors are changed, and everything that is computed from them fits again."""
    draw, content = random.Random(2), encode(SEVERAL)
    length = struct.unpack("<I", content[8:12])[0]
    refused = 0
    for _ in range(1500):
        header = json.loads(zlib.decompress(content[12 : 12 + length]))
        odd = (-1, 0, 1, 3, 4, 7, 9, 1 << 40, 1.5, "x", None, [0], [])
        if draw.random() < 0.2:
            section = draw.choice(("model", "data", "classes", "dtype", "streams", "tensors"))
            header[section] = draw.choice((*odd, {}, {"name": 3}, {"name": ""}, {"name": "a\x1bb"}, {"stem": "small"}))
        else:
            one = draw.choice(header["tensors"])
            field = draw.randrange(len(one))
            names = ("conv1.bias", "", "\x1b[2J", "x" * 5000, None, 3)
            shapes = ([0, 4], [4, 0], [], [2, -3], "x", [1] * 65)
            one[field] = draw.choice((names, shapes)[field]) if field < 2 else draw.choice(odd)
        coded = zlib.compress(json.dumps(header).encode())
        made = content[:8] + struct.pack("<I", len(coded)) + coded + content[12 + length : -4]
        (tmp_path / "model.fire").write_bytes(made + struct.pack("<I", zlib.crc32(made)))
        try:
            found = read(tmp_path / "model.fire")
            found.state()
            table(found), headline(found)
        except UserError as error:
            assert "is not a readable compressed model" in str(error)
            refused += 1
    assert refused > 1000


def made_of(tensors: list[list[object]], model: dict[str, object], streams: list[bytes], path: Path) -> Path:
    """A file of somebody else's making, with a checksum that fits."""
    header = {"model": model, "data": {"name": "digits"}, "classes": 10, "dtype": "float32", "tensors": tensors}
    coded = zlib.compress(json.dumps({**header, "streams": [len(one) for one in streams]}).encode())
    content = MAGIC + b"\x01" + struct.pack("<I", len(coded)) + coded + b"".join(streams)
    path.write_bytes(content + struct.pack("<I", zlib.crc32(content)))
    return path


NOTHING = [b"\x01", b"\x01", b"", struct.pack("<f", 1.0)]
ONE = ["one", [1], 0, 0, 0, 0, 1]


def nested(levels: int) -> dict[str, object]:
    inner: dict[str, object] = {"a": 1}
    for _ in range(levels):
        inner = {"a": inner}
    return {"name": "lenet", "arguments": inner}


@pytest.mark.parametrize(
    ("tensors", "model", "told"),
    [
        ([ONE, ["many", [1 << 14, 1 << 14], 2, 0, 0, 1 << 28, 0]], {"name": "lenet"}, "more than"),
        ([ONE, ["many", [1 << 14, 1 << 13], 2, 0, 0, 1 << 27, 0]], {"name": "lenet"}, "codes of no bits"),
        ([ONE, ["many", [1 << 14, 1 << 13], 2, 1, 0, 1 << 27, 0]], {"name": "lenet"}, "as many symbols"),
        ([ONE, ["none", [0, 1 << 28, 1 << 28, 1 << 28], 0, 0, 0, 0, 0]], {"name": "lenet"}, "is not a whole number"),
        ([ONE], nested(500), "sections in sections"),
        ([ONE], nested(20), "sections in sections"),
    ],
)
def test_a_small_file_that_asks_for_much_is_refused(
    tensors: list[list[object]], model: dict[str, object], told: str, tmp_path: Path
) -> None:
    tracemalloc.start()
    with pytest.raises(UserError, match=told):
        read(made_of(tensors, model, NOTHING, tmp_path / "m.fire")).state()
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_file_of_the_same_making_is_read(tmp_path: Path) -> None:
    assert read(made_of([ONE], nested(2), NOTHING, tmp_path / "m.fire")).state()["one"].tolist() == [1.0]


def test_what_would_be_refused_is_not_written(tmp_path: Path) -> None:
    odd = CompressedModel({"name": "lenet"}, {"name": "digits"}, 10, [raw("x" * 2000, weights((3, 3)))])
    with pytest.raises(UserError, match=r"m\.fire cannot be written as a compressed model: the names of its tensors"):
        write(odd, tmp_path / "m.fire")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("widths", [(3, 5, 1), (8, 8, 8), (7, 2, 6)])
def test_codes_of_fixed_widths_come_back_across_blocks(widths: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    tensors = [(draw.integers(0, 1 << width, 40_001 + width).astype(np.uint8), width) for width in widths]
    bits = [np.unpackbits(symbols[:, None], axis=1)[:, 8 - width :].ravel() for symbols, width in tensors]
    stream = b"\x01" + np.packbits(np.concatenate(bits)).tobytes()
    found = decode_symbols(stream, [(len(symbols), width) for symbols, width in tensors])
    np.testing.assert_array_equal(found, np.concatenate([symbols for symbols, _ in tensors]))
