"""Models as users of torch write them, with what firetrain's own models do not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firetrain.models.dropout import Dropout

CLASSES = 10


def sequential() -> nn.Module:
    """A model as a user of torch writes it, with layers that firetrain's own models do not have."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 5, 2), nn.GELU(), nn.Flatten(),
        nn.Linear(20, 13), nn.Sigmoid(), nn.Linear(13, CLASSES),
    )  # fmt: skip


def in_place() -> nn.Module:
    """A model whose activations overwrite their inputs, also where they begin layers of their own."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.a, self.b = nn.Conv2d(3, 6, 3, stride=2), nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 3, padding=1)
            self.elu, self.relu, self.fc = nn.ELU(inplace=True), nn.ReLU(inplace=True), nn.Linear(392, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.avg_pool2d(self.elu(self.first(x)), 1)  # ELU needs its output for its gradient
            x = nn.functional.leaky_relu(x, 0.1, True)
            x = 2 - 0.5 * torch.flatten(input=self.relu(torch.cat([self.a(x), self.b(x)], 1)), start_dim=1)
            return 0.5 * self.fc(x)  # type: ignore[no-any-return]

    return Net()


def unused() -> nn.Module:
    """A model that computes more than it uses."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 6, 3, stride=2), nn.Conv2d(6, 64, 3), nn.Conv2d(64, 4, 3)
            self.side, self.one, self.fc = nn.Conv2d(6, 5, 3), nn.Linear(5 * 25, 1), nn.Linear(36, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            a = self.a(x)
            b = self.b(a)
            # in a pipeline the second stage computes this, and the first one its input
            self.one(self.side(a).flatten(1))
            return self.fc(self.c(b).flatten(1))  # type: ignore[no-any-return]

    return Net()


def views() -> nn.Module:
    """A model with layers that begin with a view of their input, which they overwrite."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.Flatten(), nn.Linear(196, 32), nn.Unflatten(1, (8, 2, 2)), nn.ReLU(inplace=True),
        nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def joined() -> nn.Module:
    """A model whose ReLUs overwrite concatenations, which are copies, of one tensor too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.relu = nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(inplace=True)
            self.fc = nn.Linear(192, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            a = self.first(x)
            both = self.relu(torch.cat([a, a.neg()], 1)).flatten(1)
            alone = self.relu(torch.cat([a], 1).flatten(1))
            return self.fc(torch.cat([both, alone], 1))  # type: ignore[no-any-return]

    return Net()


def classic() -> nn.Module:
    """A model that reads sizes, and drops twice by one layer, as many scripts do."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 6, 3, stride=2), nn.Conv2d(6, 8, 3)
            self.a, self.b, self.c = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)
            self.drop = Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.second(self.first(x).tanh())
            x = nn.functional.avg_pool2d(x, x.size()[2:])
            x = x.view(x.size(0), -1)
            x = self.drop(self.a(x).sigmoid())
            x = self.drop(self.b(x).sigmoid()) * (12 / x.shape[1])
            return self.c(x.reshape(-1, 12))  # type: ignore[no-any-return]

    return Net()


def lines() -> nn.Module:
    """A model that pools over channels, because its activations have three dimensions."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 8), nn.Linear(8, CLASSES)
    )


OWN = {
    "sequential": sequential, "in-place": in_place, "unused": unused, "views": views, "joined": joined, "classic": classic,
    "lines": lines,
}  # fmt: skip
