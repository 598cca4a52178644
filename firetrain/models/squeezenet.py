"""SqueezeNet 1.0 and 1.1 (Iandola et al. 2016), with torchvision's parameter names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firetrain.models.dropout import Dropout


class Fire(nn.Module):
    """Squeeze to few channels by a 1x1 convolution, then expand by 1x1 and 3x3 convolutions in parallel (section 3.2)."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[images, channels, h, w] to [images, 2 expand, h, w]."""
        x = self.squeeze(x).relu()
        return torch.cat([self.expand1x1(x).relu(), self.expand3x3(x).relu()], 1)


class SqueezeNet(nn.Module):
    """`features`, then a 1x1 convolution to the classes and the mean over the image.

    The paper's classifier ends in a ReLU and is initialised from N(0, 0.01). It needs the many steps of ImageNet, because a
    class whose outputs are all negative stops learning. With the small stem the classifier is linear, and initialised like the
    other layers.
    """

    def __init__(self, features: nn.Sequential, classes: int, stem: str, channels: int = 512) -> None:
        super().__init__()
        paper = stem == "imagenet"
        self.features = features
        last = nn.ReLU() if paper else nn.Identity()
        self.classifier = nn.Sequential(Dropout(0.5), nn.Conv2d(channels, classes, 1), last, nn.AdaptiveAvgPool2d(1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if paper:
            nn.init.normal_(self.classifier[1].weight, std=0.01)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, classes]."""
        return self.classifier(self.features(x)).flatten(1)  # type: ignore[no-any-return]


def squeezenet1_0(classes: int = 1000, stem: str = "imagenet") -> SqueezeNet:
    """SqueezeNet 1.0; 1,248,424 parameters at 1000 classes."""
    first = nn.Conv2d(3, 96, 7, stride=2) if stem == "imagenet" else nn.Conv2d(3, 96, 3, stride=2, padding=1)
    features = nn.Sequential(
        first, nn.ReLU(), _first_pool(stem),
        Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128), _pool(),
        Fire(256, 32, 128), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), _pool(),
        Fire(512, 64, 256),
    )  # fmt: skip
    return SqueezeNet(features, classes, stem)


def squeezenet1_1(classes: int = 1000, stem: str = "imagenet") -> SqueezeNet:
    """SqueezeNet 1.1, with 2.4 times fewer operations than 1.0; 1,235,496 parameters at 1000 classes."""
    first = nn.Conv2d(3, 64, 3, stride=2, padding=0 if stem == "imagenet" else 1)
    features = nn.Sequential(
        first, nn.ReLU(), _first_pool(stem),
        Fire(64, 16, 64), Fire(128, 16, 64), _pool(),
        Fire(128, 32, 128), Fire(256, 32, 128), _pool(),
        Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
    )  # fmt: skip
    return SqueezeNet(features, classes, stem)


def squeezenet_mini(classes: int = 10, stem: str = "small") -> SqueezeNet:
    """A small SqueezeNet for trying recipes on a laptop; 14,506 parameters at 10 classes. `stem` has no effect.

    It has four Fire modules, for images of 16 to 32 pixels.
    """
    features = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), _pool(),
        Fire(16, 8, 16), Fire(32, 8, 16), _pool(),
        Fire(32, 16, 24), Fire(48, 16, 32),
    )  # fmt: skip
    return SqueezeNet(features, classes, "small", channels=64)


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _first_pool(stem: str) -> nn.Module:
    """The first pool, or an identity for small images, so that parameter names stay the same."""
    return _pool() if stem == "imagenet" else nn.Identity()
