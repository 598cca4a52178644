"""What ranks find out about each other through their store, before they are connected."""

from __future__ import annotations

from torch.distributed import Store  # type: ignore[attr-defined]

from firetrain.cluster import Identity
from firetrain.errors import UserError


def gather_texts(store: Store, identity: Identity, name: str, own: str) -> list[str]:
    """The text of each rank; `name` is different for each call. Collective over all ranks of the run.

    RuntimeError if a rank does not come within the store's time limit. Rank 0 leaves last, because the store may end with it.
    """
    store.set(f"firetrain/{name}/{identity.rank}", own)
    if not identity.is_first:
        found = store.get(f"firetrain/{name}").decode().split("\0")
    else:
        found = [store.get(f"firetrain/{name}/{rank}").decode() for rank in range(identity.world_size)]
        store.set(f"firetrain/{name}", "\0".join(found))
    if store.add(f"firetrain/{name}/written", 1) == identity.world_size:
        store.set(f"firetrain/{name}/all written", "yes")
    if identity.is_first:
        store.wait([f"firetrain/{name}/all written"])
    return found


def each_has_a_gpu(store: Store, identity: Identity, own: str, transport: str) -> bool:
    """Whether each rank has a GPU of its own; otherwise all compute on the CPU. Collective over all ranks of the run.

    Several ranks can see a GPU as their only one, for example if srun gives a node one GPU and several tasks. NCCL would refuse
    them in its own words, and only on some ranks. If `transport` is auto, rank 0 prints a note instead. UserError on all ranks
    if it is nccl, or if only some ranks have a GPU. `own`: the identifier of this rank's GPU, or cpu.
    """
    devices = gather_texts(store, identity, "device", own)
    without = [str(rank) for rank, device in enumerate(devices) if device == "cpu"]
    if len(without) == len(devices):
        return False
    if without:
        raise UserError(
            f"rank{'s' if len(without) > 1 else ''} {', '.join(without)} of {len(devices)} found no GPU, but the others did: "
            "exclude the nodes without one, or set cluster.transport to gloo"
        )
    ranks: dict[str, list[str]] = {}
    for rank, device in enumerate(devices):
        ranks.setdefault(device, []).append(str(rank))
    shared = next((some for some in ranks.values() if len(some) > 1), None)
    if shared is None:
        return True
    shared_text = f"ranks {', '.join(shared)} have the same GPU, but NCCL needs one for each rank"
    advice = "give every task its own (srun --gpus-per-task=1, or --gpus-per-node with the number of ranks on a node)"
    if transport == "nccl":
        raise UserError(f"{shared_text}: {advice}, or set cluster.transport to gloo")
    if identity.is_first:
        print(
            f"note: {shared_text}: all ranks compute on the CPU and communicate over Gloo; to change this, {advice}",
            flush=True,
        )
    return False
