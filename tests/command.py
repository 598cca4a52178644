"""The command as a user runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Command = Callable[..., "subprocess.CompletedProcess[str]"]
