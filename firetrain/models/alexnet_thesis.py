"""AlexNet with batch norm, as in the public code of a thesis on One Weird Trick (AumitLeon/accelerating-dnns)."""

from __future__ import annotations

from torch import Tensor, nn

from firetrain.models.batch_norm import FeatureNorm
from firetrain.models.dropout import Dropout


class AlexNetThesis(nn.Module):
    """Five convolutions and four fully connected layers, with batch norm after pooling and after dropout.

    Fully connected layers hold 87 % of the parameters at 56 pixels, and 94 % at 128 pixels.
    """

    def __init__(self, classes: int = 200, stem: str = "small") -> None:
        super().__init__()
        side = 2 if stem == "small" else 6
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 11, stride=4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.BatchNorm2d(96),
            nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.BatchNorm2d(256),
            nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(384),
            nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(384),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, padding=1), nn.BatchNorm2d(256),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d(side)  # does nothing at the thesis' 56 or 128 pixels
        self.classifier = nn.Sequential(
            nn.Linear(256 * side * side, 4096), nn.ReLU(), Dropout(0.4), FeatureNorm(4096),
            nn.Linear(4096, 4096), nn.ReLU(), Dropout(0.4), FeatureNorm(4096),
            nn.Linear(4096, 1000), nn.ReLU(), Dropout(0.4), FeatureNorm(1000),
            nn.Linear(1000, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, classes]."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


def alexnet_thesis(classes: int = 200, stem: str = "small") -> AlexNetThesis:
    """AlexNet of the thesis for images of 128 pixels; 63,400,480 parameters at 1000 classes. `stem: small`: of 56 pixels."""
    return AlexNetThesis(classes, stem)
