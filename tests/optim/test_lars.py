"""The updates of LARS equal the formula in float64; those of SGD equal torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from firetrain.config import load_text
from firetrain.models.catalogue import make_model
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.optim.lars import Lars

TEXT = """\
name: test
model: {name: googlenet, stem: small}
data: {name: digits, image_size: 16}
batch: {global_size: 1024}
optimizer: {name: lars, weight_decay: 0.01}
learning_rate: {base: 0.02, base_batch: 256, scaling: linear}
"""


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((8, 3, 3, 3), (20, 10), (7,))]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_without_a_trust_coefficient_it_is_torch_s_sgd(momentum: float, nesterov: bool, decay: float) -> None:
    if nesterov and not momentum:
        return
    ours, theirs = ([nn.Parameter(t.clone()) for t in tensors(0)] for _ in range(2))
    mine = Lars([{"params": ours}], momentum=momentum, weight_decay=decay, nesterov=nesterov)
    peer = torch.optim.SGD(theirs, lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    for step in range(10):
        for a, b, g in zip(ours, theirs, tensors(step + 1), strict=True):
            a.grad, b.grad = g.clone(), g.clone()
        set_rate(mine, 0.1)
        mine.step()
        peer.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def by_formula(weights: list[Tensor], rates: list[float], *, eta: float, momentum: float, decay: float) -> list[Tensor]:
    """You, Gitman and Ginsburg 2017, equation 6 and algorithm 1, with the rate outside the momentum; float64."""
    weights = [w.double().clone() for w in weights]
    velocity = [torch.zeros_like(w) for w in weights]
    for step, rate in enumerate(rates):
        for number, gradient in enumerate(tensors(step + 1)):
            w, g = weights[number], gradient.double()
            local = eta * w.norm() / (g.norm() + decay * w.norm())
            velocity[number] = momentum * velocity[number] + local * (g + decay * w)
            weights[number] = w - rate * velocity[number]
    return weights


def test_lars_is_the_formula_also_while_the_rate_changes() -> None:
    weights = [nn.Parameter(t.clone()) for t in tensors(0)]
    optimizer = Lars([{"params": weights}], momentum=0.9, weight_decay=0.01, trust_coefficient=0.02)
    rates = [0.5 * (step + 1) for step in range(10)]
    for step, rate in enumerate(rates):
        for weight, gradient in zip(weights, tensors(step + 1), strict=True):
            weight.grad = gradient.clone()
        set_rate(optimizer, rate)
        optimizer.step()
        for weight, gradient in zip(weights, tensors(step + 1), strict=True):
            assert torch.equal(weight.grad, gradient), "gradients belong to whoever reduced them"
    for weight, exact in zip(weights, by_formula(tensors(0), rates, eta=0.02, momentum=0.9, decay=0.01), strict=True):
        assert torch.allclose(weight.double(), exact, rtol=1e-5, atol=1e-6)


def test_a_tensor_without_a_norm_is_scaled_by_the_trust_coefficient_alone() -> None:
    zero, gradient = nn.Parameter(torch.zeros(5)), torch.arange(5.0)
    optimizer = Lars([{"params": [zero]}], momentum=0.0, weight_decay=0.0, trust_coefficient=0.01)
    zero.grad = gradient.clone()
    set_rate(optimizer, 2.0)
    optimizer.step()
    assert torch.allclose(zero, -2.0 * 0.01 * gradient)


@pytest.mark.parametrize(("extra", "scale"), [("", 0.25), (", excluded_rate: raw", 1.0)])
def test_biases_and_norms_are_excluded_and_keep_the_small_batch_s_rate(extra: str, scale: float) -> None:
    config = load_text(TEXT.replace("weight_decay: 0.01", f"weight_decay: 0.01{extra}"), "test").config
    model = make_model(config.model, 10, 1)
    optimizer = make_optimizer(model, config)
    adapted, excluded = (group["params"] for group in optimizer.param_groups)
    assert {p.dim() for p in excluded} == {1} and all(p.dim() > 1 for p in adapted)
    assert len(adapted) + len(excluded) == len(list(model.parameters()))
    before = excluded[0].detach().clone()
    excluded[0].grad = torch.ones_like(before)
    set_rate(optimizer, config.peak_rate)
    optimizer.step()
    assert torch.allclose(before - excluded[0], torch.full_like(before, 0.08 * scale))  # 0.08: 0.02 x 1024/256


def test_nothing_is_excluded_if_the_config_says_so() -> None:
    config = load_text(TEXT.replace("weight_decay: 0.01", "excluded: []"), "test").config
    model = make_model(config.model, 10, 1)
    optimizer = make_optimizer(model, config)
    assert len(optimizer.param_groups) == 1
