"""Files of compressed models that are damaged or hostile, and the commands that read them."""

from __future__ import annotations

import json
import random
import struct
import zlib
from typing import Any

from firetrain.coding.file import MAGIC, CompressedModel, encode
from firetrain.coding.tensor import raw, shared
from firetrain.models.catalogue import model_by_name

ODD_NUMBERS = (-1, 0, 1, 2, 3, 8, 9, 500, 1 << 20, 1 << 28, 1 << 40, 0.5, True, "7", None, [], {})
ODD_SECTIONS: tuple[Any, ...] = (
    {}, [], None, 3, {"name": "lenet"}, {"name": "none"}, {"name": "./nets.py:Net"},
    {"name": "lenet", "stem": "small", "heads": 1},
    {"name": "lenet", "arguments": {"a": [[[[]]]]}}, {"name": "digits", "image_size": 1 << 30},
    {"name": "digits", "image_size": 8},
    {"name": "lenet", "folder": "/"}, {"name": "idx", "root": "/dev/zero"}, {"name": "a\nb"}, {"name": "x" * 5000},
)  # fmt: skip
COMMANDS = (
    ["compress", "show", "mine.fire"], ["compress", "open", "mine.fire", "--out", "weights.pt"], ["evaluate", "mine.fire"],
    ["launch", "squeezenet-digits", "--dry-run", "--set", "model.name=lenet", "--set", "data.image_size=28", "--set",
     "model.weights=mine.fire"],
)  # fmt: skip


def whole() -> bytes:
    """A model of LeNet as it is drawn, with a part of its weights shared."""
    state = model_by_name("lenet", classes=10, stem="small").state_dict()
    tensors = [
        shared(name, value.numpy(), 4, 4) if value.dim() > 1 else raw(name, value.numpy())
        for name, value in state.items()
    ]
    return encode(
        CompressedModel({"name": "lenet", "stem": "small"}, {"name": "digits", "image_size": 28}, 10, tensors)
    )


def changed(content: bytes, draw: random.Random) -> bytes:
    """The file with another header, whose checksum fits; sometimes with other bytes, or fewer of them."""
    length = struct.unpack("<I", content[len(MAGIC) + 1 : len(MAGIC) + 5])[0]
    first = len(MAGIC) + 5
    header = json.loads(zlib.decompress(content[first : first + length]))
    for _ in range(draw.randint(1, 3)):
        kind = draw.random()
        if kind < 0.5:
            one = draw.choice(header["tensors"])
            one[draw.randrange(len(one))] = draw.choice(
                (*ODD_NUMBERS, [1 << 14, 1 << 14], [0, 1 << 28, 1 << 28], ["x"])
            )
        elif kind < 0.8:
            header[draw.choice(("model", "data"))] = draw.choice(ODD_SECTIONS)
        else:
            header[draw.choice(("classes", "dtype", "streams", "precision", "tensors"))] = draw.choice(ODD_NUMBERS)
            break
    coded = zlib.compress(json.dumps(header).encode())
    streams = bytearray(content[first + length : -4])
    if draw.random() < 0.3:
        streams[draw.randrange(len(streams))] ^= 1 << draw.randrange(8)
    if draw.random() < 0.1:
        del streams[draw.randrange(len(streams)) :]
    made = content[: len(MAGIC) + 1] + struct.pack("<I", len(coded)) + coded + bytes(streams)
    return made + struct.pack("<I", zlib.crc32(made))
