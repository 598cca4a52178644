"""LARS with each preset, and LAMB, compared with the formulas in float64 for any shapes and magnitudes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from firetrain.config.sections.presets import PRESETS
from firetrain.optim.lamb import Lamb
from firetrain.optim.lars import Lars, trust_ratios

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
SCALES = st.sampled_from([0.0, 1e-6, 1.0, 1e6])
OPTIONS = ("trust_coefficient", "trust_clip", "rate_in_momentum", "decay_in_norm", "zero_norm", "epsilon")
RATES = (0.5, 1.5, 3.0, 2.0)


def draw(shape: list[int], scale: float, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def lars(
    w: Tensor, gradients: list[Tensor], momentum: float, decay: float, nesterov: bool, of: dict[str, Any]
) -> Tensor:
    """You, Gitman and Ginsburg 2017, equation 6 and algorithm 1, with the options in which implementations differ; float64."""
    w, v = w.double(), torch.zeros_like(w, dtype=torch.float64)
    for rate, gradient in zip(RATES, gradients, strict=True):
        g = gradient.double()
        if w.norm() > 0 and g.norm() > 0:
            below = g.norm() + (decay * w.norm() if of["decay_in_norm"] else 0.0) + of["epsilon"]
            ratio = of["trust_coefficient"] * w.norm() / below
        else:
            ratio = torch.tensor(of["trust_coefficient"] if of["zero_norm"] == "coefficient" else 1.0).double()
        if of["trust_clip"]:
            ratio = (ratio / rate).clamp(max=1.0)
        inner, outer = (rate, 1.0) if of["rate_in_momentum"] else (1.0, rate)
        update = inner * ratio * (g + decay * w)
        v = momentum * v + update
        w = w - outer * (update + momentum * v if nesterov else v)
    return w


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPES, weight=SCALES, gradient=SCALES, momentum=st.sampled_from([0.0, 0.9]), decay=st.sampled_from([0.0, 0.01]),
    nesterov=st.booleans(), clip=st.booleans(), preset=st.sampled_from(sorted(PRESETS)),
)  # fmt: skip
@example(shape=[1], weight=1e-6, gradient=1e6, momentum=0.9, decay=0.0, nesterov=False, clip=False, preset="firetrain")
def test_lars_is_the_formula_of_each_preset(
    shape: list[int],
    weight: float,
    gradient: float,
    momentum: float,
    decay: float,
    nesterov: bool,
    clip: bool,
    preset: str,
) -> None:
    nesterov = nesterov and momentum > 0
    options = {key: PRESETS[preset][key] for key in OPTIONS} | {"trust_clip": clip}
    start, gradients = draw(shape, weight, 0), [draw(shape, gradient, step + 1) for step in range(len(RATES))]
    ours = nn.Parameter(start.clone())
    optimizer = Lars([{"params": [ours]}], momentum=momentum, weight_decay=decay, nesterov=nesterov, **options)
    for rate, g in zip(RATES, gradients, strict=True):
        ours.grad = g.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert torch.equal(ours.grad, g), "gradients belong to whoever reduced them"
    exact = lars(start, gradients, momentum, decay, nesterov, options)
    assume(exact.abs().max() < 1e30)  # values that overflow float32 do not test the formula
    moved = (exact - start.double()).abs().max() + start.abs().max()
    assert (ours.double() - exact).abs().max() <= 1e-5 * moved + 1e-30


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES, weight=SCALES, gradient=SCALES, decay=st.sampled_from([0.0, 0.01]))
def test_lamb_is_the_formula(shape: list[int], weight: float, gradient: float, decay: float) -> None:
    """You et al. 2020, algorithm 2, with phi the identity; float64."""
    start, gradients = draw(shape, weight, 0), [draw(shape, gradient, step + 1) for step in range(len(RATES))]
    ours = nn.Parameter(start.clone())
    optimizer = Lamb([{"params": [ours]}], weight_decay=decay)
    w, m, v = start.double(), torch.zeros(shape).double(), torch.zeros(shape).double()
    for step, (rate, g32) in enumerate(zip(RATES, gradients, strict=True), 1):
        ours.grad = g32.clone()
        optimizer.param_groups[0]["lr"] = rate / 100
        optimizer.step()
        g = g32.double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        update = m / (1 - 0.9**step) / ((v / (1 - 0.999**step)).sqrt() + 1e-6) + decay * w
        ratio = w.norm() / update.norm() if w.norm() > 0 and update.norm() > 0 else 1.0
        w = w - rate / 100 * ratio * update
        assert torch.equal(ours.grad, g32)
    scale = w.abs().max() + start.abs().max()
    assert (ours.double() - w).abs().max() <= 2e-4 * scale + 1e-12


def test_the_rate_inside_the_momentum_is_the_same_while_it_is_constant() -> None:
    inside, outside = (nn.Parameter(draw([4, 5], 1.0, 0)) for _ in range(2))
    for weight, given_inside in ((inside, True), (outside, False)):
        optimizer = Lars(
            [{"params": [weight]}],
            momentum=0.9,
            weight_decay=0.01,
            trust_coefficient=0.1,
            rate_in_momentum=given_inside,
        )
        for step in range(5):
            weight.grad = draw([4, 5], 1.0, step + 1)
            optimizer.param_groups[0]["lr"] = 2.0
            optimizer.step()
    assert torch.allclose(inside, outside, rtol=1e-5)


def test_what_runs_on_a_gpu_gives_what_runs_here() -> None:
    """The passes over all tensors that are used on a GPU, compared with the kernel that is used on the CPU."""
    ours, theirs = ([nn.Parameter(draw([4, 5], 1.0, seed)) for seed in range(3)] for _ in range(2))
    options = {"momentum": 0.9, "weight_decay": 0.01, "trust_coefficient": 0.1}
    kernel, passes = (Lars([{"params": weights}], **options) for weights in (ours, theirs))  # type: ignore[arg-type]
    group = passes.param_groups[0]
    for step in range(5):
        gradients = [draw([4, 5], 1.0, 10 * step + number) for number in range(3)]
        for weight, gradient in zip(ours, gradients, strict=True):
            weight.grad = gradient
        kernel.param_groups[0]["lr"] = 0.5
        kernel.step()
        with torch.no_grad():
            ratios = trust_ratios(theirs, gradients, 0.01, 0.5, group)
            passes.in_several_passes(group, theirs, gradients, passes._buffers(theirs), 0.5, 0.01, ratios)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(ours, theirs, strict=True))
