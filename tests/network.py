"""A network for tests: nodes are network namespaces on a bridge, and every link is limited in both directions.

Needs root and iproute2.

As a command, it runs another command as ranks on such a network, for measurements:

    python tests/network.py --nodes 4 --ranks-per-node 2 --rate 1gbit firetrain bench allreduce --sizes 4KiB:64MiB
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "slurm"))

from processors import Share
from shaping import limit, run, settle_tcp

_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


def missing() -> str | None:
    """The reason why such a network cannot be set up here; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "tc", "sysctl") if shutil.which(name) is None]
    return f"no {' and no '.join(absent)} (Debian: iproute2, procps)" if absent else None


class Network:
    """`nodes` namespaces (10.77.N.1 and on), each linked at `rate` (in tc's notation) to a bridge in a separate namespace.

    The same limit (slurm/shaping.py) applies to bytes that leave a node and to bytes that enter it; otherwise incast would have
    no cost. Nothing is visible outside the namespaces. `cpus`: the processors of each node; default: not limited. `slow`: nodes
    that have only a part of these, and the factors.
    """

    def __init__(
        self, nodes: int, rate: str, cpus: float | None = None, slow: Mapping[int, float] | None = None
    ) -> None:
        self.nodes, self.rate, self._cpus, self._slow = nodes, rate, cpus, slow or {}
        self._prefix = f"firetrain-test-{os.getpid()}-{next(_numbers)}"
        self.names = [f"{self._prefix}-{node}" for node in range(nodes)]

    def __enter__(self) -> Network:
        """Set up the network; if that fails, remove what has been set up."""
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the namespaces, and thereby their links."""
        for name in (*self.names, f"{self._prefix}-switch"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def address(self, node: int) -> str:
        """The IP address of a node."""
        return f"10.77.0.{node + 1}"

    def enter(self, node: int) -> None:
        """Move the calling process (one thread, no sockets yet) to a node."""
        with Path(f"/run/netns/{self.names[node]}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {self.names[node]}")

    def _build(self) -> None:
        switch = f"{self._prefix}-switch"
        for name in (switch, *self.names):
            run("ip", "netns", "add", name)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for node, name in enumerate(self.names):
            run(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                f"port{node}",
                "netns",
                switch,
            )
            run("ip", "-n", switch, "link", "set", f"port{node}", "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            settle_tcp(name)
            for interface in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", interface, "up")
            if self.rate != "none":
                limit(self.rate, "eth0", name)
                limit(self.rate, f"port{node}", switch)

    def run(self, command: Sequence[str], ranks_per_node: int) -> int:
        """Run the command as one process per rank, with torchrun's variables; returns the highest exit code."""
        size = self.nodes * ranks_per_node
        ranks = []
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            shares = [stack.enter_context(one) for one in self._shares()]
            for rank in range(size):
                node, local = divmod(rank, ranks_per_node)
                environment = os.environ | {
                    "FIRETRAIN_RANK": str(rank),
                    "FIRETRAIN_WORLD_SIZE": str(size),
                    "FIRETRAIN_LOCAL_RANK": str(local),
                    "FIRETRAIN_LOCAL_WORLD_SIZE": str(ranks_per_node),
                    "FIRETRAIN_NODE": str(node),
                    "FIRETRAIN_RENDEZVOUS": str(Path(folder) / "rendezvous"),
                    "FIRETRAIN_RENDEZVOUS_HOST": self.address(0),
                    "GLOO_SOCKET_IFNAME": "eth0",
                    "OMP_NUM_THREADS": "1",
                }
                enter = ["nsenter", f"--net=/run/netns/{self.names[node]}"]
                enter += shares[node].enter if shares else []
                ranks.append(subprocess.Popen([*enter, *command], env=environment))
            try:
                return max(abs(process.wait()) for process in ranks)
            finally:
                for process in ranks:
                    process.kill()
                    process.wait()

    def _shares(self) -> list[Share]:
        """What each node may use of the processors; none if that is not limited."""
        if not self._cpus:
            return []
        return [Share(name, self._cpus / self._slow.get(node, 1.0)) for node, name in enumerate(self.names)]

    def mpirun(self, command: Sequence[str], ranks_per_node: int) -> int:
        """Run the command under Open MPI's mpirun; a script instead of ssh starts its daemons on the nodes."""
        with tempfile.TemporaryDirectory() as folder:
            agent = Path(folder) / "agent"
            names = " ".join(self.names)
            agent.write_text(
                "#!/bin/bash\n"
                f"names=({names})\n"
                "node=$(( ${1##*.} - 1 )); shift\n"
                'exec nsenter --net="/run/netns/${names[$node]}" unshare --uts sh -c "hostname fire$node; $*"\n'
            )
            agent.chmod(0o755)
            hosts = ",".join(f"{self.address(node)}:{ranks_per_node}" for node in range(self.nodes))
            options = [
                "--allow-run-as-root",
                "--mca",
                "plm_rsh_agent",
                str(agent),
                "--host",
                hosts,
                "--bind-to",
                "none",
            ]
            options += ["--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0"]
            options += ["--mca", "btl", "self,vader,tcp", "--mca", "mpi_yield_when_idle", "1"]
            options += ["-x", "PYTHONPATH", "-x", "PATH", "-np", str(self.nodes * ranks_per_node)]
            enter = ["nsenter", f"--net=/run/netns/{self.names[0]}", "unshare", "--uts", "sh", "-c"]
            script = 'hostname fire0; exec "$@"'
            return subprocess.run([*enter, script, "sh", "mpirun", *options, *command]).returncode


def main() -> int:
    """Run a command as ranks on a network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc writes it; none: not limited")
    parser.add_argument("--cpus", type=float, help="processors of each node, as a fraction; default: not limited")
    parser.add_argument("--slow", metavar="NODE:FACTOR", help="a node with only a part of these processors")
    parser.add_argument("--mpirun", action="store_true", help="start the ranks by Open MPI's mpirun")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if reason := missing():
        parser.error(reason)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if options.slow and not options.cpus:
        parser.error("--slow: only with --cpus")
    node, _, factor = (options.slow or "").partition(":")
    slow = {int(node): float(factor)} if node else {}
    with Network(options.nodes, options.rate, options.cpus, slow) as network:
        start = network.mpirun if options.mpirun else network.run
        return start(options.command, options.ranks_per_node)


if __name__ == "__main__":
    sys.exit(main())
