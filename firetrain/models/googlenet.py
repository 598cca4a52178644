"""torchvision's GoogLeNet (batch norm, and 3x3 convolutions in the "5x5" branch), with torchvision's parameter names.

Szegedy et al. 2015, table 1, with Ioffe and Szegedy's batch norm. The 3x3 instead of 5x5 is a mistake of the first port, on
which published weights rely; `googlenet_paper` has the layers of the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firetrain.models.dropout import Dropout

# channels: in, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection (table 1)
INCEPTIONS = {
    "3a": (192, 64, 96, 128, 16, 32, 32), "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64), "4b": (512, 160, 112, 224, 24, 64, 64), "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64), "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128), "5b": (832, 384, 192, 384, 48, 128, 128),
}  # fmt: skip


class ConvNorm(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, channels: int, filters: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, size, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(filters, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """[images, channels, h, w] to [images, filters, h', w']."""
        return self.bn(self.conv(x)).relu()  # type: ignore[no-any-return]


class Inception(nn.Module):
    """Four branches side by side: 1x1, 3x3, "5x5" (3x3 here), pool projection."""

    def __init__(self, channels: int, one: int, three_in: int, three: int, five_in: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = ConvNorm(channels, one, 1)
        self.branch2 = nn.Sequential(ConvNorm(channels, three_in, 1), ConvNorm(three_in, three, 3, padding=1))
        self.branch3 = nn.Sequential(ConvNorm(channels, five_in, 1), ConvNorm(five_in, five, 3, padding=1))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, padding=1, ceil_mode=True), ConvNorm(channels, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[images, channels, h, w] to [images, sum of the branches, h, w]."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class Auxiliary(nn.Module):
    """An additional classifier on an inner layer, used in training only (section 5)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = ConvNorm(channels, 128, 1)
        self.fc1 = nn.Linear(2048, 1024)
        self.fc2 = nn.Linear(1024, classes)
        self.dropout = Dropout(0.7)

    def forward(self, x: Tensor) -> Tensor:
        """[images, channels, h, w] to [images, classes]."""
        x = self.conv(nn.functional.adaptive_avg_pool2d(x, 4))
        return self.fc2(self.dropout(self.fc1(x.flatten(1)).relu()))  # type: ignore[no-any-return]


class GoogLeNet(nn.Module):
    """22 layers; in training with auxiliary heads switched on, the outputs are (main, head at 4a, head at 4d)."""

    def __init__(self, classes: int = 1000, stem: str = "imagenet", auxiliary_heads: bool = False) -> None:
        super().__init__()
        small = stem == "small"
        self.conv1 = ConvNorm(3, 64, 3, stride=2, padding=1) if small else ConvNorm(3, 64, 7, stride=2, padding=3)
        self.maxpool1 = nn.Identity() if small else nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = ConvNorm(64, 64, 1)
        self.conv3 = ConvNorm(64, 192, 3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        for name, channels in INCEPTIONS.items():
            self.add_module(f"inception{name}", Inception(*channels))
        self.maxpool3 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.aux1 = Auxiliary(512, classes) if auxiliary_heads else None
        self.aux2 = Auxiliary(528, classes) if auxiliary_heads else None
        self.dropout = Dropout(0.2)
        self.fc = nn.Linear(1024, classes)
        self.heads_on = auxiliary_heads
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.01, a=-2, b=2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Map [images, 3, h, w] to [images, classes]; in training with auxiliary heads, to three of these."""
        at_4a, at_4d, x = features(self, self.conv3(self.conv2(self.maxpool1(self.conv1(x)))))
        x = self.fc(self.dropout(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)))
        if self.training and self.heads_on and self.aux1 is not None and self.aux2 is not None:
            return x, self.aux1(at_4a), self.aux2(at_4d)
        return x


def features(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the inception modules that follow the stem; returns the outputs of 4a, 4d and 5b."""
    layer = net.get_submodule
    x = layer("inception3b")(layer("inception3a")(layer("maxpool2")(x)))
    at_4a = layer("inception4a")(layer("maxpool3")(x))
    at_4d = layer("inception4d")(layer("inception4c")(layer("inception4b")(at_4a)))
    x = layer("maxpool4")(layer("inception4e")(at_4d))
    return at_4a, at_4d, layer("inception5b")(layer("inception5a")(x))


def googlenet(classes: int = 1000, stem: str = "imagenet", auxiliary_heads: bool = False) -> GoogLeNet:
    """torchvision's GoogLeNet; 6,624,904 parameters at 1000 classes, 13,004,888 with auxiliary heads."""
    return GoogLeNet(classes, stem, auxiliary_heads)
