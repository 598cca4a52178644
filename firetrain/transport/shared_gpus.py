"""Refuses ranks that share a GPU before NCCL starts, which would refuse them in its own words and only on some ranks."""

from __future__ import annotations

from torch.distributed import Store  # type: ignore[attr-defined]

from firetrain.cluster import Identity
from firetrain.errors import UserError

_SHARED = "firetrain/ranks that share a GPU"


def refuse_shared_gpus(store: Store, identity: Identity, uuid: str) -> None:
    """UserError on all ranks if two of them have the same GPU. Collective over all ranks of the run.

    Several ranks can see a GPU as their only one, for example if srun gives a node one GPU and several tasks. `uuid`: the
    identifier of this rank's GPU.
    """
    store.set(f"firetrain/gpu/{identity.rank}", uuid)
    if identity.is_first:
        ranks: dict[str, list[str]] = {}
        for rank in range(identity.world_size):
            ranks.setdefault(store.get(f"firetrain/gpu/{rank}").decode(), []).append(str(rank))
        store.set(_SHARED, next((", ".join(some) for some in ranks.values() if len(some) > 1), ""))
    if shared := store.get(_SHARED).decode():
        raise UserError(
            f"ranks {shared} have the same GPU, but NCCL needs one for each rank: give every task its own (srun "
            "--gpus-per-task=1, or --gpus-per-node with the number of ranks on a node), or set cluster.transport to gloo"
        )
