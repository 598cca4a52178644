"""Torch's own strategies, which are timed beside firetrain's: their stages, their weights, and what they cannot train."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch import Tensor, nn

from firetrain.bench.gpu.one_rank import one_rank
from firetrain.bench.references import RATE, REFERENCES, _stages, check_reference, make_reference
from firetrain.bench.step import make_batch
from firetrain.config import load_config
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.models.catalogue import model_by_name
from firetrain.models.dropout import dropouts_of
from firetrain.models.graph import trace
from firetrain.parallel.catalogue import replicate
from firetrain.strategy.pipeline import balanced
from firetrain.transport.transport import Transport

IMAGES = 4


def options(model: str = "lenet") -> list[str]:
    return [f"model.name={model}", "model.stem=small", "data.image_size=28", f"batch.global_size={IMAGES}"]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def weights_after_a_step(transport: Transport, reference: str, model: str = "lenet") -> Any:
    chosen = load_config("squeezenet-digits", options(model)).config
    whole = replicate(chosen, 10, transport)
    for layer in dropouts_of(whole):
        layer.p = 0.0
    made = make_reference(Spec.parse(reference), chosen, whole, 10, transport)
    made.step()
    return made.weights().numpy()  # a tensor would be lost with the memory of its rank


@pytest.mark.parametrize(
    ("reference", "model"),
    [
        ("ddp", "lenet"),
        ("pipelining:micro_batches=2", "squeezenet1_1"),  # its stages exchange the outputs of convolutions
        ("pipelining:schedule=1f1b,micro_batches=4", "lenet"),
    ],
)
def test_a_step_of_a_peer_on_two_ranks_changes_the_weights_as_on_one(reference: str, model: str) -> None:
    worker = one_rank(torch.device("cpu"), *options(model))
    for layer in dropouts_of(worker.model):
        layer.p = 0.0  # a reference draws masks of its own
    before = flat(worker.model).numpy()
    batch = make_batch(np.arange(IMAGES), 28, 10)
    worker.backward(iter([batch]), [batch.samples], epoch=0)
    worker.finish(IMAGES)
    worker.update(RATE)
    one = flat(worker.model).numpy()
    change = np.linalg.norm(one - before)
    assert change > 0
    for weights in on_ranks(2, weights_after_a_step, reference, model):
        assert np.linalg.norm(weights - one) < 1e-4 * change, "all ranks have the whole model's weights"


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("name", ["lenet", "squeezenet1_1", "googlenet_paper"])
def test_a_model_in_stages_computes_what_the_model_computes(name: str, stages: int) -> None:
    torch.manual_seed(0)
    model = model_by_name(name, stem="small", classes=10).eval()
    layers = trace(model, 28).layers
    cut = balanced(layers, stages)
    stage_of = {layer.name: stage for stage, some in enumerate(cut) for layer in some}
    staged = _stages(copy.deepcopy(model), stage_of)
    images = torch.randn(2, 3, 28, 28)
    assert torch.equal(staged(images), model(images))
    for stage, some in enumerate(cut):
        weights = sum(parameter.numel() for parameter in getattr(staged, f"submod_{stage}").parameters())
        assert weights == sum(layer.parameters for layer in some), f"stage {stage} has the weights of firetrain's"


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("pipelining", "6 images cannot be divided into 4"),
        ("pipelining:micro_batches=0", "6 images cannot be divided into 0"),
        ("pipelining:micro_batches=two", "micro_batches is 'two', expected int"),
        ("pipelining:schedule=1f1,micro_batches=2", "unknown schedule '1f1', did you mean 1f1b?"),
        ("ddp:mesh=2", "ddp has no parameters (mesh=2)"),
        (
            "dtensor",
            "needs model.name=alexnet, and a batch that the ranks divide evenly (got lenet, 6 images, 2 ranks)",
        ),
        ("ddpp", "unknown reference 'ddpp', did you mean ddp?"),
    ],
)
def test_a_peer_that_cannot_take_the_batch_is_refused(reference: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        check_reference(Spec.parse(reference), "lenet", 6, ranks=2)
    assert told in str(error.value)


@pytest.mark.parametrize("reference", [*REFERENCES, "pipelining:micro_batches=3", "pipelining:schedule=1f1b"])
def test_a_peer_that_divides_the_batch_is_accepted(reference: str) -> None:
    check_reference(Spec.parse(reference), "alexnet", 12, ranks=2)
