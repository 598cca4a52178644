"""Traces a model by torch.fx, and tells the shapes of its values, and the numbers that its code takes from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from firetrain.errors import UserError
from firetrain.models.batch_norm import FeatureNorm
from firetrain.models.dropout import Dropout
from firetrain.models.local_response_norm import LocalResponseNorm
from firetrain.models.shapes import made_by_function, made_by_module

# in a trace; no other dimension of a value is likely to be the same
IMAGES = 23
# in a second one, which shows what depends on the number of images
_OTHER_IMAGES = 29


@dataclass(frozen=True)
class Number:
    """A number, or several, that a model's code takes from shapes (`x.size(0)`): for `IMAGES` images, and for others.

    >>> Number(torch.Size((23, 8)), torch.Size((29, 8))).of(4)
    (4, 8)
    """

    value: Any
    other: Any

    @property
    def follows_images(self) -> bool:
        """Whether it depends on the number of images."""
        return bool(self.value != self.other)

    def of(self, images: int) -> Any:
        """The number for so many images; UserError if it depends on them otherwise than by being their number."""
        if not self.follows_images:
            return self.value
        if isinstance(self.value, tuple):
            return tuple(Number(*both).of(images) for both in zip(self.value, self.other, strict=True))
        if (self.value, self.other) == (IMAGES, _OTHER_IMAGES):
            return images
        raise UserError(
            "the model computes with the number of images, of which each rank has a share: it cannot be placed"
        )


class Tracer(fx.Tracer):
    """Does not look into modules of torch, nor into those whose code depends on shapes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the module is one operation."""
        return isinstance(m, Dropout | FeatureNorm | LocalResponseNorm) or super().is_leaf_module(
            m, module_qualified_name
        )


def traced(model: nn.Module, image_size: int) -> fx.Graph:
    """The graph of the model's operations, with the shapes of their values for some images; UserError if there is none."""
    try:
        return _with_shapes(model, Tracer().trace(model), image_size)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"the model cannot be traced for images of {image_size} pixels, so that its layers cannot be placed: {reason}"
        ) from error


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a value for `IMAGES` images: [images, channels, ...]; UserError if it is no such tensor."""
    shape: tuple[int, ...] = node.meta.get("shape", ())
    if len(shape) < 2:
        raise UserError(f"{node.name} does not make one tensor of images and channels: such a model cannot be placed")
    if shape[0] != IMAGES:
        raise UserError(f"{node.name} does not keep the images as the first dimension: such a model cannot be placed")
    return shape


def number_of(node: fx.Node) -> Number | None:
    """What a node has if that is taken from a shape, and no tensor."""
    found: Number | None = node.meta.get("number")
    return found


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """The inputs of an operation that are no numbers."""
    return [one for one in node.all_input_nodes if number_of(one) is None]


def readers(value: fx.Node) -> list[fx.Node]:
    """The operations that read a tensor, and not only its shape."""
    return [user for user in value.users if number_of(user) is None]


def _with_shapes(model: nn.Module, graph: fx.Graph, image_size: int) -> fx.Graph:
    shapes = copy.deepcopy(fx.GraphModule(model, graph)).to("meta")
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)

    def run(images: int) -> _Shapes:
        found = _Shapes(shapes)
        found.run(torch.empty(images, 3, image_size, image_size, dtype=dtype, device="meta"))
        return found

    one = run(IMAGES)
    other = run(_OTHER_IMAGES) if one.numbers else one
    for node in graph.nodes:
        if node.name in one.shapes:
            node.meta["shape"] = one.shapes[node.name]
        if node.name in one.numbers:
            node.meta["number"] = Number(one.numbers[node.name], other.numbers[node.name])
    return graph


class _Shapes(fx.Interpreter):
    """Computes a graph on tensors without data, and keeps the shape of each; torch's own ShapeProp prints tracebacks."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.numbers: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node; UserError names what cannot be computed."""
        try:
            value = super().run_node(n)
        except Exception as error:
            name = getattr(n.target, "__name__", n.target)
            kind = f" ({type(self.fetch_attr(str(n.target))).__name__})" if n.op == "call_module" else ""
            raise UserError(f"{name}{kind}: {str(error).strip() or type(error).__name__}") from error
        if isinstance(value, Tensor):
            self.shapes[n.name] = tuple(value.shape)
        elif isinstance(value, int | float | torch.Size):
            self.numbers[n.name] = value
        return value

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of a layer."""
        alone = len(args) == 1 and isinstance(args[0], Tensor) and not kwargs
        made = made_by_module(self.fetch_attr(target), args[0]) if alone else None
        return super().call_module(target, args, kwargs) if made is None else made

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a function."""
        made = made_by_function(target, args, kwargs)
        return super().call_function(target, args, kwargs) if made is None else made

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a method of a tensor."""
        made = made_by_function(target, args, kwargs)
        return super().call_method(target, args, kwargs) if made is None else made
