"""LeNet of Caffe's MNIST example (after LeCun et al. 1998), with three input channels like every model here."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet(nn.Module):
    """Two convolutions with pooling, and two fully connected layers; the last pool reduces any image size to 4x4."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * 16, 500)
        self.fc2 = nn.Linear(500, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map [images, 3, h, w], with h and w of at least 16, to [images, classes]."""
        x = nn.functional.max_pool2d(self.conv1(x), 2)
        x = nn.functional.adaptive_max_pool2d(self.conv2(x), 4)
        return self.fc2(self.fc1(x.flatten(1)).relu())  # type: ignore[no-any-return]


def lenet(classes: int = 10, stem: str = "small") -> LeNet:
    """LeNet; 432,080 parameters at 10 classes. `stem` has no effect."""
    return LeNet(classes)
