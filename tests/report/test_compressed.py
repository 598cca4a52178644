"""The bytes of a compressed model are all accounted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firetrain.coding.file import STREAMS, CompressedModel, read, write
from firetrain.coding.tensor import CompressedTensor, raw, shared, sparse
from firetrain.compression.pruning import pruned
from firetrain.report.compressed import bytes_by_tensor, draw, headline, table


def weights(shape: tuple[int, ...], density: float) -> np.ndarray:
    return pruned(np.random.default_rng(1).standard_normal(shape).astype(np.float32), density)


def tensors() -> list[CompressedTensor]:
    return [
        shared("fc1.weight", weights((100, 200), 0.1), 5, 5), raw("fc1.bias", weights((100,), 1.0)),
        raw("norm.weight", weights((100,), 1.0)), raw("norm.running_mean", weights((100,), 1.0)),
        shared("fc2.weight", weights((50, 100), 0.5), 3, 4), sparse("fc3.weight", weights((10, 50), 0.2), 4),
    ]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> CompressedModel:
    write(CompressedModel({"name": "mine"}, {"name": "digits"}, 10, tensors()), tmp_path / "m.fire")
    return read(tmp_path / "m.fire")


def test_the_parts_of_all_tensors_are_those_of_the_streams(model: CompressedModel, tmp_path: Path) -> None:
    found = bytes_by_tensor(model)
    for name in STREAMS:
        of_stream = ("numbers", "biases") if name == "numbers" else (name,)
        due = sum(one.by_kind[kind] for one in found for kind in of_stream)
        assert due == pytest.approx(model.sizes[name], abs=1e-6)
    others = model.sizes["header"] + model.sizes["tables"]
    assert sum(sum(one.by_kind.values()) for one in found) + others == (tmp_path / "m.fire").stat().st_size
    parts = {one.tensor.name: one.by_kind for one in found}
    assert parts["fc1.bias"] == {"codes": 0, "gaps": 0, "values": 0, "biases": 400, "numbers": 0}
    assert 0 < parts["fc1.weight"]["values"] == 4 * len(model.tensors[0].values) <= 4 * 31
    assert 0 < parts["fc2.weight"]["values"] == 4 * len(model.tensors[4].values) <= 4 * 7
    assert parts["fc3.weight"]["numbers"] == 4 * len(model.tensors[5].values) and parts["fc3.weight"]["gaps"] > 0
    bits = []
    for tensor in (model.tensors[0], model.tensors[4]):
        _, counts = np.unique(tensor.codes, return_counts=True)
        bits.append(-(counts * np.log2(counts / counts.sum())).sum())
    assert parts["fc1.weight"]["codes"] / parts["fc2.weight"]["codes"] == pytest.approx(bits[0] / bits[1], rel=1e-6)


def test_the_table_has_a_row_for_each_layer_and_ends_with_the_file(model: CompressedModel, tmp_path: Path) -> None:
    shown = table(model)
    assert [row[0] for row in shown.rows] == ["fc1", "norm", "fc2", "fc3", "tables", "header", "file"]
    by_layer = {row[0]: dict(zip(shown.headings, row, strict=True)) for row in shown.rows}
    fc1, norm, file = by_layer["fc1"], by_layer["norm"], by_layer["file"]
    assert (fc1["weights"], fc1["kept as"], fc1["density"]) == ("100x200", "shared", "10.0%")
    assert file["codes"] == f"{model.sizes['codes']:,}" and file["gaps"] == f"{model.sizes['gaps']:,}"
    assert (fc1["bits"], fc1["gap bits"], fc1["biases"]) == ("5", "5", "400")
    assert (norm["weights"], norm["kept as"], norm["density"], norm["bits"]) == ("-", "-", "-", "-")
    assert (norm["bytes"], norm["of float32"]) == ("800", "100.0%")
    assert by_layer["fc2"]["density"] == "50.0%" and by_layer["fc3"]["kept as"] == "sparse"
    size_bytes = (tmp_path / "m.fire").stat().st_size
    assert file["bytes"] == f"{size_bytes:,}"
    assert file["density"] == f"{(0.1 * 20000 + 0.5 * 5000 + 0.2 * 500) / 25500:.1%}", "of all weights, without biases"
    elements = 100 * 200 + 100 + 2 * 100 + 50 * 100 + 10 * 50
    assert headline(model).startswith(f"mine, {elements:,} numbers: {size_bytes:,} bytes, ")
    assert f"{4 * elements / size_bytes:.1f} times smaller than in float32" in headline(model)


def test_the_drawing_names_every_layer_and_kind(model: CompressedModel, tmp_path: Path) -> None:
    draw(model, tmp_path / "bytes.svg")
    text = (tmp_path / "bytes.svg").read_text()
    for name in ("fc1", "norm", "fc2", "fc3", "codes", "gaps", "shared values", "other numbers", "tables", "header"):
        assert f"<!-- {name} -->" in text
