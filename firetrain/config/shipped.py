"""Files that come with firetrain: configs, comparisons, profiles, sites."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped(package: str, folder: str, suffix: str = ".yaml") -> dict[str, Path]:
    """By name: those of an installed `package`, or, in a checkout that is not the installed one, those in its `folder`."""
    try:
        entries = [
            Path(str(entry)) for entry in files(package).iterdir()
        ]  # the text of a package itself may be no path
    except ModuleNotFoundError:
        entries = list((Path(__file__).parents[2] / folder).iterdir())
    return {path.stem: path for path in sorted(entries) if path.suffix == suffix}
