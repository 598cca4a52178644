"""Decode image files to RGB pixels: fast for ordinary JPEGs, correct for everything else."""

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
    """An image cannot be read; the text gives its path and the reason."""


class Scratch(threading.local):
    """Memory that a thread reuses for decoding; allocating it for each image would cost a fifth of the decoding time."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def of(self, size_bytes: int) -> memoryview:
        """The first `size_bytes` of the calling thread's memory; the previous content is lost."""
        if len(self._buffer) < size_bytes:
            self._buffer = bytearray(size_bytes)
        return memoryview(self._buffer)[:size_bytes]


def read_image(path: Path, scratch: Scratch | None = None) -> Pixels:
    """The image in a file as uint8 [height, width, 3], upright; BadImage if it cannot be read. `scratch`: see `decode`."""
    try:
        return decode(path.read_bytes(), scratch)
    except BadImage as error:
        raise BadImage(f"{path}: {error}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        raise BadImage(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def decode(data: bytes, scratch: Scratch | None = None) -> Pixels:
    """Decode the content of an image file to uint8 [height, width, 3].

    Grayscale, palette, CMYK, 16-bit and transparent images become RGB, turned upright according to EXIF. BadImage for files
    that are truncated, damaged or not images, and for decompression bombs. If libjpeg-turbo reports a problem, Pillow decodes
    the file, because Pillow distinguishes harmless damage from lost pixels. With `scratch` the pixels may be in that memory;
    they are then valid until the thread decodes its next image.
    """
    if data[:2] == b"\xff\xd8" and data.find(b"Exif", 0, _EXIF_WITHIN) < 0:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours in ("YCbCr", "RGB", "Gray") and height * width <= LARGEST_PIXELS:
                target = scratch.of(height * width * 3) if scratch else None
                pixels: Pixels = simplejpeg.decode_jpeg(data, buffer=target)
                return pixels
        except ValueError:
            pass
    return _by_pillow(data)


def _by_pillow(data: bytes) -> Pixels:
    try:
        with warnings.catch_warnings():
            # warnings about a broken EXIF block, or about a large but allowed image, do not matter to the user
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return to_rgb(image)
    except UnidentifiedImageError:
        raise BadImage("empty file" if not data else "not an image of a known format") from None
    except Image.DecompressionBombError:
        raise BadImage(f"decompression bomb: more than {LARGEST_PIXELS} pixels") from None
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        raise BadImage(str(error) or type(error).__name__) from None


def to_rgb(image: Image.Image) -> Pixels:
    """The image upright, in uint8 [height, width, 3]."""
    image.load()
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        # 16-bit gray, which Pillow may store as 32-bit: keep the high byte, because convert() would clip
        deep: NDArray[Any] = np.asarray(upright)
        gray = (np.clip(deep, 0, 65535).astype(np.uint32) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    return np.array(upright.convert("RGB"))
