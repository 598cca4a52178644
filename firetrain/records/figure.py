"""Writes figures, each completely or not at all; the same figure gives the same SVG file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from firetrain.errors import CannotCreate
from firetrain.records.file import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figure(figure: Figure, path: Path, *suffixes: str) -> list[Path]:
    """Write a figure once for each suffix (.svg, .png, .pdf), or once by the suffix of `path`; returns the written files.

    CannotCreate if a file cannot be written, or if its suffix is not a known format.
    """
    import matplotlib

    paths = [path.with_name(path.name + suffix) for suffix in suffixes] or [path]
    for file in paths:
        content = io.BytesIO()
        kind = file.suffix.removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else None
        try:
            with matplotlib.rc_context({"svg.hashsalt": "firetrain"}):
                figure.savefig(content, format=kind, dpi=110, metadata=metadata)
        except ValueError as error:
            raise CannotCreate(f"cannot write {file}: {error}") from None
        write_whole(file, content.getvalue(), kind=CannotCreate)
    return paths
