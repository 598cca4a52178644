"""Files that come with firetrain: configs, comparisons, profiles, sites."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path


@cache
def shipped(package: str, folder: str, suffix: str = ".yaml") -> dict[str, Path]:
    """Files by name, from the installed `package`, or from `folder` of a checkout that is not installed."""
    try:
        # per entry: for a namespace package `str(files(package))` is not a path
        entries = [Path(str(entry)) for entry in files(package).iterdir()]
    except ModuleNotFoundError:
        entries = list((Path(__file__).parents[2] / folder).iterdir())
    return {path.stem: path for path in sorted(entries) if path.suffix == suffix}
