"""GoogLeNet of the paper and of FireCaffe, with 5x5 convolutions, biases and local response normalisation, no batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firetrain.models.dropout import Dropout
from firetrain.models.googlenet import INCEPTIONS, features
from firetrain.models.local_response_norm import LocalResponseNorm


class PaperInception(nn.Module):
    """Four branches side by side: 1x1, 3x3, 5x5, pool projection (Szegedy et al. 2015, figure 2b)."""

    def __init__(self, channels: int, one: int, three_in: int, three: int, five_in: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = nn.Conv2d(channels, one, 1)
        self.branch2 = nn.Sequential(
            nn.Conv2d(channels, three_in, 1), nn.ReLU(), nn.Conv2d(three_in, three, 3, padding=1)
        )
        self.branch3 = nn.Sequential(nn.Conv2d(channels, five_in, 1), nn.ReLU(), nn.Conv2d(five_in, five, 5, padding=2))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), nn.Conv2d(channels, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[images, channels, h, w] to [images, sum of the branches, h, w]."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1).relu()


class PaperAuxiliary(nn.Module):
    """An additional classifier on an inner layer, used in training only (section 5)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 128, 1)
        self.fc1 = nn.Linear(2048, 1024)
        self.fc2 = nn.Linear(1024, classes)
        self.dropout = Dropout(0.7)

    def forward(self, x: Tensor) -> Tensor:
        """[images, channels, h, w] to [images, classes]."""
        x = self.conv(nn.functional.adaptive_avg_pool2d(x, 4)).relu()
        return self.fc2(self.dropout(self.fc1(x.flatten(1)).relu()))  # type: ignore[no-any-return]


class GoogLeNetPaper(nn.Module):
    """22 layers; in training with auxiliary heads switched on, the outputs are (main, head at 4a, head at 4d)."""

    def __init__(self, classes: int = 1000, stem: str = "imagenet", auxiliary_heads: bool = False) -> None:
        super().__init__()
        small = stem == "small"
        self.conv1 = nn.Conv2d(3, 64, 3, stride=2, padding=1) if small else nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.maxpool1 = nn.Identity() if small else nn.MaxPool2d(3, 2, ceil_mode=True)
        self.norm1 = LocalResponseNorm()
        self.conv2 = nn.Conv2d(64, 64, 1)
        self.conv3 = nn.Conv2d(64, 192, 3, padding=1)
        self.norm2 = LocalResponseNorm()
        self.maxpool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        for name, channels in INCEPTIONS.items():
            self.add_module(f"inception{name}", PaperInception(*channels))
        self.maxpool3 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.aux1 = PaperAuxiliary(512, classes) if auxiliary_heads else None
        self.aux2 = PaperAuxiliary(528, classes) if auxiliary_heads else None
        self.dropout = Dropout(0.4)
        self.fc = nn.Linear(1024, classes)
        self.heads_on = auxiliary_heads
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Map [images, 3, h, w] to [images, classes]; in training with auxiliary heads, to three of these."""
        x = self.norm1(self.maxpool1(self.conv1(x).relu()))
        x = self.norm2(self.conv3(self.conv2(x).relu()).relu())
        at_4a, at_4d, x = features(self, x)
        x = self.fc(self.dropout(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)))
        if self.training and self.heads_on and self.aux1 is not None and self.aux2 is not None:
            return x, self.aux1(at_4a), self.aux2(at_4d)
        return x


def _initialise(net: nn.Module) -> None:
    """Set Xavier weights, and biases of 0.2 as in Caffe's bvlc_googlenet (0 in the last layers)."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            last = name.endswith(("fc", "fc2"))
            nn.init.constant_(module.bias, 0.0 if last else 0.2)  # type: ignore[arg-type]


def googlenet_paper(classes: int = 1000, stem: str = "imagenet", auxiliary_heads: bool = False) -> GoogLeNetPaper:
    """The paper's GoogLeNet; 6,998,552 parameters at 1000 classes.

    With auxiliary heads it has 13,378,280 (FireCaffe's 53.5 MB of gradients).
    """
    return GoogLeNetPaper(classes, stem, auxiliary_heads)


class GoogLeNetMini(nn.Module):
    """Three inception modules for images of 16 to 32 pixels, without auxiliary heads and without batch norm."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.inceptions = nn.Sequential(
            nn.MaxPool2d(3, 2, ceil_mode=True),
            PaperInception(16, 8, 8, 16, 4, 8, 8),
            PaperInception(40, 8, 8, 16, 4, 8, 8),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            PaperInception(40, 16, 12, 24, 4, 8, 8),
        )
        self.fc = nn.Linear(56, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, classes]."""
        x = self.inceptions(self.conv1(x).relu())
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


def googlenet_mini(classes: int = 10, stem: str = "small") -> GoogLeNetMini:
    """A small GoogLeNet for trying recipes on a laptop; 11,658 parameters at 10 classes. `stem` has no effect."""
    return GoogLeNetMini(classes)
