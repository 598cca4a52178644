"""Files that come with firetrain: configs, comparisons, profiles, sites."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped(package: str, folder: str, suffix: str = ".yaml") -> dict[str, Path]:
    """By name: those of an installed `package`, or, in a checkout that is not the installed one, those in its `folder`."""
    try:
        place = Path(str(files(package)))
    except ModuleNotFoundError:
        place = Path(__file__).parents[2] / folder
    return {path.stem: path for path in sorted(place.glob(f"*{suffix}"))}
