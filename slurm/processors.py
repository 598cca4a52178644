"""A limited share of processors for each node of a test: a control group with a quota, so that nodes do not disturb each other.

Nodes on one machine share its processors. A node that computes while others wait would be faster than one that computes beside
them, which is not so on a cluster. With a quota it always has the same share. Needs root, and control groups of version 1 or 2.
"""

from __future__ import annotations

import math
from pathlib import Path

# short, so that a node is not stopped for long; of each period a node may compute `cpus` times as long
_PERIOD_US = 5_000
# Linux refuses smaller quotas
_LEAST_QUOTA_US = 1_000
_ROOT = Path("/sys/fs/cgroup")


class Share:
    """A control group whose processes compute for at most `cpus` processor seconds a second. Context manager."""

    def __init__(self, name: str, cpus: float) -> None:
        self._of_version_2 = (_ROOT / "cgroup.controllers").exists()
        self.path = (_ROOT if self._of_version_2 else _ROOT / "cpu") / name
        self._period_us = max(_PERIOD_US, math.ceil(_LEAST_QUOTA_US / cpus))
        self._quota_us = round(cpus * self._period_us)

    @staticmethod
    def exists() -> bool:
        """Whether this machine has control groups that can be limited."""
        return (_ROOT / "cgroup.controllers").exists() or (_ROOT / "cpu" / "cpu.cfs_quota_us").exists()

    def __enter__(self) -> Share:
        self.path.mkdir()
        if self._of_version_2:
            (self.path / "cpu.max").write_text(f"{self._quota_us} {self._period_us}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(self._period_us))
            (self.path / "cpu.cfs_quota_us").write_text(str(self._quota_us))
        return self

    def __exit__(self, *_: object) -> None:
        self.path.rmdir()

    @property
    def enter(self) -> list[str]:
        """The beginning of a command line that runs the rest in this group."""
        return ["sh", "-c", f'echo $$ >"{self.path}/cgroup.procs"; exec "$@"', "sh"]
