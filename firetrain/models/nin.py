"""Network in Network for ImageNet (Lin, Chen and Yan 2014), with the layers of FireCaffe's second model."""

from __future__ import annotations

from torch import Tensor, nn

from firetrain.models.dropout import Dropout


class NiN(nn.Module):
    """Four convolutions, each followed by two of 1x1; the last one's channels, averaged over the image, are the classes."""

    def __init__(self, classes: int = 1000, stem: str = "imagenet") -> None:
        super().__init__()
        first = nn.Conv2d(3, 96, 11, stride=4) if stem == "imagenet" else nn.Conv2d(3, 96, 5, stride=2, padding=2)
        self.features = nn.Sequential(
            *_block(first, 96, 96), _pool() if stem == "imagenet" else nn.Identity(),
            *_block(nn.Conv2d(96, 256, 5, padding=2), 256, 256), _pool(),
            *_block(nn.Conv2d(256, 384, 3, padding=1), 384, 384), _pool(),
            Dropout(0.5),
            *_block(nn.Conv2d(384, 1024, 3, padding=1), 1024, classes),
        )  # fmt: skip
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, classes]."""
        return nn.functional.adaptive_avg_pool2d(self.features(x), 1).flatten(1)


def _block(first: nn.Conv2d, channels: int, out: int) -> list[nn.Module]:
    inner = nn.Conv2d(first.out_channels, channels, 1)
    return [first, nn.ReLU(), inner, nn.ReLU(), nn.Conv2d(channels, out, 1), nn.ReLU()]


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def nin(classes: int = 1000, stem: str = "imagenet") -> NiN:
    """Network in Network; 7,595,176 parameters at 1000 classes."""
    return NiN(classes, stem)
