"""The kinds of parameters: weights, biases, and scales and shifts of normalising layers."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

# batch norm, also over all ranks, and instance norm; group norm; layer norm
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def kinds_of(model: nn.Module) -> dict[int, str]:
    """The kind of each parameter (bias, norm or weight), by the parameter's id.

    Biases are called so by torch's layers: `bias`, but also `in_proj_bias` in attention and `bias_ih_l0` in recurrent layers.

    >>> kinds_of(nn.RMSNorm(3)).values(), kinds_of(nn.LSTMCell(2, 1)).values()
    (dict_values(['norm']), dict_values(['weight', 'weight', 'bias', 'bias']))
    """
    kinds: dict[int, str] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            other = "bias" if "bias" in name.split("_") else "weight"
            kinds[id(parameter)] = "norm" if isinstance(module, NORMS) else other
    return kinds


def is_normalised(model: nn.Module) -> bool:
    """Whether a layer normalises activations, by a batch, an image or groups of channels."""
    return any(isinstance(one, NORMS) for one in model.modules())
