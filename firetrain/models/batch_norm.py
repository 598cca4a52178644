"""Adds batch norm to models that have none."""

from __future__ import annotations

from torch import nn


def add_batch_norm(model: nn.Module) -> nn.Module:
    """Add a BatchNorm2d after every convolution except the classifier's (Ioffe and Szegedy 2015, section 3.2).

    The model is changed in place and returned. The last convolution of a model without linear layers is its classifier.
    Parameter names get a suffix: `.0` (convolution) or `.1` (norm).
    """
    places = [
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in parent.named_children()
        if isinstance(child, nn.Conv2d)
    ]
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        places = places[:-1]
    for parent, name, convolution in places:
        parent._modules[name] = nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels))
    return model
