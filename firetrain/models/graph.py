"""Traces a model: its layers as data for placements, and for each layer the operations that compute it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from firetrain.errors import UserError
from firetrain.models.dropout import Dropout, DropoutCall
from firetrain.models.operation import Operation, draws, is_channelwise, may_be_view, operation_of, writes
from firetrain.models.tracing import number_of, readers, shape_of, tensors_of, traced
from firetrain.strategy.layer import Kind, Layer

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Unit:
    """How a layer is computed: by `module`, if it has one, and then by `operations`, one after another.

    - `path`: name of the module in the model; its parameters have this prefix.
    - `writes_input`: whether an operation changes the layer's input in place, itself or a view of it.
    - `made`, `final`: positions of each channel after the module, and after the operations: [height, width] or nothing.
    """

    layer: Layer
    module: nn.Module | None
    path: str
    operations: tuple[Operation, ...]
    made: tuple[int, ...]
    final: tuple[int, ...]
    writes_input: bool = False


@dataclass(frozen=True)
class Graph:
    """A traced model. `outputs`: the layers that compute its outputs: the main classifier, then auxiliary ones."""

    units: dict[str, Unit]
    outputs: tuple[str, ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in the order in which they are computed; the last ones are the losses."""
        losses = []
        for number, name in enumerate(self.outputs):
            classes = self.units[name].layer.channels
            losses.append(Layer(f"loss{number or ''}", "whole", (name,), classes, classes, is_loss=True))
        return (*(unit.layer for unit in self.units.values()), *losses)

    def before(self, *names: str) -> set[str]:
        """These layers, and those that their outputs depend on."""
        found, left = set[str](), list(names)
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self.units[one].layer.sources
        return found


def trace(model: nn.Module, image_size: int) -> Graph:
    """The graph of a model in its current mode, for images of `image_size` pixels.

    UserError names an operation that cannot be traced, or that has several inputs other than a concatenation of channels, and
    weights or modules that a slice of a layer would treat otherwise: frozen, tied, parametrised, or with hooks.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> [(layer.name, layer.inputs, layer.outputs) for layer in trace(model, image_size=8).layers]
    [('0', 3, 8), ('3', 288, 10), ('loss', 10, 10)]
    """
    _refuse_unusual(model)
    return _Builder(model, traced(model, image_size)).build()


def refuse_other_evaluation(model: nn.Module, image_size: int) -> None:
    """UserError if a model evaluates by other operations than it trains by, whose layers are placed for both."""
    was_training, found = model.training, []
    try:
        for training in (True, False):
            output = next(iter(reversed(traced(model.train(training), image_size).nodes))).args[0]
            found.append(_operations_before(output[0] if isinstance(output, tuple) else output))
    finally:
        model.train(was_training)
    if found[0] != found[1]:
        different = next(iter([one for one in found[1] if one not in found[0]] or found[0]))
        raise UserError(
            f"the model computes otherwise in evaluation than in training ({different}): only data-parallel evaluates it so"
        )


def _operations_before(output: Any) -> list[str]:
    """The operations on which an output depends, in their order."""
    if not isinstance(output, fx.Node):
        return [f"{type(output).__name__} in place of a tensor"]
    needed = {output}
    for node in reversed(output.graph.nodes):
        if node in needed:
            needed |= set(node.all_input_nodes)
    return [
        f"{node.op} {getattr(node.target, '__name__', node.target)}" for node in output.graph.nodes if node in needed
    ]


def _refuse_unusual(model: nn.Module) -> None:
    """UserError if slices of layers, which are computed from their weights alone, would differ from the model's own."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            raise UserError(f"{name} is frozen (requires_grad is false): only data-parallel keeps weights as they are")
        if (other := names.setdefault(id(parameter), name)) != name:
            raise UserError(f"{name} is {other}: a layer whose weights are shared cannot be placed")
    for name, module in model.named_modules():
        what = f"{name or 'the model'} ({type(module).__name__})"
        if parametrize.is_parametrized(module):
            raise UserError(f"{what} has a parametrisation, as of a weight norm: its weights cannot be divided")
        if any(getattr(module, hooks) for hooks in _HOOKS):
            raise UserError(f"{what} has hooks, which a slice of a layer would not run: remove them to place the model")


class _Builder:
    """Groups the operations of a traced model into layers."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self._model, self._nodes = model, list(graph.nodes)
        self._units: dict[str, Unit] = {}
        # the layers whose outputs, along the channels, are the value of a node
        self._values: dict[fx.Node, tuple[str, ...]] = {}
        # the layers whose output may still be a view of their input
        self._views: set[str] = set()
        # how often each module of dropout has been called
        self._calls: Counter[Dropout] = Counter()

    def build(self) -> Graph:
        outputs: tuple[str, ...] = ()
        for node in self._nodes:
            if node.op == "placeholder":
                self._values[node] = ()
            elif node.op == "output":
                found = node.args[0]
                if not isinstance(found, tuple | fx.Node):
                    raise UserError(
                        "the model's output is neither a tensor nor a tuple of tensors: it cannot be placed"
                    )
                outputs = tuple(self._only(one) for one in (found if isinstance(found, tuple) else (found,)))
            elif node.target is torch.cat:
                self._concatenate(node)
            elif number_of(node) is None:
                self._operate(node)
        whole = Graph(self._units, outputs)
        # a model may compute what it does not use: nobody would send gradients to those who compute it
        used = whole.before(*outputs)
        return Graph({name: unit for name, unit in self._units.items() if name in used}, outputs)

    def _concatenate(self, node: fx.Node) -> None:
        given = dict(zip(("tensors", "dim"), node.args, strict=False)) | node.kwargs
        parts, along = cast("list[fx.Node]", given["tensors"]), cast(int, given.get("dim", 0))
        if along % len(shape_of(node)) != 1:
            raise UserError(f"{node.name} concatenates along dimension {along}: only channels (1) can be placed")
        if any(part.op == "placeholder" for part in parts):
            raise UserError(
                f"{node.name} concatenates the images with something else: only outputs of layers can be placed"
            )
        self._values[node] = tuple(name for part in parts for name in self._values[part])

    def _operate(self, node: fx.Node) -> None:
        given = list[fx.Node]()
        fx.node.map_arg((node.args, node.kwargs), lambda one: given.append(one) if number_of(one) is None else None)
        if len(given) != 1:
            raise UserError(f"{node.name} ({node.target}) has {len(given)} inputs: such a layer cannot be placed")
        (before,) = given
        sources, module = self._values[before], self._module(node)
        kind: Kind
        if draws(node, module):
            what = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
            raise UserError(
                f"{node.name}: torch's {what} draws other numbers on each rank; use {Dropout.__module__}.Dropout, or none"
            )
        if writes(node, module) and (reader := self._another_reader(before, node)):
            raise UserError(
                f"{node.name} changes {before.name} in place, which {reader.name} reads too: such a layer cannot be placed; use "
                "inplace=False"
            )
        if isinstance(module, nn.Linear) and len(shape_of(before)) != 2:
            raise UserError(
                f"{node.name}: a linear layer can be placed if its input is [images, features]: flatten it first"
            )
        if isinstance(module, nn.Conv2d) and (module.groups != 1 or module.padding_mode != "zeros"):
            kind = "whole"
        elif isinstance(module, nn.Conv2d | nn.Linear):
            kind = "weights"
        else:
            kind = "channels" if is_channelwise(node, module) else "whole"
        # others may read what a concatenation of one tensor is made of
        is_own = (
            len(sources) == 1
            and len(readers(before)) == 1
            and before.op != "placeholder"
            and before.target is not torch.cat
        )
        if kind == "channels" and is_own:
            self._append(sources[0], node, module)
            self._values[node] = sources
        else:
            self._values[node] = (self._begin(node, module, kind, sources, before),)

    def _begin(
        self, node: fx.Node, module: nn.Module | None, kind: Kind, sources: tuple[str, ...], before: fx.Node
    ) -> str:
        """A new layer that begins with this operation."""
        path = str(node.target) if module is not None else ""
        name = path or node.name
        if path and path in self._units:
            if any(True for _ in cast(nn.Module, module).parameters()):
                raise UserError(f"{path} is used twice: a layer whose weights are shared cannot be placed")
            name = node.name
        given, made = shape_of(before), shape_of(node)
        inputs, outputs = given[1], given[1] if kind == "channels" else made[1]
        has_weights, weights, biases = False, 0, 0
        if kind == "weights" and isinstance(module, nn.Conv2d | nn.Linear):
            has_weights, weights, biases = True, math.prod(module.weight.shape[2:]), int(module.bias is not None)
        elif kind == "whole" and module is not None:
            weights = sum(parameter.numel() for parameter in module.parameters())
        positions = math.prod(made[2:])
        layer = Layer(
            name, kind, sources, inputs, outputs, made[1] // outputs, positions, positions, weights, biases,
            inputs * outputs * weights * positions if has_weights else 0, is_linear=isinstance(module, nn.Linear),
        )  # fmt: skip
        first = () if has_weights or (kind == "whole" and module is not None) else (self._operation(node, module),)
        if may_be_view(node, module):
            self._views.add(name)
        self._units[name] = Unit(
            layer, None if first else module, path, first, made[2:], made[2:], writes(node, module)
        )
        return name

    def _append(self, name: str, node: fx.Node, module: nn.Module | None) -> None:
        """Add an operation to a layer that no other operation reads."""
        unit, made = self._units[name], shape_of(node)
        layer = replace(unit.layer, spread=made[1] // unit.layer.outputs, output_elements=math.prod(made[2:]))
        operations = (*unit.operations, self._operation(node, module))
        writes_input = unit.writes_input or (name in self._views and writes(node, module))
        if not may_be_view(node, module):
            self._views.discard(name)
        self._units[name] = replace(unit, layer=layer, operations=operations, final=made[2:], writes_input=writes_input)

    def _operation(self, node: fx.Node, module: nn.Module | None) -> Operation:
        """The operation of a node; of dropout the one of this call, whose mask is another one."""
        if not isinstance(module, Dropout):
            return operation_of(node, module)
        self._calls[module] += 1
        return DropoutCall(module, self._calls[module] - 1)

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self._model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _another_reader(self, value: fx.Node, reader: fx.Node) -> fx.Node | None:
        """Another operation that reads a value, or what the value is a view of."""
        if other := next((user for user in readers(value) if user is not reader), None):
            return other
        sources = tensors_of(value) if may_be_view(value, self._module(value)) else []
        return next(filter(None, (self._another_reader(source, value) for source in sources)), None)

    def _only(self, node: Any) -> str:
        names = self._values[node]
        if len(names) != 1:
            raise UserError("an output of the model is a concatenation: such a model cannot be placed")
        return names[0]
