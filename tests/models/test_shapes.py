"""Shapes are those that torch works out for tensors without data, and take no second to find."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
import users_models
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from firetrain.models.catalogue import MODELS, model_by_name
from firetrain.models.shapes import made_by_function, made_by_module
from firetrain.models.tracing import IMAGES, Tracer, traced

SMALL = {"lenet": 28, "lenet_300_100": 28, "squeezenet_mini": 16, "googlenet_mini": 16}
COUNTS = st.integers(1, 4)
PAIRS = st.tuples(COUNTS, COUNTS)
SHAPE = st.tuples(st.just(2), st.just(3), st.integers(1, 9), st.integers(1, 9))


class Plain(fx.Interpreter):
    """torch's own way."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n.name] = tuple(value.shape)
        return value


def shapes_of_torch(model: nn.Module, size: int) -> dict[str, tuple[int, ...]]:
    plain = Plain(copy.deepcopy(fx.GraphModule(model, Tracer().trace(model))).to("meta"))
    plain.run(torch.empty(IMAGES, 3, size, size, device="meta"))
    return plain.shapes


@pytest.mark.parametrize("name", MODELS)
def test_those_of_every_model_are_torch_s(name: str) -> None:
    size, small = SMALL.get(name, 64), {"stem": "small"} if name not in SMALL else {}
    model = model_by_name(name, **small)  # type: ignore[arg-type]
    found = {node.name: node.meta["shape"] for node in traced(model, size).nodes if "shape" in node.meta}
    assert found == shapes_of_torch(model, size) and len(found) > 5


@pytest.mark.parametrize("make", [users_models.sequential, users_models.in_place])
def test_those_of_models_of_users_are_torch_s(make: Any) -> None:
    model = make()
    found = {node.name: node.meta["shape"] for node in traced(model, 16).nodes if "shape" in node.meta}
    assert found == shapes_of_torch(model, 16)


@settings(max_examples=200, deadline=None)
@given(
    SHAPE, PAIRS, PAIRS, st.tuples(st.integers(0, 2), st.integers(0, 2)), PAIRS, st.booleans(),
    st.sampled_from(("convolution", "maximum", "function", "mean")),
)  # fmt: skip
def test_windows_of_any_size_are_where_torch_has_them(
    shape: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, kind: str
) -> None:
    """What torch refuses is left to it."""
    x = torch.empty(shape)
    modules: dict[str, nn.Module] = {
        "convolution": nn.Conv2d(3, 5, kernel, stride, padding, dilation),
        "maximum": nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil),
        "mean": nn.AvgPool2d(kernel, stride, padding, ceil),
    }
    words = (kernel, stride, padding, dilation, ceil)

    def ours() -> tuple[int, ...] | None:
        pooled = nn.functional.max_pool2d
        made = made_by_function(pooled, (x, *words), {}) if kind == "function" else made_by_module(modules[kind], x)
        return None if made is None else tuple(made.shape)

    try:
        made = nn.functional.max_pool2d(x, *words) if kind == "function" else modules[kind](x)
    except RuntimeError:
        assert ours() is None
    else:
        assert ours() == tuple(made.shape)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Linear(4, 2), (3, 5)), (nn.Conv2d(3, 4, 1), (2, 4, 5, 5)), (nn.BatchNorm2d(3), (2, 4, 5, 5)),
     (nn.Conv2d(3, 4, 3, padding="same"), (2, 3, 5, 5)), (nn.MaxPool2d(2, return_indices=True), (2, 3, 4, 4)),
     (nn.MaxPool2d(2), (3, 4, 4)), (nn.LSTM(4, 2), (3, 4)), (nn.Linear(4, 2).double(), (3, 4)),
     (nn.MaxPool2d(2, stride=0), (2, 3, 4, 4)), (nn.AvgPool2d((2,)), (2, 3, 4, 4))],
)  # fmt: skip
def test_what_torch_refuses_or_does_otherwise_is_left_to_it(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert made_by_module(module, torch.empty(shape)) is None


@pytest.mark.parametrize(
    "tensors",
    [(), (torch.empty(2, 3), torch.empty(3, 3)), (torch.empty(2, 3), torch.empty(2)),
     (torch.empty(2, 3), torch.empty(2, 3, dtype=torch.bool))],
)  # fmt: skip
def test_tensors_that_do_not_belong_together_are_left_to_torch(tensors: tuple[Tensor, ...]) -> None:
    assert made_by_function(torch.cat, (tensors, 1), {}) is None


class Named(nn.Module):
    """Functions with their arguments by name, or by position up to the last."""

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.max_pool2d(x, 2, 2, 0, 1, False, False)
        x = torch.cat(dim=1, tensors=[nn.functional.max_pool2d(x, kernel_size=2), pooled, x[:, :, ::2, ::2]])
        return nn.functional.adaptive_max_pool2d(x, (2, None)).mean((2, -1)) + x.mean(2, keepdim=True).mean((2, 3))


def test_arguments_may_have_names() -> None:
    found = {node.name: node.meta["shape"] for node in traced(Named(), 8).nodes if "shape" in node.meta}
    assert found == shapes_of_torch(Named(), 8) and (IMAGES, 9, 4, 4) in found.values()


def test_a_trace_does_not_load_torch_s_compiler() -> None:
    """Ranks under a strategy, and commands that show one, took a second more."""
    code = f"""
import sys
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
for name in {sorted(MODELS)}:
    trace(model_by_name(name), {SMALL}.get(name, 64 if "thesis" in name else 128))
print(sorted({{"torch._dynamo", "sympy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
