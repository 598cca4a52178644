"""Names of runs."""

from __future__ import annotations

import secrets
from datetime import datetime


def run_name(name: str, created: datetime) -> str:
    """The name of a run: a name, the date and eight random hexadecimal digits."""
    return f"{name}-{created.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
