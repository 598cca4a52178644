"""How the ranks of a run find its servers, also ranks that are started again later."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from firetrain.cluster import Identity
from firetrain.errors import LostPeer
from firetrain.transport.hub import Hub
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.messages import Address, Line
from firetrain.transport.tcp import own_address


@dataclass(frozen=True)
class Meeting:
    """Values that ranks publish for each other, in a store that all of them reach.

    - `host`: host of rank 0. `name`: prefix of the keys, because runs may share a store.
    """

    identity: Identity
    host: str
    store: Store
    timeout_s: float
    name: str = ""

    def tell(self, key: str, value: Any) -> None:
        """Publish a value, ready for JSON."""
        with lost_peers(self.identity.rank, f"the publication of {key}"):
            self.store.set(f"{self.name}/{key}", json.dumps(value))

    def ask(self, key: str) -> Any:
        """A published value. Waits until it is there; LostPeer if that takes too long."""
        with lost_peers(self.identity.rank, f"the rendezvous ({key})"):
            return json.loads(self.store.get(f"{self.name}/{key}"))

    def hear(self, wrong: str = "") -> str:
        """What is `wrong` on rank 0, empty if nothing is; rank 0 waits until all others have heard of it. All ranks call this."""
        rank = self.identity.rank
        if rank:
            if wrong := self.ask("wrong"):
                self.tell(f"heard-{rank}", value=True)
            return str(wrong)
        self.tell("wrong", wrong)
        with suppress(LostPeer):  # what is wrong here matters more
            for other in range(1, self.identity.world_size if wrong else 1):
                self.ask(f"heard-{other}")
        return wrong

    def open_hub(self) -> Hub:
        """A hub of this rank, whose address the others can ask for."""
        alone = self.identity.local_world_size == self.identity.world_size
        hub = Hub(own_address(self.host, alone), socket.gethostname(), self.timeout_s)
        self.tell(f"server-{self.identity.rank}", hub.address)
        return hub

    def line_to(self, server: int) -> Line:
        """A line to the hub of rank `server`. LostPeer if it cannot be reached."""
        address = Address(*self.ask(f"server-{server}"))
        with lost_peers(self.identity.rank, f"the connection to the parameter server on rank {server}"):
            return Line(self.identity.rank, address, self.timeout_s)
