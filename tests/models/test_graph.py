"""What slices of layers would compute otherwise than the model itself is refused when the model is traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from firetrain.errors import UserError
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import refuse_other_evaluation, trace


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.Tanh(), nn.Linear(8, 8))


def frozen(model: nn.Sequential) -> None:
    model[0].bias.requires_grad_(False)


def tied(model: nn.Sequential) -> None:
    model.append(nn.Linear(8, 8))
    model[6].weight = model[5].weight


def hooked(model: nn.Sequential) -> None:
    model[3].register_forward_hook(lambda module, given, made: made * 2)


def watched(model: nn.Sequential) -> None:
    model.register_full_backward_hook(lambda module, given, made: None)


def normed(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[3])


def normed_by_a_hook(model: nn.Sequential) -> None:
    nn.utils.weight_norm(model[3])


class Overwriting(nn.Module):
    """A module whose ReLU overwrites what another layer reads, directly or by a view."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.relu, self.view = nn.Linear(192, 8), nn.ReLU(inplace=True), view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        return torch.cat([self.relu(self.view(x)), x.tanh()], 1).neg()


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.view(-1, 8), lambda x: x[:, 2:6], lambda x: x.narrow(1, 0, 4)]
)
def test_what_overwrites_the_input_of_another_layer_is_refused(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(UserError, match=r"relu changes \w+ in place, which \w+ reads too.*inplace=False"):
        trace(Overwriting(view), 8)
    plain = Overwriting(view)
    plain.relu.inplace = False
    assert len(trace(plain, 8).outputs) == 1


class Turned(nn.Module):
    """A module in the middle of which positions stand where the images were."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.each(x.flatten(2).transpose(1, 2).reshape(-1, 3)).reshape(-1, 64, 10).mean(1)  # type: ignore[no-any-return]


class Attending(nn.Module):
    """A module with dropout inside of one of torch's."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attend, self.out = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True), nn.Linear(8 * 24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(x.flatten(1).unflatten(1, (24, 8))).flatten(1))  # type: ignore[no-any-return]


class Sized(nn.Module):
    """A module whose code uses the sizes of its input."""

    def __init__(self, use: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.use, self.out = nn.Conv2d(3, 4, 3), use, nn.LazyLinear(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.use(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "use",
    [lambda x: x.view(x.size(0), -1), lambda x: x.view(-1, 144), lambda x: x.reshape(x.shape[0], 4 * x.shape[2] * x.size(3)),
     lambda x: torch.reshape(x, (-1, x.shape[1:].numel())), lambda x: torch.flatten(x, 1)],
)  # fmt: skip
def test_all_ways_to_flatten_belong_to_the_layer_before_and_take_slices_of_its_channels(
    use: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = Sized(use)
    model(torch.zeros(1, 3, 8, 8))
    graph = trace(model, 8)
    assert [(layer.name, layer.channels) for layer in graph.layers] == [("first", 144), ("out", 10), ("loss", 10)]
    (flatten,) = graph.units["first"].operations
    assert flatten(torch.zeros(5, 2, 6, 6)).shape == (5, 72)


def test_a_view_of_a_size_is_no_other_reader_of_what_it_is_taken_from() -> None:
    model = Sized(lambda x: nn.functional.relu(x.view(x.shape[0], -1), inplace=True))
    model(torch.zeros(1, 3, 8, 8))
    assert trace(model, 8).outputs == ("out",)


@pytest.mark.parametrize(
    ("use", "told"),
    [(lambda x: x.flatten(1) / x.size(0), "computes with the number of images"),
     (lambda x: x.view(x.size(0) * 2, -1)[: x.size(0)], "view does not keep the images as the first dimension")],
)  # fmt: skip
def test_what_computes_with_the_number_of_images_is_refused(
    use: Callable[[torch.Tensor], torch.Tensor], told: str
) -> None:
    model = Sized(use)
    model(torch.zeros(1, 3, 8, 8))
    with pytest.raises(UserError, match=told):
        trace(model, 8)


def test_images_that_do_not_stay_in_front_are_refused() -> None:
    with pytest.raises(UserError, match="reshape does not keep the images as the first dimension"):
        trace(Turned(), 8)


def test_dropout_inside_of_a_layer_is_refused() -> None:
    assert len(trace(Attending(0.0), 8).outputs) == 1
    with pytest.raises(UserError, match="torch's TransformerEncoderLayer draws other numbers on each rank"):
        trace(Attending(0.1), 8)


class Calibrated(nn.Sequential):
    """A module that returns probabilities when it is evaluated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found if self.training else found.softmax(1)


def test_a_model_that_evaluates_otherwise_is_refused() -> None:
    refuse_other_evaluation(net(), 8)
    refuse_other_evaluation(
        model_by_name("googlenet_paper", classes=10, stem="small", auxiliary_heads=True).train(), 32
    )
    model = Calibrated(*net())
    with pytest.raises(UserError, match=r"otherwise in evaluation than in training \(call_method softmax\)"):
        refuse_other_evaluation(model, 8)
    assert model.training


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    ("change", "told"),
    [(frozen, "0.bias is frozen"), (tied, "6.weight is 5.weight: a layer whose weights are shared"),
     (hooked, r"3 \(Linear\) has hooks"), (watched, r"the model \(Sequential\) has hooks"),
     (normed, "3 .* has a parametrisation"), (normed_by_a_hook, r"3 \(Linear\) has hooks")],
)  # fmt: skip
def test_what_a_slice_would_compute_otherwise_is_refused(change: object, told: str) -> None:
    model = net()
    assert trace(model, 8).outputs == ("5",)
    change(model)  # type: ignore[operator]
    with pytest.raises(UserError, match=told):
        trace(model, 8)
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, 8)
