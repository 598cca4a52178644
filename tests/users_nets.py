"""Networks of a user who has never heard of firetrain; some cannot be trained."""

import random

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes, width=4):
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.fc(x.flatten(1)))


def doubled(classes):
    return Net(classes).double()


def frozen(classes):
    return Net(classes).requires_grad_(False)


def broken(classes):
    return Net(classes, width="four")


def wrong(classes):
    return Net(classes + 1)


def lazy(classes):
    return nn.LazyLinear(classes)


def number(classes):
    return 3


def any(**options):
    return Net(options["num_classes"])


def none(**options):
    if options:
        raise TypeError("no options")
    return Net(10)


def shared(classes):
    drop = nn.Dropout(0.5)
    return nn.Sequential(Net(classes), drop, nn.Linear(classes, classes), drop)


class Drawing(Net):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Flipping(Net):
    def forward(self, x):
        return super().forward(x.flip(3) if self.training and random.random() < 2 else x)


class Twice(Net):
    def __init__(self, classes):
        super().__init__(classes, width=6)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        ones = torch.ones(len(x), 1000)
        Twice.seen = self.drop(ones), self.drop(ones)
        return self.out(self.drop(self.fc(x.flatten(1))))


class Noise(Net):
    def __init__(self, classes):
        super().__init__(classes)
        self.register_buffer("noise", torch.tensor(np.random.rand(4) + random.random()))


class Recurrent(Net):
    def __init__(self, classes):
        super().__init__(classes, width=8)
        self.rows = nn.LSTM(48, 8, batch_first=True)

    def forward(self, x):
        return self.out(self.rows(x.flatten(1).view(len(x), 16, 48))[0][:, -1])


class Branching(Net):
    def forward(self, x):
        return super().forward(x if x.sum().item() > 0 else -x)


class Normal(Net):
    def __init__(self, classes):
        super().__init__(classes)
        self.normal = nn.BatchNorm2d(3)

    def forward(self, x):
        return super().forward(self.normal(x))


class Tokens(Net):
    # drops features of tokens, which are the first dimension
    def __init__(self, classes):
        super().__init__(classes, width=6)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        tokens = self.fc(x.flatten(1)).view(len(x), 3, 2).transpose(0, 1)
        return self.out(self.drop(tokens).transpose(0, 1).flatten(1))


class Heads(Net):
    also = 10

    def forward(self, x):
        found = super().forward(x)
        return (found, found[:, : self.also]) if self.training else found


class Features(Heads):
    also = 4


class Dictionary(Net):
    def forward(self, x):
        return {"logits": super().forward(x)} if self.training else super().forward(x)


settings = 5
computed = len("computed")
