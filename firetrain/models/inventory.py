"""Lists the layers of a model with shapes, parameters, operations and bytes of activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class LayerCost:
    """A layer, for one image.

    - `name`, `kind`: its path in the model, and its class.
    - `shape`: shape of its output.
    - `parameters`: number of its own parameters.
    - `flops`: floating-point operations of its forward pass, two per multiply-add.
    - `activation_bytes`: bytes of its output.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    flops: int
    activation_bytes: int


def inventory(model: nn.Module, image_size: int) -> list[LayerCost]:
    """The layers without children, in the order in which they run on one image; counted by torch on the meta device."""
    model = model.to("meta").eval()
    layers: list[LayerCost] = []
    counter = FlopCounterMode(display=False)
    before: dict[str, int] = {}

    def enter(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            before[name] = counter.get_total_flops()

        return hook

    def leave(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            while isinstance(output, tuple | list):  # as of recurrent layers, which return their states, too
                output = output[0]
            size_bytes = output.numel() * output.element_size()
            flops = counter.get_total_flops() - before[name]
            own = sum(p.numel() for p in module.parameters(recurse=False))
            layers.append(LayerCost(name, type(module).__name__, tuple(output.shape[1:]), own, flops, size_bytes))

        return hook

    handles = [hook for name, module in _leaves(model) for hook in
               (module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave(name)))]  # fmt: skip
    with torch.no_grad(), counter:
        model(torch.empty(1, 3, image_size, image_size, device="meta"))
    for handle in handles:
        handle.remove()
    return layers


def shares(layers: list[LayerCost]) -> dict[str, dict[str, float]]:
    """The shares of convolutions and of fully connected layers in all parameters and in all FLOPs."""
    parameters = sum(layer.parameters for layer in layers) or 1
    flops = sum(layer.flops for layer in layers) or 1
    groups = {"convolution": ("Conv2d",), "fully connected": ("Linear",)}
    return {
        title: {
            "parameters": sum(layer.parameters for layer in layers if layer.kind in kinds) / parameters,
            "flops": sum(layer.flops for layer in layers if layer.kind in kinds) / flops,
        }
        for title, kinds in groups.items()
    }


def _leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if not any(module.children()))
