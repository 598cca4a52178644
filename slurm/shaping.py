"""A limited link between the nodes of a test: each end of a veth pair is rate-limited by tc's token bucket filter.

These settings make the link behave like a cluster's network:

- segments of 32 KiB, because the kernel splits segments that are larger than the burst into packets;
- a burst of one millisecond of the link's rate, because a larger burst would not delay small messages at all;
- lossless queues of one second;
- TCP Reno without slow start after idle, because the reaction of other congestion controls to pauses is not under test.
"""

from __future__ import annotations

import re
import subprocess

_SEGMENT_BYTES = 32 << 10
_TCP = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0")


def limit(rate: str, device: str, namespace: str | None = None) -> None:
    """Limit what `device` sends to `rate`, in tc's notation; in a network namespace, or in that of this process."""
    where = ["-n", namespace] if namespace else []
    run("ip", *where, "link", "set", device, "gso_max_size", str(_SEGMENT_BYTES))
    bucket = ("burst", str(_burst_bytes(rate)), "latency", "1s")
    run("tc", *where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *bucket)


def settle_tcp(namespace: str) -> None:
    """Set TCP Reno without slow start after idle in a network namespace."""
    run("nsenter", f"--net=/run/netns/{namespace}", "sysctl", "-qw", *_TCP)


def run(*command: str) -> None:
    """Run a command; RuntimeError with its stderr if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _burst_bytes(rate: str) -> int:
    """Bytes per millisecond of the link, but at least 5/4 of a segment."""
    found = re.fullmatch(r"([\d.]+)([kmg])bit", rate)  # tc rejects invalid rates
    bits_per_s = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] if found else 0.0
    return max(_SEGMENT_BYTES * 5 // 4, int(bits_per_s / 8 * 1e-3))
