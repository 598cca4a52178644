"""AlexNet of "One weird trick" (Krizhevsky 2014), without normalisation or groups, with torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn

from firetrain.models.dropout import Dropout


class AlexNet(nn.Module):
    """Five convolutions and three fully connected layers, which hold 94 % of the parameters."""

    def __init__(self, classes: int = 1000, stem: str = "imagenet") -> None:
        super().__init__()
        small = stem == "small"
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 5, stride=2, padding=2) if small else nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.Identity() if small else nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            Dropout(0.5), nn.Linear(256 * 36, 4096), nn.ReLU(),
            Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, classes]."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


def alexnet(classes: int = 1000, stem: str = "imagenet") -> AlexNet:
    """AlexNet; 61,100,840 parameters at 1000 classes."""
    return AlexNet(classes, stem)
