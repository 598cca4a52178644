"""What single operations of a traced model do: how outputs depend on inputs, draws, and changes in place."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from firetrain.errors import UserError
from firetrain.models.dropout import RANDOM_MODULES, Dropout
from firetrain.models.tracing import number_of, tensors_of

# operations that compute each output channel from the input channel of the same number
_CHANNELWISE_MODULES = (
    nn.ReLU, nn.Identity, nn.Flatten, Dropout, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Hardtanh,
)  # fmt: skip
_CHANNELWISE_FUNCTIONS = frozenset((torch.relu, torch.flatten, torch.sigmoid, torch.tanh, nn.functional.relu))
# those that are so on [images, channels, height, width]; without images, torch takes the first dimension for channels
_POOLING_MODULES = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_POOLING_FUNCTIONS = frozenset(
    (
        nn.functional.max_pool2d, nn.functional.avg_pool2d, nn.functional.adaptive_avg_pool2d,
        nn.functional.adaptive_max_pool2d,
    )
)  # fmt: skip
# as RANDOM_MODULES
_RANDOM_FUNCTIONS = frozenset(
    (
        torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout, torch.rrelu, torch.bernoulli,
        torch.rand_like, torch.randn_like, torch.randint_like, torch.normal, torch.poisson, torch.multinomial,
        nn.functional.dropout, nn.functional.dropout1d, nn.functional.dropout2d,
        nn.functional.dropout3d, nn.functional.alpha_dropout, nn.functional.feature_alpha_dropout, nn.functional.rrelu,
        nn.functional.gumbel_softmax, nn.functional.fractional_max_pool2d, nn.functional.fractional_max_pool3d,
        nn.functional.multi_head_attention_forward, torch.dropout_, torch.alpha_dropout_, torch.rrelu_,
    )
)  # fmt: skip
_RANDOM_METHODS = frozenset(
    (
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "normal_",
        "random_",
        "uniform_",
    )
)
_CHANNELWISE_METHODS = frozenset(("relu", "flatten", "sigmoid", "tanh", "contiguous"))
# modules, and names of functions and methods, whose output may be a view of their input
_VIEW_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, Dropout)
_VIEWS = frozenset(
    (
        "adjoint", "as_strided", "atleast_2d", "bfloat16", "broadcast_to", "chunk", "contiguous", "detach", "diagonal",
        "double", "expand", "expand_as", "flatten", "float", "getattr", "getitem", "half", "moveaxis", "movedim", "narrow",
        "permute", "positive", "ravel", "reshape", "reshape_as", "select", "split", "squeeze", "swapaxes", "swapdims", "t",
        "tensor_split", "to", "transpose", "type", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view",
        "view_as",
    )
)  # fmt: skip

# a function of an operation's only tensor
Operation = Callable[[Tensor], Tensor]


def is_channelwise(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether each output channel needs the input channel of the same number only."""
    if _is_one_of(node, module, _POOLING_MODULES, _POOLING_FUNCTIONS, frozenset()):
        return len(tensors_of(node)[0].meta.get("shape", ())) == 4
    return flattens(node) or _is_one_of(
        node, module, _CHANNELWISE_MODULES, _CHANNELWISE_FUNCTIONS, _CHANNELWISE_METHODS
    )


def flattens(node: fx.Node) -> bool:
    """Whether a view (`x.view(x.size(0), -1)`) puts all positions of an image in one row, channel by channel."""
    if not _is_view(node):
        return False
    shape = tensors_of(node)[0].meta.get("shape", ())
    return bool(shape and node.meta.get("shape") == (shape[0], math.prod(shape[1:])))


def _is_view(node: fx.Node) -> bool:
    return (node.op == "call_method" and node.target in ("view", "reshape")) or node.target is torch.reshape


def draws(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation draws random numbers, other ones on each rank."""
    if module is not None and not isinstance(module, Dropout):
        return isinstance(module, RANDOM_MODULES) or any(map(_has_dropout, module.modules()))
    attends = node.target is nn.functional.scaled_dot_product_attention and bool(_arguments(node).get("dropout_p"))
    return attends or _is_one_of(node, module, RANDOM_MODULES, _RANDOM_FUNCTIONS, _RANDOM_METHODS)


def _has_dropout(module: nn.Module) -> bool:
    """Whether a module inside of another, or one of torch's with dropout of its own (an LSTM, an attention), drops anything."""
    share = (
        getattr(module, "p", 1.0) if isinstance(module, (*RANDOM_MODULES, Dropout)) else getattr(module, "dropout", 0.0)
    )
    return isinstance(share, float | int) and share > 0


def may_be_view(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether the output of an operation may be a view of its input."""
    if module is not None:
        return isinstance(module, _VIEW_MODULES)
    return node.op.startswith("call") and getattr(node.target, "__name__", node.target) in _VIEWS


def writes(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation changes its input in place."""
    if module is not None:
        return bool(getattr(module, "inplace", False))
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return bool(_arguments(node).get("inplace")) or (name.endswith("_") and not name.endswith("__"))


def operation_of(node: fx.Node, module: nn.Module | None) -> Operation:
    """The operation of a node as a function of its only tensor, wherever this stands among the arguments.

    UserError if it computes with the number of images.
    """
    if module is not None:
        return module
    if flattens(node):  # whatever sizes it names: a slice of the channels has others
        return partial(torch.flatten, start_dim=1)
    is_method, target = node.op == "call_method", node.target
    numbers = {one: number for one in node.all_input_nodes if (number := number_of(one)) is not None}
    for one, number in numbers.items():
        if number.follows_images and not _is_view(node):
            raise UserError(
                f"{node.name} computes with the number of images ({one.name}), of which each rank has a share: such a layer "
                "cannot be placed"
            )
        number.of(0)

    def operation(x: Tensor) -> Tensor:
        def value(one: fx.Node) -> Any:
            return numbers[one].of(len(x)) if one in numbers else x

        arguments: Any = fx.node.map_arg(node.args, value)
        options: Any = fx.node.map_arg(node.kwargs, value)
        if is_method:
            own, *others = arguments
            return getattr(own, str(target))(*others, **options)  # type: ignore[no-any-return]
        return target(*arguments, **options)  # type: ignore[operator, no-any-return]

    return operation


def _is_one_of(
    node: fx.Node,
    module: nn.Module | None,
    modules: tuple[type[nn.Module], ...],
    functions: frozenset[Any],
    methods: frozenset[str],
) -> bool:
    if module is not None:
        return isinstance(module, modules)
    return node.op in ("call_function", "call_method") and node.target in (
        methods if node.op == "call_method" else functions
    )


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a function by name; of functions in C, and of methods, only those that are given by name."""
    try:
        return inspect.signature(cast("Callable[..., Any]", node.target)).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return dict(node.kwargs)
