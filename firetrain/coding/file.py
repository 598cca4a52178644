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

from firetrain.coding.entropy import decode_symbols, encode_symbols, table_bytes
from firetrain.coding.tensor import KINDS, CompressedTensor, Floats, Kind, stream_of
from firetrain.config.files import read_bytes
from firetrain.errors import CannotCreate, UserError
from firetrain.records.file import write_whole

MAGIC, VERSION = b"FIRETRN", 1
STREAMS = ("codes", "gaps", "values", "numbers")
# bytes before the header: the magic, the version and the header's length
_BEFORE_HEADER, _CHECKSUM = len(MAGIC) + 5, 4
_TYPES = {"float32": "<f4", "float16": "<f2"}
_MOST_BYTES, _MOST_HEADER, _MOST_ELEMENTS = 2 << 30, 1 << 20, 1 << 28
_MOST_DIMENSIONS, _MOST_BITS, _MOST_NAME, _MOST_DEPTH = 8, 8, 1000, 8
# of the sections of a config: what names files
_OF_A_MACHINE = ("weights", "keep", "folder", "root")
_FIELDS = ("name", "shape", "kind", "bits", "gap_bits", "entries", "values")


@dataclass(frozen=True, eq=False)
class CompressedModel:
    """The content of a file.

    - `model`, `data`: the sections of the config of the run that was compressed, without files and folders of its machine, unless
      arguments of the user's own code name some; `classes`: their number.
    - `tensors`: all tensors of the state dict that hold floats. `dtype`: of the numbers in the file. `precision`: of the config.
    - `sizes`: bytes of the header, of each stream in the file without its Huffman tables, and of these tables; empty for a model
      that was not read from a file.
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    classes: int
    tensors: Sequence[CompressedTensor]
    dtype: str = "float32"
    precision: str = "float32"
    sizes: Mapping[str, int] = field(default_factory=dict)

    def state(self) -> dict[str, Floats]:
        """The tensors by name."""
        return {one.name: one.array() for one in self.tensors}


def write(model: CompressedModel, path: Path) -> int:
    """Write the file completely or not at all; returns its bytes.

    CannotCreate if that fails, UserError if it is too large, or would be refused or have other bits when it is read.
    """
    if (count := max(map(sum, zip(*map(_counts, model.tensors), strict=True)), default=0)) > _MOST_ELEMENTS:
        raise UserError(f"{path}: a compressed model has at most {_MOST_ELEMENTS:,} numbers (got {count:,})")
    content = encode(model)
    try:
        found = decode(content)
    except ValueError as error:
        raise UserError(f"{path} cannot be written as a compressed model: {error}") from None
    others = (
        one.name for one, read in zip(model.tensors, found.tensors, strict=True) if not _same(one, read, model.dtype)
    )
    if other := next(others, None):
        raise UserError(f"{path} was not written: {other} would have other bits than the compressed model")
    write_whole(path, content, kind=CannotCreate)
    return len(content)


def _same(one: CompressedTensor, read: CompressedTensor, dtype: str) -> bool:
    """Whether a tensor has been read as it was, bit for bit; numbers as they are in a file of this type."""
    values = one.values.astype(_TYPES[dtype]).astype(np.float32)
    pairs = ((values, read.values), (one.codes, read.codes), (one.gaps, read.gaps))
    alike = (one.name, tuple(one.shape), one.kind) == (read.name, read.shape, read.kind)
    return alike and all(before.tobytes() == after.tobytes() for before, after in pairs)


def encode(model: CompressedModel) -> bytes:
    """The bytes of the file."""
    parts = {
        "codes": encode_symbols([(one.codes, one.bits) for one in model.tensors]),
        "gaps": encode_symbols([(one.gaps, one.gap_bits) for one in model.tensors]),
        "values": _numbers(model, "values"),
        "numbers": _numbers(model, "numbers"),
    }
    tensors = [
        [one.name, one.shape, KINDS.index(one.kind), one.bits, one.gap_bits, _entries(one), len(one.values)]
        for one in model.tensors
    ]
    header = {
        "model": model.model, "data": model.data, "classes": model.classes, "dtype": model.dtype, "tensors": tensors,
        "streams": [len(parts[name]) for name in STREAMS],
    }  # fmt: skip
    if model.precision != "float32":
        header["precision"] = model.precision
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
    except (ValueError, LookupError, TypeError, OverflowError, struct.error) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is not a readable compressed model: {text}") from None


def decode(content: bytes) -> CompressedModel:
    """The model in the bytes of a file; ValueError, LookupError or TypeError if they are not those of one."""
    if not content:
        raise ValueError("it is empty")
    if content[: len(MAGIC)] != MAGIC:
        raise ValueError("it does not begin as one; firetrain compress writes them")
    if len(content) < _BEFORE_HEADER + _CHECKSUM:
        raise ValueError(f"it ends after {len(content)} bytes")
    if not 1 <= (version := content[len(MAGIC)]) <= VERSION:
        raise ValueError(f"it has version {version}, and this firetrain reads version {VERSION}: use a newer firetrain")
    found, expected = zlib.crc32(content[:-_CHECKSUM]), struct.unpack("<I", content[-_CHECKSUM:])[0]
    if found != expected:
        raise ValueError(f"it is damaged or truncated: its checksum is {found:08x}, and it says {expected:08x}")
    header_end = _BEFORE_HEADER + struct.unpack("<I", content[len(MAGIC) + 1 : _BEFORE_HEADER])[0]
    header = _header(content[_BEFORE_HEADER:header_end])
    streams, at = {}, header_end
    for name, length in zip(STREAMS, header["streams"], strict=True):
        streams[name] = content[at : at + _whole(length, _MOST_BYTES)]
        at += length
    if at != len(content) - _CHECKSUM:
        raise ValueError(f"its streams end at byte {at:,} of {len(content) - _CHECKSUM:,}")
    tensors = _tensors([dict(zip(_FIELDS, one, strict=True)) for one in header["tensors"]], streams, header["dtype"])
    sizes = {"header": header_end + _CHECKSUM, **_sizes(streams, tensors)}
    classes, precision = _size(header["classes"]), header.get("precision", "float32")
    return CompressedModel(header["model"], header["data"], classes, tensors, header["dtype"], precision, sizes)


def _sizes(streams: Mapping[str, bytes], tensors: Sequence[CompressedTensor]) -> dict[str, int]:
    """The bytes of each stream without its Huffman tables, and of all tables."""
    tables = {name: table_bytes(streams[name], [getattr(one, name) for one in tensors]) for name in ("codes", "gaps")}
    return {"tables": sum(tables.values()), **{name: len(streams[name]) - tables.get(name, 0) for name in STREAMS}}


def _header(coded: bytes) -> dict[str, Any]:
    decoder = zlib.decompressobj()
    try:
        text = decoder.decompress(coded, _MOST_HEADER)
        found = json.loads(text)
    except (zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("dtype") not in _TYPES:
        raise ValueError("its header is not that of a compressed model")
    for section in ("model", "data"):
        named = found[section]
        if not isinstance(named, dict) or not _is_a_name(named.get("name")) or named.keys() & set(_OF_A_MACHINE):
            raise ValueError(f"its header does not name its {section}")
        if not _is_shallow(named, _MOST_DEPTH):
            raise ValueError(f"its {section} has sections in sections in sections")
    if not _is_a_name(found.get("precision", "float32")):
        raise ValueError("its precision is no name")
    return found


def _is_shallow(value: Any, levels: int) -> bool:
    """Whether lists and sections are in each other at most so many levels deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not inner or (levels > 0 and all(_is_shallow(one, levels - 1) for one in inner))


def _tensors(
    described: Sequence[Mapping[str, Any]], streams: Mapping[str, bytes], dtype: str
) -> list[CompressedTensor]:
    """The tensors that the header describes, from their streams."""
    for count in ("shape", "entries", "values"):
        if sum(_elements(one[count]) if count == "shape" else _size(one[count]) for one in described) > _MOST_ELEMENTS:
            raise ValueError(f"it says that it has more than {_MOST_ELEMENTS:,} numbers")
    if not any(_elements(one["shape"]) for one in described):
        raise ValueError("it has no numbers")
    names = [one["name"] for one in described]
    if not all(map(_is_a_name, names)) or len(set(names)) < len(names):
        raise ValueError("the names of its tensors are not different texts")
    kinds = [KINDS[_whole(one["kind"], len(KINDS) - 1)] for one in described]
    for width in ("bits", "gap_bits"):
        for one in described:
            _whole(one[width], _MOST_BITS)
    if any(kind == "shared" and one["entries"] and not one["bits"] for one, kind in zip(described, kinds, strict=True)):
        raise ValueError("it has codes of no bits")
    coded = [one["entries"] if kind == "shared" else 0 for one, kind in zip(described, kinds, strict=True)]
    with_gaps = [one["entries"] if one["gap_bits"] else 0 for one in described]
    codes = _symbols(streams["codes"], coded, [one["bits"] for one in described])
    gaps = _symbols(streams["gaps"], with_gaps, [one["gap_bits"] for one in described])
    values = _values(described, kinds, streams, dtype)
    found = []
    for one, kind, own_values, own_codes, own_gaps in zip(described, kinds, values, codes, gaps, strict=True):
        shape = tuple(map(_size, one["shape"]))
        tensor = CompressedTensor(
            one["name"], shape, kind, own_values, one["bits"], own_codes, one["gap_bits"], own_gaps
        )
        _check(tensor, one)
        found.append(tensor)
    return found


def _symbols(stream: bytes, counts: Sequence[int], widths: Sequence[int]) -> list[NDArray[np.uint8]]:
    """The codes or gaps of every tensor."""
    whole = decode_symbols(stream, list(zip(counts, widths, strict=True)))
    return np.split(whole, np.cumsum(counts)[:-1]) if counts else []


def _values(
    described: Sequence[Mapping[str, Any]], kinds: Sequence[Kind], streams: Mapping[str, bytes], dtype: str
) -> list[Floats]:
    """The numbers of every tensor; ValueError if the streams have more or fewer."""
    width = np.dtype(_TYPES[dtype]).itemsize
    taken = {"values": 0, "numbers": 0}
    found = []
    for one, kind in zip(described, kinds, strict=True):
        stream = stream_of(kind)
        first, taken[stream] = taken[stream], taken[stream] + one["values"] * width
        found.append(np.frombuffer(streams[stream][first : taken[stream]], _TYPES[dtype]).astype(np.float32))
    if any(taken[name] != len(streams[name]) for name in taken):
        raise ValueError("its numbers are not as many as its tensors need")
    return found


def _check(tensor: CompressedTensor, described: Mapping[str, Any]) -> None:
    """ValueError if the tensor's parts do not fit each other."""
    entries = len(tensor.gaps) if tensor.gap_bits else tensor.size
    known = {
        "raw": len(tensor.values) == tensor.size,
        "sparse": tensor.gap_bits > 0 and len(tensor.values) == entries,
        "shared": len(tensor.codes) == entries and int(tensor.codes.max(initial=0)) <= len(tensor.values),
        "low_rank": bool(tensor.shape and tensor.size)
        and len(tensor.values) % (tensor.shape[0] + tensor.size // tensor.shape[0]) == 0,
    }
    fit = int(tensor.codes.max(initial=0)) < 1 << tensor.bits and int(tensor.gaps.max(initial=0)) < 1 << tensor.gap_bits
    reach = int(tensor.gaps.astype(np.int64).sum()) + len(tensor.gaps)
    if (
        not fit
        or not known[tensor.kind]
        or len(tensor.values) != described["values"]
        or (tensor.gap_bits and reach > tensor.size)
    ):
        raise ValueError(f"the parts of {tensor.name} do not fit its shape {list(tensor.shape)}")


def _numbers(model: CompressedModel, stream: str) -> bytes:
    """The values of all tensors that are in this stream."""
    dtype = _TYPES[model.dtype]
    return b"".join(one.values.astype(dtype).tobytes() for one in model.tensors if one.stream == stream)


def _entries(one: CompressedTensor) -> int:
    return len(one.codes) if one.kind == "shared" else len(one.gaps)


def _counts(one: CompressedTensor) -> tuple[int, int, int]:
    """The numbers of elements, of entries and of values of a tensor, each of which is limited in a file."""
    return one.size, _entries(one), len(one.values)


def _is_a_name(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= _MOST_NAME and text.isprintable()


def _size(number: Any) -> int:
    return _whole(number, _MOST_ELEMENTS)


def _whole(number: Any, most: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
        raise ValueError(f"{number!r} is not a whole number from 0 to {most:,}")
    return number


def _elements(shape: Any) -> int:
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{shape!r} is not a shape")
    total = 1
    for size in shape:  # an array without elements must not have too large sizes either
        total *= _size(size) or 1
        _size(total)
    return total if all(shape) else 0
