"""What frequent operations make, without data; torch loads its compiler to work it out, which takes a second of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.models.batch_norm import FeatureNorm
from firetrain.models.dropout import Dropout
from firetrain.models.local_response_norm import LocalResponseNorm

Shape = tuple[int, ...]

_SAME_MODULES = (
    nn.ReLU, nn.Identity, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Hardtanh, Dropout, LocalResponseNorm,
)  # fmt: skip
# functions, and names of methods
_SAME = frozenset((torch.relu, torch.sigmoid, torch.tanh, nn.functional.relu, "relu", "sigmoid", "tanh"))
_ADAPTIVE = (nn.functional.adaptive_avg_pool2d, nn.functional.adaptive_max_pool2d)


def made_by_module(module: nn.Module, x: Tensor) -> Tensor | None:
    """The output of a module, on the meta device; None leaves it to torch, also if torch would refuse the input."""
    return _like(x, _shape_after_module(module, x)) if x.is_floating_point() else None


def made_by_function(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a function, or of a method by its name, on the meta device; None leaves it to torch."""
    if target is torch.cat:
        return _concatenated(*args, **kwargs)
    if not args or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
        return None
    x, others = args[0], args[1:]
    # torch's functional poolings always name it when they are traced
    given = {name: value for name, value in kwargs.items() if (name, value) != ("return_indices", False)}
    shape = None
    if target in _SAME:
        shape = tuple(x.shape)
    elif target is nn.functional.max_pool2d:
        shape = _max_pooled(tuple(x.shape), *others, **given)
    elif target in _ADAPTIVE and len(others) == 1 and not given:
        shape = _adaptive(tuple(x.shape), others[0])
    elif target == "mean" and len(others) == 1:
        shape = _mean(tuple(x.shape), others[0], **given)
    return _like(x, shape)


def _like(x: Tensor, shape: Shape | None) -> Tensor | None:
    return None if shape is None else torch.empty(shape, dtype=x.dtype, device="meta")


def _shape_after_module(module: nn.Module, x: Tensor) -> Shape | None:
    kind, shape = type(module), tuple(x.shape)
    if kind in _SAME_MODULES:
        return shape
    if isinstance(module, nn.BatchNorm2d | FeatureNorm):
        dimensions = 2 if isinstance(module, FeatureNorm) else 4
        return shape if len(shape) == dimensions and shape[1] == module.num_features else None
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        fits = shape[-1] == module.in_features and x.dtype == module.weight.dtype
        return (*shape[:-1], module.out_features) if fits else None
    if isinstance(module, nn.Conv2d) and kind is nn.Conv2d and not isinstance(module.padding, str):
        fits = len(shape) == 4 and shape[1] == module.in_channels and x.dtype == module.weight.dtype
        found = _windows(shape, module.kernel_size, module.stride, module.padding, module.dilation) if fits else None
        return (shape[0], module.out_channels, *found[2:]) if found else None
    if isinstance(module, nn.MaxPool2d) and not module.return_indices:
        sizes = module.kernel_size, module.stride, module.padding, module.dilation
        return _windows(shape, *sizes, ceil=module.ceil_mode)
    if isinstance(module, nn.AvgPool2d):
        return _windows(shape, module.kernel_size, module.stride, module.padding, ceil=module.ceil_mode)
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return _adaptive(shape, module.output_size)
    return None


def _concatenated(tensors: Sequence[Tensor] = (), dim: int = 0, **others: Any) -> Tensor | None:
    shapes = [tuple(one.shape) for one in tensors]
    alike = {(one.dtype, one.dim()) for one in tensors}
    if others or len(alike) != 1 or not -len(shapes[0]) <= dim < len(shapes[0]):
        return None
    at = dim % len(shapes[0])
    if len({(*shape[:at], *shape[at + 1 :]) for shape in shapes}) > 1:
        return None
    return _like(tensors[0], (*shapes[0][:at], sum(shape[at] for shape in shapes), *shapes[0][at + 1 :]))


def _max_pooled(
    shape: Shape, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    *others: Any, **named: Any,
) -> Shape | None:  # fmt: skip
    if any(others) or named:
        return None
    return _windows(shape, kernel_size, kernel_size if stride is None else stride, padding, dilation, ceil=ceil_mode)


def _adaptive(shape: Shape, size: Any) -> Shape | None:
    wanted = _pair(size)
    if len(shape) != 4 or wanted is None:
        return None
    places = [given if one is None else one for one, given in zip(wanted, shape[2:], strict=True)]
    return (*shape[:2], *places) if min(places) > 0 else None


def _mean(shape: Shape, dim: Any, *, keepdim: bool = False, **others: Any) -> Shape | None:
    along = dim if isinstance(dim, Sequence) else (dim,)
    if others or not along or not all(isinstance(one, int) and -len(shape) <= one < len(shape) for one in along):
        return None
    gone = {one % len(shape) for one in along}
    sizes = [1 if number in gone else size for number, size in enumerate(shape)]
    return tuple(size for number, size in enumerate(sizes) if keepdim or number not in gone)


def _windows(
    shape: Shape, kernel_size: Any, stride: Any, padding: Any = 0, dilation: Any = 1, *, ceil: bool | None = None
) -> Shape | None:
    """The shape after windows over images.

    `ceil`: None for convolutions; for poolings, whether there are also windows that begin inside of the image and end outside.
    """
    kernels, steps, pads, apart = map(_pair, (kernel_size, stride, padding, dilation))
    if len(shape) != 4 or kernels is None or steps is None or pads is None or apart is None:
        return None
    if min(*kernels, *steps, *apart) < 1 or min(pads) < 0:
        return None
    places = []
    for size, kernel, step, pad, distance in zip(shape[2:], kernels, steps, pads, apart, strict=True):
        if ceil is not None and 2 * pad > kernel:
            return None
        room = size + 2 * pad - distance * (kernel - 1) - 1
        count = (-(-room // step) if ceil else room // step) + 1
        places.append(count - 1 if ceil and (count - 1) * step >= size + pad else count)
    return (*shape[:2], *places) if min(places) > 0 else None


def _pair(value: Any) -> tuple[Any, Any] | None:
    """One number for height and width, or two; None if it is neither."""
    if not isinstance(value, Sequence):
        return value, value
    return (value[0], value[1]) if len(value) == 2 else None
