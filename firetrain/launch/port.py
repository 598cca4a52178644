"""Find a free port of this host; `python -m firetrain.launch.port FIRST LAST` prints one."""

from __future__ import annotations

import random
import socket
import sys


def free_port(first: int, last: int) -> int | None:
    """A port from `first` to `last` that can be bound now, chosen at random; None if all are taken."""
    for port in random.sample(range(first, last + 1), last + 1 - first):
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
            return port
    return None


if __name__ == "__main__":
    found = free_port(int(sys.argv[1]), int(sys.argv[2]))
    if found is None:
        sys.exit(f"firetrain: no free port from {sys.argv[1]} to {sys.argv[2]} on {socket.gethostname()}")
    print(found)
