"""The computing time of slices of layers: measured, bounded from below, or in proportion."""

from __future__ import annotations

import pytest

from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.predict.work import MeasuredWork, ProportionalWork, whole_to_layers
from firetrain.records.measured_slice import Ceilings
from firetrain.strategy.slice import Slice

LAYERS = [layer for layer in trace(model_by_name("lenet", classes=10, stem="small"), 28).layers if not layer.is_loss]
WHOLE = {layer.name: Slice(layer.name, 8, layer.outputs, layer.inputs) for layer in LAYERS}
CEILINGS = Ceilings(operations_per_s=1e9, bytes_per_s=1e9)


def test_measured_slices_count_and_others_are_as_fast_as_the_device_can_be() -> None:
    first, fc = LAYERS[0], next(layer for layer in LAYERS if layer.is_linear)
    work = MeasuredWork({WHOLE[first.name]: (1e-3, 2e-3)}, CEILINGS)
    assert work.seconds(first, WHOLE[first.name]) == (1e-3, 2e-3)
    assert work.slower(3).seconds(first, WHOLE[first.name]) == pytest.approx((3e-3, 6e-3))
    half = WHOLE[first.name]._replace(images=4)
    computing_s = 4 * first.operations / 1e9
    assert work.seconds(first, half) == pytest.approx((computing_s, computing_s)), "images have no gradient"
    one = WHOLE[fc.name]._replace(images=1)
    reading_s = 4 * fc.parameters / 1e9
    assert work.seconds(fc, one) == pytest.approx((reading_s, 2 * reading_s)), (
        "weights are read once, whatever the batch"
    )


def test_a_whole_model_is_compared_with_its_layers_where_all_of_them_were_measured() -> None:
    measured = dict.fromkeys(WHOLE.values(), (0.001, 0.002))
    layers_s = 3e-3 * len(LAYERS)
    assert whole_to_layers(measured, LAYERS, {8: layers_s / 2, 16: 99.0}) == pytest.approx({8: 0.5})
    assert whole_to_layers(measured, LAYERS, {8: 1.2 * layers_s}) == pytest.approx({8: 1.2})
    assert whole_to_layers(measured, LAYERS, {8: -1e-3}) == {}, "no passes take less than no time"
    assert whole_to_layers(dict.fromkeys(measured, (0.0, 0.0)), LAYERS, {8: 1e-3}) == {}
    measured.popitem()
    assert whole_to_layers(measured, LAYERS, {8: layers_s / 2}) == {}, "a layer is missing"


def test_each_number_of_images_has_its_own_factor_and_others_the_median() -> None:
    first = LAYERS[0]
    slices = {images: WHOLE[first.name]._replace(images=images) for images in (4, 8, 16, 32)}
    work = MeasuredWork(dict.fromkeys(slices.values(), (1e-3, 2e-3)), CEILINGS, {4: 0.5, 8: 0.6, 16: 0.9})
    found = {images: work.seconds(first, slice_)[0] for images, slice_ in slices.items()}
    assert found == pytest.approx({4: 0.5e-3, 8: 0.6e-3, 16: 0.9e-3, 32: 0.6e-3})
    other = WHOLE[first.name]._replace(images=64)
    least_s = MeasuredWork({}, CEILINGS).seconds(first, other)[0]
    assert work.seconds(first, other)[0] == pytest.approx(0.5 * least_s), "it may have the least of the factors"


def test_what_is_not_measured_is_never_slower_than_the_device_can_be() -> None:
    first = LAYERS[0]
    work = MeasuredWork({WHOLE[first.name]: (1e-3, 2e-3)}, CEILINGS, {8: 1.2})
    assert work.seconds(first, WHOLE[first.name]) == pytest.approx((1.2e-3, 2.4e-3))
    half = WHOLE[first.name]._replace(images=4)
    assert work.seconds(first, half) == MeasuredWork({}, CEILINGS).seconds(first, half)


def test_work_in_proportion_is_that_of_the_measured_step() -> None:
    work = ProportionalWork.of(LAYERS, batch=8, image_s=1e-3, fixed_s=2e-3, backward_share=0.6)
    passes = [work.seconds(layer, WHOLE[layer.name]) for layer in LAYERS]
    assert sum(map(sum, passes)) == pytest.approx(8 * 1e-3 + 2e-3)
    assert sum(backward for _, backward in passes) == pytest.approx(0.6 * (8 * 1e-3 + 2e-3))
    assert sum(map(sum, (work.slower(2).seconds(layer, WHOLE[layer.name]) for layer in LAYERS))) == pytest.approx(20e-3)
