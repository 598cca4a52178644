"""The whole state of a placed model, as one rank alone would have it: checkpoints do not depend on the placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from firetrain.parallel.placed_model import PlacedModel, of_bias, of_weight
from firetrain.strategy.split import Block
from firetrain.transport.transport import Transport


class WholeState:
    """Gathers the shards of parameters, and of the optimiser's state, on rank 0, and cuts a whole state into shards.

    - `whole`: makes the model, and the optimiser of its parameters, as a single rank has them.
    """

    def __init__(
        self,
        placed: PlacedModel,
        optimizer: torch.optim.Optimizer,
        transport: Transport,
        whole: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
    ) -> None:
        self._placed, self._optimizer, self._transport, self._whole = placed, optimizer, transport, whole

    def gather(self) -> dict[str, Any]:
        """The states of the whole model and of its optimiser, on rank 0; empty on other ranks. Collective."""
        model, optimizer = self._whole()
        own, keys = dict(self._placed.model.named_parameters()), self._keys()
        for name, parameter in model.named_parameters():
            self._assemble(name, own.get(name), parameter.data)
            for key in keys:
                held = self._optimizer.state.get(own[name], {}).get(key) if name in own else None
                found = torch.zeros_like(parameter)
                self._assemble(name, held, found)
                optimizer.state[parameter][key] = found
        for name, buffer in self._placed.model.named_buffers():
            model.get_buffer(name).copy_(buffer)
        settings: dict[bool, dict[str, Any]] = {}
        for some in self._transport.gather_objects(_settings(self._optimizer)):  # a rank may lack a group
            settings |= some
        _set(optimizer, settings)
        if self._transport.rank:
            return {}
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Cut a whole state into this rank's shards."""
        model, optimizer = self._whole()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for name, buffer in self._placed.model.named_buffers():
            buffer.copy_(model.get_buffer(name))
        _set(self._optimizer, _settings(optimizer))
        own = dict(self._placed.model.named_parameters())
        for name, parameter in model.named_parameters():
            if name not in own:
                continue
            block = self._placed.blocks.get(name)
            own[name].data.copy_(_of(name, parameter.data, block))
            self._optimizer.state[own[name]] = {
                key: _of(name, value, block).clone().to(own[name].device)
                for key, value in optimizer.state[parameter].items()
            }

    def _keys(self) -> list[str]:
        """The keys of the optimiser's state of a parameter, the same on all ranks."""
        own = sorted({key for state in self._optimizer.state.values() for key in state})
        return sorted({key for keys in self._transport.gather_objects(own) for key in keys})

    def _assemble(self, name: str, held: Tensor | None, whole: Tensor) -> None:
        """Collect the shards of a tensor in `whole` on rank 0, each from the first of its sharers."""
        device = self._transport.device
        for rank, block in self._holders(name):
            target = _of(name, whole, block)
            if not target.numel():
                continue
            with self._transport.waiting(f"the gathering of {name}"):
                if rank == self._transport.rank == 0:
                    target.copy_(held)  # type: ignore[arg-type]
                elif self._transport.rank == 0:
                    received = torch.empty(target.shape, dtype=target.dtype, device=device)
                    dist.recv(received, self._transport.number_of(rank), self._transport.group)
                    target.copy_(received)
                elif rank == self._transport.rank:
                    values = held if held is not None else torch.zeros(target.shape, dtype=target.dtype, device=device)
                    dist.send(values.detach().contiguous(), self._transport.number_of(0), self._transport.group)

    def _holders(self, name: str) -> Iterator[tuple[int, Block | None]]:
        """(rank, block) of each distinct shard of a parameter; all ranks hold a parameter that is in no layer."""
        layer = self._placed.layer_of(name)
        if layer is None:
            yield 0, None
            return
        split = self._placed.placement.splits[layer.name]
        for group in self._placed.placement.sharers(layer):
            block = split.block(layer, group[0]) if layer.kind == "weights" else None
            if not (name.endswith("bias") and block is not None and not block.has_bias):
                yield group[0], block


def _settings(optimizer: torch.optim.Optimizer) -> dict[bool, dict[str, Any]]:
    """The settings of an optimiser's groups, such as the number of steps, by whether the group is excluded from adaptation."""
    return {
        bool(group.get("excluded")): {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    }


def _set(optimizer: torch.optim.Optimizer, settings: dict[bool, dict[str, Any]]) -> None:
    for group in optimizer.param_groups:
        group.update(settings.get(bool(group.get("excluded")), {}))


def _of(name: str, whole: Tensor, block: Block | None) -> Tensor:
    """The shard of a parameter, or of a tensor of its shape."""
    if block is None:
        return whole
    return of_bias(whole, block) if name.endswith("bias") else of_weight(whole, block)
