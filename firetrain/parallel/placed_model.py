"""One rank's share of a model under a placement: its shards of the weights, and the passes through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from firetrain.models.dropout import DropoutCall, dropouts_of
from firetrain.models.graph import Graph, Unit
from firetrain.parallel.batch_norm import share_batch_norm
from firetrain.parallel.exchange import Exchanger, exchange
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement, Regions
from firetrain.strategy.region import Region
from firetrain.strategy.schedule import Pass, order
from firetrain.strategy.split import Block
from firetrain.transport.transport import Transport


@dataclass
class _Activations:
    """A forward pass of `count` images of all ranks: outputs of layers by name, and the regions that this rank has received."""

    images: Tensor
    count: int
    keys: Tensor | None
    made: dict[str, Tensor] = field(default_factory=dict)
    moved: dict[tuple[str, Regions], Tensor] = field(default_factory=dict)


class PlacedModel:
    """Cuts the weights of a traced model, in place, to the shards that this rank holds, and computes with them.

    A parameter of which the rank holds nothing is removed from its module. Layers of which the rank computes nothing are left
    out, but it still sends what other ranks need from it. The loss depends on these exchanges, so that autograd runs them
    backward in reverse order on every rank.

    `graph`: the model in training mode; its modules are used and changed.
    """

    def __init__(self, model: nn.Module, graph: Graph, placement: Placement, exchanger: Exchanger) -> None:
        self._graph, self.placement, self._exchanger = graph, placement, exchanger
        self.rank = exchanger.rank
        self.model = model
        for number, layer in enumerate(dropouts_of(model)):
            layer.layer = number
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.blocks = dict(self._cut())
        # a tensor that asks for a gradient, for ranks that have nothing in a layer: without one, autograd would leave them out
        self._anchor = torch.zeros((), device=exchanger.device, requires_grad=True)
        self._for_evaluation = graph.before(graph.outputs[0])
        self._tags = max(1, *(len(layer.sources) for layer in placement.layers))  # of one exchange, one for each source

    def outputs(self, images: Tensor, count: int, keys: Tensor | None) -> list[Tensor]:
        """The logits of each loss for this rank's share of a batch of `count` images; in evaluation mode of the first only.

        `images`: float [n, 3, size, size], the images that the first layers of this rank need (`first_region`). `keys`: the
        dropout keys of all `count` images.
        """
        training, through = self.model.training, _Activations(images, count, keys)
        found, loose = [], list[Tensor]()
        for number, layer in enumerate(self.placement.layers):
            if not training and layer.name not in self._for_evaluation and layer.name != self.first_loss.name:
                continue
            if self._computes(layer, count):
                x = self._input(layer, through, 2 * number)
                if layer.is_loss:
                    found.append(x)
                else:
                    made = self._compute(self._graph.units[layer.name], x, through, 2 * number + 1)
                    through.made[layer.name] = made
                    if not made.numel():  # nobody reads it, but the exchange of its input must run backward
                        loose.append(made)
            else:
                loose += self._sent(layer, through, 2 * number)
                if layer.is_loss:
                    found.append(self._anchor.new_zeros((0, 1), dtype=self._exchanger.dtype))
        if training:
            found[0] = found[0] + (self._anchor + sum(one.sum() for one in loose)) * 0
        return found

    def passes(self, sizes: Sequence[int]) -> Iterator[Pass]:
        """This rank's passes through micro-batches of `sizes` images, in the order in which they must be computed.

        A pass must be complete before the next one is asked for. Stages pass through the micro-batches in the order of the
        placement's schedule. Without stages, a micro-batch goes forward and backward before the next one, so that few activations
        are kept.
        """
        by_schedule = (self.placement.schedule, *self.placement.stage(self.rank))
        has_stages = self.placement.micro_batches > 1 and self.placement.stage(self.rank)[1] > 1
        passes = order(*(by_schedule if has_stages else ("1f1b", 0, 1)), len(sizes))
        kinds = [(one.direction, sizes[one.micro_batch]) for one in passes]
        for one, kind, following in zip(passes, kinds, [*kinds[1:], None], strict=True):
            with self._exchanger.passing(kind, following):
                yield one

    @property
    def first_loss(self) -> Layer:
        """The loss of the main classifier."""
        return next(layer for layer in self.placement.layers if layer.is_loss)

    def first_regions(self, count: int) -> Regions:
        """What each rank reads of a batch of `count` images, for the layers that need images."""
        (first,) = (layer for layer in self.placement.layers if not layer.sources)
        return self.placement.needs(first, count)

    def first_region(self, count: int) -> Region:
        """What this rank reads of a batch of `count` images."""
        return self.first_regions(count)[self.rank]

    def share_statistics(self, transport: Transport) -> None:
        """Average the running statistics of batch norm over the ranks that compute a layer. Collective."""
        splits, everybody = self.placement.splits, range(transport.size)
        # heads without weight in the loss are not among the layers
        share_batch_norm(self.model, transport, lambda name: splits[name].ranks if name in splits else everybody)

    def layer_of(self, name: str) -> Layer | None:
        """The layer of a parameter; None if no output depends on it, as with auxiliary heads of weight 0."""
        path = name.rpartition(".")[0]
        layers = self.placement.layers
        return next((layer for layer in layers if path == layer.name or path.startswith(f"{layer.name}.")), None)

    def sharers_of(self, name: str) -> tuple[int, ...]:
        """The ranks that hold the same shard of a parameter as this rank; all ranks if it is in no layer."""
        layer = self.layer_of(name)
        if layer is None:
            return tuple(range(self.placement.ranks))
        return self.placement.splits[layer.name].sharers(self.rank)

    def _input(self, layer: Layer, through: _Activations, tag: int) -> Tensor:
        """What this rank needs of the layer's input."""
        if not layer.sources:
            region = self.placement.needs(layer, through.count)[self.rank]
            return through.images[:, region.first_channel : region.end_channel]
        received = [self._moved(layer, number, through, tag) for number in range(len(layer.sources))]
        return torch.cat(received, 1) if len(received) > 1 else received[0]

    def _sent(self, layer: Layer, through: _Activations, tag: int) -> Iterator[Tensor]:
        """Send what other ranks need for a layer that this rank does not compute.

        Yields empty tensors, through which autograd runs the exchange backward.
        """
        for number, source in enumerate(layer.sources):
            held = self.placement.holds(self.placement.by_name[source], through.count)[self.rank]
            if held.size and (source, self.placement.wants(layer, number, through.count)) not in through.moved:
                yield self._moved(layer, number, through, tag)

    def _moved(self, layer: Layer, number: int, through: _Activations, tag: int) -> Tensor:
        """What this rank needs of the layer's source `number`, which travels once for all layers that need it in the same way."""
        source, wanted = layer.sources[number], self.placement.wants(layer, number, through.count)
        if (source, wanted) not in through.moved:
            have = self.placement.holds(self.placement.by_name[source], through.count)
            values = through.made[source] if source in through.made else self._nothing(source, have[self.rank])
            what = f"the output of {source} for {layer.name}"
            through.moved[source, wanted] = self._exchange(values, have, wanted, tag * self._tags + number, what)
        return through.moved[source, wanted]

    def _computes(self, layer: Layer, count: int) -> bool:
        """Whether this rank needs or has anything of a layer."""
        of_ranks = (
            self.placement.needs(layer, count),
            self.placement.makes(layer, count),
            self.placement.settles(layer, count),
        )
        return any(regions[self.rank].size for regions in of_ranks)

    def _nothing(self, name: str, region: Region) -> Tensor:
        """The output of a layer that this rank does not compute."""
        assert not region.size, f"rank {self.rank} has not computed its share of {name}"
        positions = self._graph.units[name].final
        return self._anchor.new_zeros((region.images, region.channels, *positions), dtype=self._exchanger.dtype)

    def _compute(self, unit: Unit, x: Tensor, through: _Activations, tag: int) -> Tensor:
        layer, count, keys = unit.layer, through.count, through.keys
        have, settled = self.placement.makes(layer, count), self.placement.settles(layer, count)
        region = have[self.rank]
        if unit.writes_input:  # which may be a view of the source's output, or be read by others
            x = x.clone()
        if layer.kind == "weights":
            y = self._weighted(unit, x, region) if region.size else self._empty(x, region, unit.made)
            if self.placement.splits[layer.name].inputs > 1:
                y = self._exchange(y, have, settled, tag * self._tags, f"the partial sums of {layer.name}")
            region = settled[self.rank]
        elif region.size:
            y = unit.module(x) if unit.module is not None else x
        else:
            y = x
        if not region.size:
            return self._empty(y, region.spread(layer.spread), unit.final)
        for operation in unit.operations:
            if isinstance(operation, DropoutCall):
                operation.layer.keys = None if keys is None else keys[region.first_image : region.end_image]
                operation.layer.first_channel = region.first_channel * (y.shape[1] // region.channels)
            y = operation(y)
        return y

    def _weighted(self, unit: Unit, x: Tensor, region: Region) -> Tensor:
        """A convolution or a product with this rank's shard of the weights."""
        module = cast("nn.Conv2d | nn.Linear", unit.module)
        weight, bias = module.weight, module.bias
        if weight is None or not weight.numel():
            return self._empty(x, region, unit.made)
        if isinstance(module, nn.Conv2d):
            return nn.functional.conv2d(x, weight, bias, module.stride, module.padding, module.dilation)
        return nn.functional.linear(x, weight, bias)

    def _exchange(self, values: Tensor, have: Regions, need: Regions, tag: int, what: str) -> Tensor:
        if have == need:
            return values
        if self.model.training and not values.requires_grad:
            values = values + self._anchor
        return exchange(values, self._exchanger, have, need, tag, what)

    def _empty(self, x: Tensor, region: Region, positions: Sequence[int]) -> Tensor:
        """Zeros for a region to which this rank contributes nothing; they depend on `x`, so that it gets a gradient."""
        zeros = x.new_zeros((region.images, region.channels, *positions))
        return zeros + (x.sum() + self._anchor) * 0 if self.model.training else zeros

    def _cut(self) -> Iterator[tuple[str, Block]]:
        """Replace each parameter by this rank's shard; yields (name of the parameter, its block)."""
        for unit in self._graph.units.values():
            if unit.module is None or not unit.layer.parameters:
                continue
            block = self.placement.splits[unit.layer.name].block(unit.layer, self.rank)
            if unit.layer.kind == "whole":
                if block is None:
                    for module in unit.module.modules():
                        for name, _ in list(module.named_parameters(recurse=False)):
                            module.register_parameter(name, None)
                continue
            module, prefix = cast("nn.Conv2d | nn.Linear", unit.module), f"{unit.path}."
            weight = bias = None
            if block is not None:
                weight = nn.Parameter(of_weight(module.weight.detach(), block).clone())
                if block.has_bias and module.bias is not None:
                    bias = nn.Parameter(of_bias(module.bias.detach(), block).clone())
            module.register_parameter("weight", weight if weight is not None and weight.numel() else None)
            module.register_parameter("bias", bias if bias is not None and bias.numel() else None)
            if block is not None:
                yield prefix + "weight", block
                yield prefix + "bias", block


def of_weight(weight: Tensor, block: Block) -> Tensor:
    """The shard of a weight [outputs, inputs, ...]."""
    return weight[block.first_output : block.end_output, block.first_input : block.end_input]


def of_bias(bias: Tensor, block: Block) -> Tensor:
    """The shard of a bias [outputs]."""
    return bias[block.first_output : block.end_output]
