"""LeNet-300-100, the network of fully connected layers of LeCun et al. 1998, for which Deep Compression has published sizes."""

from __future__ import annotations

from torch import Tensor, nn

_PIXELS = 28


class LeNet300(nn.Module):
    """Layers of 300, 100 and `classes` neurons on grey images of 28x28 pixels."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.fc1 = nn.Linear(_PIXELS * _PIXELS, 300)
        self.fc2 = nn.Linear(300, 100)
        self.fc3 = nn.Linear(100, classes)
        for module in (self.fc1, self.fc2, self.fc3):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [images, 3, h, w] to [images, classes]; colours are averaged, and other sizes than 28x28 are pooled to it."""
        grey = nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), _PIXELS).flatten(1)
        return self.fc3(self.fc2(self.fc1(grey).relu()).relu())  # type: ignore[no-any-return]


def lenet_300_100(classes: int = 10, stem: str = "small") -> LeNet300:
    """LeNet-300-100; 266,610 parameters at 10 classes. `stem` has no effect."""
    return LeNet300(classes)
