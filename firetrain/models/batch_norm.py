"""Batch norm of features, and models to which batch norm is added."""

from __future__ import annotations

from torch import Tensor, nn


class FeatureNorm(nn.BatchNorm1d):
    """Batch norm of [images, features], also for a rank's share of one image, where torch's refuses to train.

    The variance of one image is 0, so that its output is the bias, as in Keras.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map [images, features] to the same shape."""
        if not self.training or len(input) > 1:
            return super().forward(input)
        return input * 0 + self.weight * 0 + self.bias


def add_batch_norm(model: nn.Module) -> nn.Module:
    """Add a BatchNorm2d after every convolution except the classifier's (Ioffe and Szegedy 2015, section 3.2).

    The model is changed in place and returned. The last convolution of a model without linear layers is its classifier.
    Parameter names get a suffix: `.0` (convolution) or `.1` (norm).
    """
    convolutions = [
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in parent.named_children()
        if isinstance(child, nn.Conv2d)
    ]
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        convolutions = convolutions[:-1]
    for parent, name, convolution in convolutions:
        parent._modules[name] = nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels))
    return model
