"""The file of a compressed model: a small header, and a stream for each kind of content.

    8 bytes   FIRETRN and the version
    4 bytes   length of the header
    header    deflated JSON: the model's section of the config, classes, data, the tensors, and the bytes of each stream
    streams   codes, gaps: Huffman codes, or fixed numbers of bits where these are fewer bytes; values: shared values; numbers:
              all other numbers, such as biases
    4 bytes   CRC-32 of everything before

Numbers are little-endian float32, or float16 if the header says so.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.compression.entropy import deflate, inflate
from firetrain.compression.packed import KINDS, Floats, Packed
from firetrain.config.files import read_bytes
from firetrain.errors import CannotCreate, UserError
from firetrain.records.file import write_whole

MAGIC, VERSION = b"FIRETRN", 1
STREAMS = ("codes", "gaps", "values", "numbers")
_TYPES = {"float32": "<f4", "float16": "<f2"}
_MOST_BYTES, _MOST_HEADER, _MOST_ELEMENTS = 1 << 30, 1 << 20, 1 << 28
_FIELDS = ("name", "shape", "kind", "bits", "gap_bits", "entries", "values")


@dataclass(frozen=True, eq=False)
class CompressedModel:
    """The content of a file.

    - `model`, `data`: the sections of the config of the run that was compressed, without paths; `classes`: their number.
    - `tensors`: all tensors of the state dict that hold floats. `dtype`: of the numbers in the file.
    - `sizes`: bytes of the header and of each stream in the file; empty for a model that was not read from one.
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    classes: int
    tensors: Sequence[Packed]
    dtype: str = "float32"
    sizes: Mapping[str, int] = field(default_factory=dict)

    def state(self) -> dict[str, Floats]:
        """The tensors by name."""
        return {one.name: one.array() for one in self.tensors}


def write(model: CompressedModel, path: Path) -> int:
    """Write the file completely or not at all; returns its bytes. CannotCreate if that fails."""
    content = encode(model)
    write_whole(path, content, kind=CannotCreate)
    return len(content)


def encode(model: CompressedModel) -> bytes:
    """The bytes of the file."""
    dtype = _TYPES[model.dtype]
    own = {one.name: one.kind == "shared" for one in model.tensors}
    parts = {
        "codes": _coded([(one.codes, one.bits) for one in model.tensors]),
        "gaps": _coded([(one.gaps, one.gap_bits) for one in model.tensors]),
        "values": b"".join(one.values.astype(dtype).tobytes() for one in model.tensors if own[one.name]),
        "numbers": b"".join(one.values.astype(dtype).tobytes() for one in model.tensors if not own[one.name]),
    }
    tensors = [
        [one.name, one.shape, KINDS.index(one.kind), one.bits, one.gap_bits, _entries(one), len(one.values)]
        for one in model.tensors
    ]
    header = {
        "model": model.model, "data": model.data, "classes": model.classes, "dtype": model.dtype, "tensors": tensors,
        "streams": [len(parts[name]) for name in STREAMS],
    }  # fmt: skip
    coded = zlib.compress(json.dumps(header, separators=(",", ":")).encode(), 9)
    content = (
        MAGIC + bytes([VERSION]) + struct.pack("<I", len(coded)) + coded + b"".join(parts[name] for name in STREAMS)
    )
    return content + struct.pack("<I", zlib.crc32(content))


def read(path: Path) -> CompressedModel:
    """Read the file; UserError with what is wrong if it is damaged, truncated, of a newer firetrain or no such file."""
    content = read_bytes(path, _MOST_BYTES, "compressed model")
    try:
        return decode(content)
    except (ValueError, KeyError, TypeError, OverflowError, struct.error) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is not a readable compressed model: {text}") from None


def decode(content: bytes) -> CompressedModel:
    """The model in the bytes of a file; ValueError, KeyError or TypeError if they are not those of one."""
    if content[: len(MAGIC)] != MAGIC:
        raise ValueError("it does not begin as one; firetrain compress writes them")
    if len(content) < len(MAGIC) + 9:
        raise ValueError(f"it ends after {len(content)} bytes")
    if (version := content[len(MAGIC)]) > VERSION:
        raise ValueError(f"it has version {version}, and this firetrain reads version {VERSION}: use a newer firetrain")
    found, expected = zlib.crc32(content[:-4]), struct.unpack("<I", content[-4:])[0]
    if found != expected:
        raise ValueError(f"it is damaged or truncated: its checksum is {found:08x}, and it says {expected:08x}")
    begin = len(MAGIC) + 5
    header_end = begin + struct.unpack("<I", content[begin - 4 : begin])[0]
    header = _header(content[begin:header_end])
    streams, at = {}, header_end
    for name, length in zip(STREAMS, header["streams"], strict=True):
        streams[name] = content[at : at + _size(length)]
        at += length
    if at != len(content) - 4:
        raise ValueError(f"its streams end at byte {at:,} of {len(content) - 4:,}")
    sizes = {"header": len(MAGIC) + 5 + header_end - begin + 4, **{name: len(streams[name]) for name in STREAMS}}
    tensors = _tensors([dict(zip(_FIELDS, one, strict=True)) for one in header["tensors"]], streams, header["dtype"])
    return CompressedModel(
        dict(header["model"]), dict(header["data"]), _size(header["classes"]), tensors, header["dtype"], sizes
    )


def _header(coded: bytes) -> dict[str, Any]:
    decoder = zlib.decompressobj()
    try:
        text = decoder.decompress(coded, _MOST_HEADER)
        found = json.loads(text)
    except (zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("dtype") not in _TYPES:
        raise ValueError("its header is not that of a compressed model")
    return found


def _tensors(described: Sequence[Mapping[str, Any]], streams: Mapping[str, bytes], dtype: str) -> list[Packed]:
    if (
        sum(_size(size) for one in described for size in (_product(one["shape"]), one["entries"], one["values"]))
        > _MOST_ELEMENTS
    ):
        raise ValueError(f"it says that it has more than {_MOST_ELEMENTS:,} numbers")
    coded = [one["entries"] if KINDS[one["kind"]] == "shared" else 0 for one in described]
    with_gaps = [one["entries"] if one["gap_bits"] else 0 for one in described]
    codes = _split(
        _decoded(streams["codes"], [(n, one["bits"]) for n, one in zip(coded, described, strict=True)]), coded
    )
    gaps = _split(
        _decoded(streams["gaps"], [(n, one["gap_bits"]) for n, one in zip(with_gaps, described, strict=True)]),
        with_gaps,
    )
    taken = {"values": 0, "numbers": 0}
    found = []
    for one, own_codes, own_gaps in zip(described, codes, gaps, strict=True):
        kind = KINDS[one["kind"]]
        stream = "values" if kind == "shared" else "numbers"
        width = np.dtype(_TYPES[dtype]).itemsize
        first, taken[stream] = taken[stream], taken[stream] + one["values"] * width
        values = np.frombuffer(streams[stream][first : taken[stream]], _TYPES[dtype]).astype(np.float32)
        packed = Packed(
            str(one["name"]),
            tuple(map(_size, one["shape"])),
            kind,
            values,
            one["bits"],
            own_codes,
            one["gap_bits"],
            own_gaps,
        )
        _check(packed, one)
        found.append(packed)
    if any(taken[name] != len(streams[name]) for name in taken):
        raise ValueError("its numbers are not as many as its tensors need")
    return found


def _check(packed: Packed, described: Mapping[str, Any]) -> None:
    """ValueError if the tensor's parts do not fit each other."""
    entries = len(packed.gaps) if packed.gap_bits else packed.size
    known = {
        "raw": len(packed.values) == packed.size,
        "sparse": packed.gap_bits > 0 and len(packed.values) == entries,
        "shared": len(packed.codes) == entries and int(packed.codes.max(initial=0)) <= len(packed.values),
        "product": bool(packed.shape)
        and len(packed.values) % (packed.shape[0] + packed.size // max(1, packed.shape[0])) == 0,
    }
    reach = int(packed.gaps.astype(np.int64).sum()) + len(packed.gaps)
    if not known[packed.kind] or len(packed.values) != described["values"] or (packed.gap_bits and reach > packed.size):
        raise ValueError(f"the parts of {packed.name} do not fit its shape {list(packed.shape)}")


def _coded(symbols: Sequence[tuple[NDArray[np.uint8], int]]) -> bytes:
    """A byte for the form, and the symbols of all tensors: as Huffman codes, or in their numbers of bits."""
    huffman = deflate(b"".join(values.tobytes() for values, _ in symbols))
    fixed = np.concatenate([_bits(values, width) for values, width in symbols] or [np.empty(0, np.uint8)])
    plain = np.packbits(fixed).tobytes()
    return b"\x00" + huffman if len(huffman) < len(plain) else b"\x01" + plain


def _decoded(stream: bytes, counts: Sequence[tuple[int, int]]) -> NDArray[np.uint8]:
    total = sum(count for count, _ in counts)
    if stream[:1] == b"\x00":
        return np.frombuffer(inflate(stream[1:], total), np.uint8)
    bits = np.unpackbits(np.frombuffer(stream[1:], np.uint8))
    if stream[:1] != b"\x01" or len(bits) // 8 != -(-sum(count * width for count, width in counts) // 8):
        raise ValueError("a stream does not have as many symbols as its tensors need")
    found, at = [np.empty(0, np.uint8)], 0
    for count, width in counts:
        own = bits[at : at + count * width].reshape(count, width)
        found.append(np.packbits(np.pad(own, ((0, 0), (8 - width, 0))), axis=1).ravel())
        at += count * width
    return np.concatenate(found)


def _bits(values: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    return np.unpackbits(values[:, None], axis=1)[:, 8 - width :].ravel()


def _split(values: NDArray[np.uint8], counts: Sequence[int]) -> list[NDArray[np.uint8]]:
    return np.split(values, np.cumsum(counts)[:-1]) if counts else []


def _entries(one: Packed) -> int:
    return len(one.codes) if one.kind == "shared" else len(one.gaps)


def _size(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST_ELEMENTS:
        raise ValueError(f"{number!r} is not a size")
    return number


def _product(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= _size(size)
    return total
