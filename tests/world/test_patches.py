from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pmfl.core.keys import Key
from pmfl.world.patches import convolved_and_halved

SHAPES = [(3, 8, 8, 3), (2, 9, 6, 1), (1, 5, 7, 4), (2, 2, 3, 32)]
LANES = 3
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def reference(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """As anybody would write it, channels first."""
    y = torch.conv2d(x.permute(0, 3, 1, 2), kernel.permute(0, 3, 1, 2), bias, padding=1)
    return torch.relu(torch.max_pool2d(y, 2)).permute(0, 2, 3, 1)


def drawn(shape: tuple[int, ...], dtype: torch.dtype, outputs: int = 6) -> list[Tensor]:
    """Images, kernels, biases and weights of the results, for each lane its own."""
    n, height, width, channels = shape
    generator = Key.root(3).torch()
    shapes = [
        (n, height, width, channels),
        (outputs, 3, 3, channels),
        (outputs,),
        (n, height // 2, width // 2, outputs),
    ]
    return [torch.randn(LANES, *s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def result_and_gradients(function: Callable[..., Tensor], x: Tensor, kernel: Tensor, bias: Tensor, by: Tensor) -> Any:
    def total(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        y = function(*inputs)
        return (y * by).sum(), y

    gradients, y = torch.func.grad(total, argnums=(0, 1, 2), has_aux=True)(x, kernel, bias)
    return (y, *gradients)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize("device", DEVICES)
def test_lanes_give_torchs_convolution_and_its_gradients(
    shape: tuple[int, ...], dtype: torch.dtype, close: float, device: str
) -> None:
    given = drawn(shape, dtype)
    here = (tensor.to(device) for tensor in given)
    found = torch.vmap(lambda *one: result_and_gradients(convolved_and_halved, *one))(*here)
    for lane in range(LANES):
        expected = result_and_gradients(reference, *(tensor[lane].double() for tensor in given))
        for value, wanted in zip(found, expected, strict=True):
            scale = wanted.abs().max().clamp(min=1)
            assert (value[lane].cpu().double() - wanted).abs().max() < close * scale


def test_one_model_for_all_lanes_and_no_gradient() -> None:
    x, kernel, bias, _ = drawn((2, 6, 6, 3), torch.float64)
    with torch.no_grad():
        found = torch.vmap(convolved_and_halved, in_dims=(0, None, None))(x, kernel[0], bias[0])
    for lane in range(LANES):
        assert torch.allclose(found[lane], reference(x[lane], kernel[0], bias[0]), rtol=0, atol=1e-13)


def test_of_equal_numbers_the_first_takes_the_gradient_as_in_torchs_pooling() -> None:
    # As within a border of one colour; whole numbers, so that no order of addition makes a difference.
    x, kernel = torch.ones(1, 8, 8, 3, dtype=torch.float64), drawn((1, 8, 8, 3), torch.float64)[1][0].round()
    bias, by = torch.ones(6, dtype=torch.float64), torch.ones(1, 4, 4, 6, dtype=torch.float64)
    found = result_and_gradients(convolved_and_halved, x, kernel, bias, by)
    expected = result_and_gradients(reference, x, kernel, bias, by)
    for value, wanted in zip(found, expected, strict=True):
        assert torch.equal(value, wanted)


def test_images_get_a_gradient_only_where_one_is_asked_for() -> None:
    x, kernel, bias, by = (tensor[0] for tensor in drawn((1, 8, 8, 4), torch.float32, outputs=8))
    product = 2 * (8 * 8) * (9 * 4) * 8

    def objective(x: Tensor, kernel: Tensor) -> Tensor:
        return (convolved_and_halved(x, kernel, bias) * by).sum()

    for wanted, products in (((1,), 2), ((0, 1), 3)):
        with FlopCounterMode(display=False) as counter:
            torch.func.grad(objective, argnums=wanted)(x, kernel)
        assert counter.get_total_flops() == products * product
