"""The bytes of a compressed model by layer and by kind, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firetrain.coding.file import STREAMS, CompressedModel
from firetrain.coding.tensor import CompressedTensor, is_weight
from firetrain.records.figure import write_figure
from firetrain.report.plot import COLOURS
from firetrain.report.text_table import TextTable

_COLOURS = dict(zip(STREAMS, COLOURS, strict=False))


@dataclass(frozen=True)
class TensorBytes:
    """A tensor, and the bytes of each stream that are due to it.

    Streams are coded as a whole; a tensor's part of codes and gaps is in proportion to the information in its own.
    """

    tensor: CompressedTensor
    by_stream: dict[str, float]

    @property
    def total(self) -> float:
        """All bytes of the tensor."""
        return sum(self.by_stream.values())


def bytes_by_tensor(model: CompressedModel) -> list[TensorBytes]:
    """The bytes of every tensor. They sum to the file without its header and tables, and without a stream that no tensor has."""
    bits = {
        "codes": [_information(one.codes) for one in model.tensors],
        "gaps": [_information(one.gaps) for one in model.tensors],
    }
    width = np.dtype(model.dtype).itemsize
    found = []
    for number, one in enumerate(model.tensors):
        own = {name: model.sizes[name] * bits[name][number] / (sum(bits[name]) or 1.0) for name in bits}
        numbers = float(width * len(one.values))
        own |= {"values": 0.0, "numbers": 0.0, one.stream: numbers}
        found.append(TensorBytes(one, own))
    return found


def table(model: CompressedModel) -> TextTable:
    """A row for each tensor, for the Huffman tables, the header and the file: how it is kept, and bytes by stream.

    *of float32*: the bytes as a share of four for each number.
    """
    rows = []
    for one in bytes_by_tensor(model):
        tensor = one.tensor
        share = one.total / (4 * tensor.size or 1)
        rows.append([
            tensor.name, "x".join(map(str, tensor.shape)), tensor.kind,
            "-" if tensor.kind == "raw" else f"{tensor.density:.1%}", str(tensor.bits or "-"),
            str(tensor.gap_bits or "-"), *(f"{one.by_stream[name]:,.0f}" for name in STREAMS), f"{one.total:,.0f}",
            f"{share:.1%}",
        ])  # fmt: skip
    dense = 4 * sum(one.size for one in model.tensors)
    whole = sum(model.sizes.values())
    rows += [[name, *["-"] * 9, f"{model.sizes[name]:,}", "-"] for name in ("tables", "header")]
    rows.append(
        ["file", *["-"] * 5, *(f"{model.sizes[name]:,}" for name in STREAMS), f"{whole:,}", f"{whole / dense:.1%}"]
    )
    headings = ("tensor", "shape", "kind", "density", "bits", "gap bits", *STREAMS, "bytes", "of float32")
    return TextTable(headings, rows, names=3)


def headline(model: CompressedModel) -> str:
    """The size of the file beside that of its float32 numbers."""
    elements, whole = sum(one.size for one in model.tensors), sum(model.sizes.values())
    ratio = 4 * elements / whole
    return f"{model.model['name']}, {elements:,} numbers: {whole:,} bytes, {ratio:.1f} times smaller than in float32"


def draw(model: CompressedModel, path: Path) -> None:
    """Draw the bytes of each weight by stream as an SVG; CannotCreate if that fails."""
    from matplotlib.figure import Figure

    shown: Sequence[TensorBytes] = [one for one in bytes_by_tensor(model) if is_weight(len(one.tensor.shape))]
    figure = Figure(figsize=(8.0, 1.2 + 0.28 * len(shown)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(shown))
    for name in STREAMS:
        widths = np.array([one.by_stream[name] / 1000 for one in shown])
        axes.barh(range(len(shown)), widths, left=left, color=_COLOURS[name], label=name)
        left += widths
    axes.set_yticks(range(len(shown)), [one.tensor.name for one in shown])
    axes.invert_yaxis()
    axes.set(xlabel="kB")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_figure(figure, path)


def _information(symbols: NDArray[np.uint8]) -> float:
    """The entropy of the symbols times their number, in bits, and a bit for each at least."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(max(len(symbols), (counts * (np.log2(max(1, len(symbols))) - np.log2(counts))).sum()))
