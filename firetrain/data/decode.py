"""Bytes of an image file to RGB pixels. Fast for ordinary JPEGs, right for everything else."""

from __future__ import annotations

import io
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from firetrain.errors import FiretrainError

Pixels = NDArray[np.uint8]

# Pillow's own limit: twice 1 GiB / 4 / 3 pixels
LARGEST_PIXELS = 2 * 89_478_485
_EXIF_WITHIN = 1 << 16


class BadImage(FiretrainError):
    """An image that cannot be read, with its path and the reason."""


class Scratch(threading.local):
    """Memory that a thread decodes into again and again: fresh memory for each image costs a fifth of the decoding."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def of(self, size_bytes: int) -> memoryview:
        """The calling thread's own memory, `size_bytes` of it; what was in it is lost."""
        if len(self._buffer) < size_bytes:
            self._buffer = bytearray(size_bytes)
        return memoryview(self._buffer)[:size_bytes]


def read_image(path: Path, scratch: Scratch | None = None) -> Pixels:
    """The file's image as uint8 [height, width, 3], upright; BadImage if it cannot be read. `scratch` as in decode."""
    try:
        return decode(path.read_bytes(), scratch)
    except BadImage as error:
        raise BadImage(f"{path}: {error}") from None
    except OSError as error:
        raise BadImage(f"{path}: {error.strerror or error}") from None


def decode(data: bytes, scratch: Scratch | None = None) -> Pixels:
    """An image file's content as uint8 [height, width, 3].

    Grayscale, palette, CMYK, 16-bit and transparent images become RGB, turned upright as EXIF says. BadImage for what is
    truncated, damaged or no image, and for decompression bombs. Anything that libjpeg-turbo has a complaint about is
    left to Pillow, which knows harmless damage from lost pixels. With `scratch` the pixels may stand in it: they are valid
    until the thread decodes its next image.
    """
    if data[:2] == b"\xff\xd8" and data.find(b"Exif", 0, _EXIF_WITHIN) < 0:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours in ("YCbCr", "RGB", "Gray") and height * width <= LARGEST_PIXELS:
                place = scratch.of(height * width * 3) if scratch else None
                pixels: Pixels = simplejpeg.decode_jpeg(data, buffer=place)
                return pixels
        except ValueError:
            pass
    return _by_pillow(data)


def _by_pillow(data: bytes) -> Pixels:
    try:
        with warnings.catch_warnings():
            # a broken EXIF block or a large, but allowed, image is not the user's concern
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return _to_rgb(image)
    except UnidentifiedImageError:
        raise BadImage("empty file" if not data else "not an image that can be identified") from None
    except Image.DecompressionBombError:
        raise BadImage(f"decompression bomb: more than {LARGEST_PIXELS} pixels") from None
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        raise BadImage(str(error) or type(error).__name__) from None


def _to_rgb(image: Image.Image) -> Pixels:
    image.load()
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        # 16-bit gray, which Pillow may hold as 32-bit: keep the high byte, where convert() would clip
        deep: NDArray[Any] = np.asarray(upright)
        gray = (np.clip(deep, 0, 65535).astype(np.uint32) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    return np.array(upright.convert("RGB"))
