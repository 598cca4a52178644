"""The bytes of a compressed model by layer and by kind, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firetrain.coding.file import CompressedModel
from firetrain.coding.tensor import CompressedTensor, is_weight
from firetrain.records.figure import write_figure
from firetrain.report.plot import COLOURS
from firetrain.report.text_table import TextTable

# what bytes are of -> what users read; biases are among the numbers of the file
KINDS = {
    "codes": "codes", "gaps": "gaps", "values": "shared values", "biases": "biases", "numbers": "other numbers"
}  # fmt: skip
_COLOURS = dict(zip(KINDS, COLOURS, strict=False))


@dataclass(frozen=True)
class TensorBytes:
    """A tensor, and the bytes of each kind that are due to it.

    Streams are coded as a whole; a tensor's part of codes and gaps is in proportion to the information in its own.
    """

    tensor: CompressedTensor
    by_kind: dict[str, float]


@dataclass(frozen=True)
class LayerBytes:
    """A layer, called as in recipes, and its tensors: weights, biases and statistics."""

    name: str
    tensors: Sequence[TensorBytes]

    @property
    def by_kind(self) -> dict[str, float]:
        """The bytes of each kind that are due to the layer."""
        return _sums(self.tensors)

    @property
    def total(self) -> float:
        """All bytes of the layer."""
        return sum(self.by_kind.values())

    @property
    def weights(self) -> list[CompressedTensor]:
        """Its tensors that can be pruned, share values or be divided into factors; none of a layer such as batch norm."""
        return [one.tensor for one in self.tensors if is_weight(len(one.tensor.shape))]

    @property
    def size(self) -> int:
        """The number of elements of its tensors."""
        return sum(one.tensor.size for one in self.tensors)


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
        is_bias = one.name.rpartition(".")[2] == "bias" and not is_weight(len(one.shape))
        own |= {"values": 0.0, "biases": 0.0, "numbers": 0.0, "biases" if is_bias else one.stream: numbers}
        found.append(TensorBytes(one, own))
    return found


def bytes_by_layer(model: CompressedModel) -> list[LayerBytes]:
    """The bytes of every layer, in the order of its first tensor in the model."""
    tensors = groupby(bytes_by_tensor(model), lambda one: one.tensor.name.rpartition(".")[0] or one.tensor.name)
    return [LayerBytes(name, list(group)) for name, group in tensors]


def density(tensors: Sequence[CompressedTensor]) -> float:
    """The share of the tensors' elements that are kept."""
    return sum(one.density * one.size for one in tensors) / (sum(one.size for one in tensors) or 1)


def table(model: CompressedModel) -> TextTable:
    """A row for each layer, for the Huffman tables, the header and the file: how weights are kept, and bytes by kind.

    *of float32*: the bytes as a share of four for each number.
    """
    layers = bytes_by_layer(model)
    rows = []
    for layer in layers:
        weights = layer.weights
        rows.append([
            layer.name, _each("x".join(map(str, one.shape)) for one in weights), _each(one.kind for one in weights),
            f"{density(weights):.1%}" if weights else "-", _each(str(one.bits) for one in weights if one.bits),
            _each(str(one.gap_bits) for one in weights if one.gap_bits),
            *(f"{layer.by_kind[name]:,.0f}" for name in KINDS), f"{layer.total:,.0f}",
            f"{layer.total / (4 * layer.size or 1):.1%}",
        ])  # fmt: skip
    dense, whole = 4 * sum(layer.size for layer in layers), sum(model.sizes.values())
    weights = [one for layer in layers for one in layer.weights]
    # a stream that no tensor has takes a byte, too
    of_file = _sums([one for layer in layers for one in layer.tensors])
    of_file |= {kind: model.sizes[kind] for kind in ("codes", "gaps", "values")}
    rows += [[name, *["-"] * (5 + len(KINDS)), f"{model.sizes[name]:,}", "-"] for name in ("tables", "header")]
    rows.append([
        "file", "-", "-", f"{density(weights):.1%}" if weights else "-", "-", "-",
        *(f"{number:,.0f}" for number in of_file.values()), f"{whole:,}", f"{whole / (dense or 1):.1%}",
    ])  # fmt: skip
    headings = ("layer", "weights", "kept as", "density", "bits", "gap bits", *KINDS.values(), "bytes", "of float32")
    return TextTable(headings, rows, names=3)


def headline(model: CompressedModel) -> str:
    """The size of the file beside that of its float32 numbers."""
    elements, whole = sum(one.size for one in model.tensors), sum(model.sizes.values())
    ratio = 4 * elements / whole
    return f"{model.model['name']}, {elements:,} numbers: {whole:,} bytes, {ratio:.1f} times smaller than in float32"


def draw(model: CompressedModel, path: Path) -> None:
    """Draw the bytes of each layer by kind, and those of tables and header, as an SVG; CannotCreate if that fails."""
    from matplotlib.figure import Figure

    layers = bytes_by_layer(model)
    labels = [*(layer.name for layer in layers), "tables", "header"]
    figure = Figure(figsize=(8.0, 1.2 + 0.28 * len(labels)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(layers))
    for kind, words in KINDS.items():
        widths = np.array([layer.by_kind[kind] / 1000 for layer in layers])
        axes.barh(range(len(layers)), widths, left=left, color=_COLOURS[kind], label=words)
        left += widths
    axes.barh([len(layers), len(layers) + 1], [model.sizes[name] / 1000 for name in labels[-2:]], color="0.5")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="kB")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_figure(figure, path)


def _sums(tensors: Sequence[TensorBytes]) -> dict[str, float]:
    """The bytes of each kind that are due to some tensors."""
    return {kind: sum(one.by_kind[kind] for one in tensors) for kind in KINDS}


def _each(words: Iterable[str]) -> str:
    """Different words once each, or a dash if there are none."""
    return ", ".join(dict.fromkeys(words)) or "-"


def _information(symbols: NDArray[np.uint8]) -> float:
    """The entropy of the symbols times their number, in bits, and a bit for each at least."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(max(len(symbols), (counts * (np.log2(max(1, len(symbols))) - np.log2(counts))).sum()))
