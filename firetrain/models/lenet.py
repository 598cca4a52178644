"""LeNet as Caffe's MNIST example has it (after LeCun et al. 1998), on three channels like every model here."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet(nn.Module):
    """Two convolutions with pooling, two fully connected layers; the last pool makes 4x4 of any image size."""

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
        """[images, 3, h, w], h and w of 16 or more, to [images, classes]."""
        x = nn.functional.max_pool2d(self.conv1(x), 2)
        x = nn.functional.adaptive_max_pool2d(self.conv2(x), 4)
        return self.fc2(self.fc1(x.flatten(1)).relu())  # type: ignore[no-any-return]


def lenet(classes: int = 10, stem: str = "small") -> LeNet:
    """433,580 parameters at 10 classes; there is one stem only."""
    return LeNet(classes)
