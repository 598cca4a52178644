"""The files that a dataset's folder needs, by name, so that a wrong folder is refused before ranks start."""

from __future__ import annotations

from pathlib import Path

from firetrain.config.files import is_file, is_folder, why_unreadable

TEST_NAMES = ("val", "test", "validation")
PACKED = "packed.json"
# Tiny ImageNet's archive has this folder, which is looked into
TINY_IMAGENET = "tiny-imagenet-200"
# by dataset: names of which one is in the folder, for each thing that it needs
_NEEDED = {
    "folders": (("train",), TEST_NAMES),
    "dogs-vs-cats": (("train",),),
    "tiny-imagenet": (("train",), ("val",)),
    "packed": ((PACKED,),),
    "idx": (("train-images",), ("train-labels",), ("t10k-images",), ("t10k-labels",)),
}

# datasets that are files in the folder; the others are folders in it
_OF_FILES = ("idx", "packed")


def fault_of(name: str, root: Path) -> str:
    """Why the dataset `name` cannot be read from the folder `root`, as far as names show; empty if it can."""
    return why_unreadable(root) or _what_is_missing(name, root)


def _what_is_missing(name: str, root: Path) -> str:
    """What the dataset `name` needs and the folder `root` does not have, as text; empty if nothing is missing."""
    if name == "tiny-imagenet" and (root / TINY_IMAGENET).is_dir():
        root = root / TINY_IMAGENET
    is_one = is_file if name in _OF_FILES else is_folder
    found = sorted(path.name for path in root.iterdir() if is_one(path))
    # files of idx have several spellings of their endings
    missing = [
        " or ".join(names)
        for names in _NEEDED.get(name, ())
        if not any(one.startswith(names) if name == "idx" else one in names for one in found)
    ]
    if not missing:
        return ""
    return f"{name} needs {', '.join(missing)} in {root} (found: {', '.join(found[:8]) or 'nothing'})"
