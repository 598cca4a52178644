"""Figures are whole files, the same for the same numbers, and a wrong place or format is an error in words."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from firetrain.errors import CannotCreate
from firetrain.records.figure import write_figure


@pytest.fixture
def figure() -> Figure:
    made = Figure(figsize=(3, 2))
    axes = made.subplots()
    axes.plot([1, 2, 3], [2.0, 1.0, 4.0], label="ring")
    axes.legend()
    return made


def test_the_suffix_chooses_the_format(figure: Figure, tmp_path: Path) -> None:
    for suffix, beginning in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        (path,) = write_figure(figure, tmp_path / f"plot{suffix}")
        assert path.read_bytes().startswith(beginning)


def test_several_suffixes_make_several_files_even_if_the_name_has_a_dot(figure: Figure, tmp_path: Path) -> None:
    written = write_figure(figure, tmp_path / "v1.2", ".svg", ".png")
    assert [path.name for path in written] == ["v1.2.svg", "v1.2.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1.2.png", "v1.2.svg"]


def test_the_same_numbers_make_the_same_file(figure: Figure, tmp_path: Path) -> None:
    first, second = (write_figure(figure, tmp_path / name)[0].read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and b"dc:date" not in first
    assert ElementTree.fromstring(first).tag.endswith("svg")


@pytest.mark.parametrize("name", ["plot.xyz", "plot"])
def test_an_unknown_format_is_told_and_leaves_nothing(figure: Figure, tmp_path: Path, name: str) -> None:
    with pytest.raises(CannotCreate, match=f"cannot write .*{name}"):
        write_figure(figure, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_told(figure: Figure, tmp_path: Path) -> None:
    with pytest.raises(CannotCreate, match="nowhere/plot.svg: No such file or directory"):
        write_figure(figure, tmp_path / "nowhere" / "plot.svg")
