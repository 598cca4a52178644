"""A limited link between a test's nodes: what leaves a veth pair's ends is held to a rate, by tc's token bucket filter.

What makes such a link behave like a network for clusters: segments of 32 KiB, since the kernel would cut larger ones into packets
where a burst is smaller than they are; a burst of what the link carries in a millisecond, since a large one lets small messages
pass for nothing; queues of a second, which lose nothing; Reno without slow start after pauses, since what a probing congestion
control makes of pauses is not what is tested.
"""

from __future__ import annotations

import re
import subprocess

_SEGMENT_BYTES = 32 << 10
_TCP = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0")


def limit(rate: str, device: str, namespace: str | None = None) -> None:
    """Hold what leaves `device` to `rate`, as tc writes it; in a network namespace, or where this process is."""
    where = ["-n", namespace] if namespace else []
    run("ip", *where, "link", "set", device, "gso_max_size", str(_SEGMENT_BYTES))
    bucket = ("burst", str(_burst_bytes(rate)), "latency", "1s")
    run("tc", *where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *bucket)


def settle_tcp(namespace: str) -> None:
    """Have TCP in a network namespace keep its windows open."""
    run("nsenter", f"--net=/run/netns/{namespace}", "sysctl", "-qw", *_TCP)


def run(*command: str) -> None:
    """A command that has to succeed; RuntimeError with its words if it does not."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _burst_bytes(rate: str) -> int:
    """What the link carries in a millisecond, and what comes at once."""
    found = re.fullmatch(r"([\d.]+)([kmg])bit", rate)  # what is no rate tc will refuse
    bits_per_s = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] if found else 0.0
    return max(_SEGMENT_BYTES * 5 // 4, int(bits_per_s / 8 * 1e-3))
