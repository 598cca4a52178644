"""Logistic regression under policies of a parameter server, beside the figures of another simulation, and the seconds it takes.

Eight workers compute 3,200 gradients, or make 400 updates if they wait for each other; one gradient in twenty takes five times
as long. Usage: python results/asynchronous/reference.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "tests" / "simulate")]

from test_reference_run import data, trained  # noqa: E402

# policy -> virtual seconds, idle share, mean and largest staleness, dropped gradients and loss of the other simulation
OTHER = {
    "sync": (1072.7, 0.50, 0.0, 0, 0, 0.0573),
    "backup:spare=1": (728.9, 0.29, 0.0, 0, 279, 0.0579),
    "backup:spare=2": (588.8, 0.16, 0.0, 0, 548, 0.0579),
    "ssp:staleness=0": (1072.7, 0.50, 3.50, 7, 0, 0.116),
    "ssp:staleness=3": (665.6, 0.19, 5.96, 35, 0, 0.133),
    "async": (536.3, 0.0, 6.98, 40, 0, 0.137),
    "async:rate=staleness": (536.3, 0.0, 6.98, 40, 0, 0.0575),
    "softsync:n=4,rate=staleness": (536.3, 0.0, 3.49, 20, 0, 0.0585),
}
HEADINGS = (
    "", "virtual seconds", "other", "idle", "other", "mean staleness", "other", "largest", "other", "dropped", "other", "loss",
    "other", "real seconds",
)  # fmt: skip


def main() -> None:
    """Print a Markdown table."""
    data()
    trained("softsync:n=4")  # the first one loads torch's kernels
    print(f"| {' | '.join(HEADINGS)} |\n|---|{'---:|' * (len(HEADINGS) - 1)}")
    for policy, (other_s, idle, staleness, largest, dropped, loss) in OTHER.items():
        began_s = time.perf_counter()
        one = trained(policy)
        took_s = time.perf_counter() - began_s
        cells = (
            f"{one.seconds:.0f}", f"{other_s:.0f}", f"{one.idle:.0%}", f"{idle:.0%}", f"{one.staleness:.2f}",
            f"{staleness:.2f}", f"{one.largest}", f"{largest}", f"{one.dropped}", f"{dropped}", f"{one.loss:.3f}",
            f"{loss:.3f}", f"{took_s:.2f}",
        )  # fmt: skip
        print(f"| `{policy}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
