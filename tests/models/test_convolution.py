"""The work of each algorithm is what an execution of it counts."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from firetrain.models.catalogue import model_by_name
from firetrain.models.convolution import Convolution, convolutions, costs, winograd, winograd_products
from firetrain.models.inventory import inventory

Array = np.ndarray


def test_direct_counts_the_products_of_a_loop() -> None:
    one = Convolution("c", images=2, inputs=3, outputs=4, groups=1, height=7, width=6, rows=3, columns=2, stride=(2, 1))
    x, w, counted = np.random.default_rng(0).random((2, 3, 7, 6)), np.random.default_rng(1).random((4, 3, 3, 2)), 0
    y = np.zeros((2, 4, *one.output_size))
    for n, o, i, j in product(*map(range, y.shape)):
        for c, a, b in product(range(3), range(3), range(2)):
            y[n, o, i, j] += x[n, c, 2 * i + a, j + b] * w[o, c, a, b]
            counted += 1
    expected = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), stride=(2, 1)).numpy()
    assert np.allclose(y, expected) and costs(one)["direct"].work == costs(one)["im2col"].work == counted


# the matrices of Lavin and Gray (2016), section 4.1 and 4.2: inputs, kernels, outputs
WINOGRAD = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
         [0, 4, 0, -5, 0, 1]],
        [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
         [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}  # fmt: skip


class Counter:
    """Multiplies matrices and counts the multiply-adds."""

    def __init__(self) -> None:
        self.count = 0

    def matmul(self, a: Array, b: Array) -> Array:
        self.count += a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    def both_sides(self, a: Array, x: Array) -> Array:
        """a x aT, from the left first."""
        return self.matmul(self.matmul(a, x), a.T)


@pytest.mark.parametrize("tile", [2, 4])
def test_winograd_counts_the_operations_of_its_transforms_and_products(tile: int) -> None:
    one = Convolution("c", images=2, inputs=3, outputs=2, groups=1, height=10, width=10, rows=3, columns=3)
    of_inputs, of_kernels, of_outputs = (np.array(matrix, float) for matrix in WINOGRAD[tile])
    x, w = np.random.default_rng(0).random((2, 3, 10, 10)), np.random.default_rng(1).random((2, 3, 3, 3))
    counter, products, alpha = Counter(), 0, tile + 2
    kernels = np.array([[counter.both_sides(of_kernels, w[o, c]) for c in range(3)] for o in range(2)])
    y = np.zeros((2, 2, 8, 8))
    for n, i, j in product(range(2), range(0, 8, tile), range(0, 8, tile)):
        tiles = [counter.both_sides(of_inputs, x[n, c, i : i + alpha, j : j + alpha]) for c in range(3)]
        for o in range(2):
            total = np.zeros((alpha, alpha))
            for c in range(3):
                total += kernels[o, c] * tiles[c]
                products += alpha**2
            y[n, o, i : i + tile, j : j + tile] = counter.both_sides(of_outputs, total)
    assert np.allclose(y, torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w)).numpy())
    assert winograd_products(one, tile) == products == costs(one)["direct"].work / {2: 2.25, 4: 4}[tile]
    assert winograd(one, tile).work == products + counter.count


def _depth_of_product(a: Array, b: Array) -> Array:
    """When each element of a matrix product is known, from when those of both matrices are; sums are trees."""
    steps = math.ceil(math.log2(a.shape[1]))
    return np.array([[max(np.maximum(row, column)) + steps for column in b.T] for row in a])


@pytest.mark.parametrize("tile", [2, 4])
def test_winograd_s_depth_is_that_of_its_longest_chain(tile: int) -> None:
    """Kernels are transformed beside inputs; matrices are known from the start."""
    one = Convolution("c", images=1, inputs=48, outputs=2, groups=1, height=10, width=10, rows=3, columns=3)
    of_inputs, of_kernels, of_outputs = (np.zeros(np.array(matrix).shape) for matrix in WINOGRAD[tile])

    def both_sides(a: Array, x: Array) -> Array:
        return _depth_of_product(_depth_of_product(a, x), a.T)

    inputs, kernels = both_sides(of_inputs, np.zeros((tile + 2,) * 2)), both_sides(of_kernels, np.zeros((3, 3)))
    total = np.maximum(inputs, kernels) + math.ceil(math.log2(48))
    assert winograd(one, tile).depth == both_sides(of_outputs, total).max()


def _fft(x: Array, counted: list[int]) -> Array:
    """The transform of a vector by radix 2, counting complex multiplications."""
    if len(x) == 1:
        return x
    even, odd = _fft(x[::2], counted), _fft(x[1::2], counted)
    counted[0] += len(odd)
    turned = np.exp(-2j * np.pi * np.arange(len(odd)) / len(x)) * odd
    return np.concatenate([even + turned, even - turned])


def test_fft_counts_half_the_real_products_of_complex_transforms_and_spectra() -> None:
    one = Convolution("c", images=2, inputs=3, outputs=2, groups=1, height=8, width=4, rows=3, columns=3)
    counted, x = [0], np.random.default_rng(0).random((8, 4))
    rows = np.array([_fft(row, counted) for row in x.astype(complex)])
    found = np.array([_fft(column, counted) for column in rows.T]).T
    assert np.allclose(found, np.fft.fft2(x))
    images, kernels, outputs, spectra = 2 * 3, 3 * 2, 2 * 2, 2 * 3 * 2 * 8 * 4
    assert costs(one)["FFT"].work == (4 * counted[0] * (images + kernels + outputs) + 4 * spectra) // 2


def test_direct_work_is_half_of_what_torch_counts_for_models() -> None:
    for name in ("alexnet", "googlenet", "squeezenet1_1"):
        flops = {layer.name: layer.flops for layer in inventory(model_by_name(name), 224) if layer.kind == "Conv2d"}
        found = {one.name: 2 * costs(one)["direct"].work for one in convolutions(model_by_name(name), 224)}
        assert found == flops and len(found) >= 5


def test_algorithms_that_do_not_apply_are_left_out() -> None:
    strided = Convolution("c", 1, 3, 8, 1, 9, 9, 3, 3, (2, 2))
    pointwise = Convolution("c", 1, 3, 8, 1, 9, 9, 1, 1)
    assert list(costs(strided)) == list(costs(pointwise)) == ["direct", "im2col", "FFT"]
