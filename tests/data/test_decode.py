"""Any image file becomes RGB pixels, or an error with the reason."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from firetrain.data import decode as module
from firetrain.data.decode import BadImage, Scratch, decode, read_image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def gradient(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    across = np.linspace(0, 255, size[0])[None, :, None] * np.ones((size[1], 1, 3))
    down = np.linspace(0, 255, size[1])[:, None]
    across[:, :, 1] = down
    return Image.fromarray(across.astype(np.uint8), "RGB").convert(mode)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_every_odd_file_behaves_as_expected(archive: Callable[[str], Path]) -> None:
    root = archive("odd-jpegs")
    lines = [line for line in (root / "EXPECTED.tsv").read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(rows) == 86
    wrong = []
    for row in rows:
        path = root / row["file"]
        try:
            pixels = read_image(path)
        except BadImage as error:
            if row["pillow_strict"] == "ok":
                wrong.append(f"{path.name}: refused: {error}")
            assert str(error).startswith(f"{path}: ") and len(str(error)) > len(f"{path}: ")
            continue
        if row["pillow_strict"] != "ok":
            wrong.append(f"{path.name}: accepted")
        with Image.open(path) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        if pixels.shape != expected.shape or np.abs(pixels.astype(int) - expected).mean() > 2:
            wrong.append(f"{path.name}: other pixels than Pillow's, {pixels.shape} and {expected.shape}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_jpeg_modes_become_rgb(mode: str) -> None:
    pixels = decode(encoded(gradient(mode), "JPEG", quality=95))
    assert np.abs(pixels.astype(int) - np.asarray(gradient(mode).convert("RGB"))).mean() < 3


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1"])
def test_png_modes_become_rgb(mode: str) -> None:
    image = gradient(mode)
    assert np.array_equal(decode(encoded(image, "PNG")), np.asarray(image.convert("RGB")))


def test_sixteen_bits_keep_their_high_byte() -> None:
    deep = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    pixels = decode(encoded(Image.fromarray(deep), "PNG"))
    assert np.array_equal(pixels, np.repeat((deep >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(gradient(), "JPEG", exif=exif, quality=95)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert np.array_equal(decode(data), expected)
    assert (decode(data).shape[0] == 40) == (orientation >= 5)


def test_a_decompression_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = bytearray(encoded(gradient(), "JPEG"))
    frame = huge.index(b"\xff\xc0")
    huge[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"  # 65535 x 65535 pixels
    with pytest.raises(BadImage, match="decompression bomb"):
        decode(bytes(huge))
    # the fast path has the same limit: it passes larger images to Pillow
    plain, fast = encoded(gradient(), "JPEG"), []
    decode_jpeg = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: fast.append(1) or decode_jpeg(*a, **k))
    assert decode(plain).shape == (30, 40, 3) and len(fast) == 1
    monkeypatch.setattr(module, "LARGEST_PIXELS", 30 * 40 - 1)
    assert decode(plain).shape == (30, 40, 3) and len(fast) == 1


def test_scratch_memory_gives_the_same_pixels_and_belongs_to_one_thread() -> None:
    scratch, images = Scratch(), [encoded(gradient(size=size), "JPEG") for size in ((40, 30), (8, 8), (64, 50))]
    for data in images:
        assert np.array_equal(decode(data, scratch), decode(data))
    kept = decode(images[0], scratch)
    with ThreadPoolExecutor(1) as other:
        other.submit(decode, images[2], scratch).result()
    assert np.array_equal(kept, decode(images[0]))


def test_errors_name_the_file_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    for name, reason in (("empty.jpg", "empty file"), ("none.jpg", "No such file or directory")):
        with pytest.raises(BadImage) as caught:
            read_image(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: {reason}"
