from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.world import pooled as module
from pmfl.world.pooled import convolved_and_pooled

SHAPES = [(4, 32, 8, 8), (2, 3, 6, 4), (2, 3, 5, 7), (3, 1, 28, 28)]
LAYOUTS = [torch.channels_last, torch.contiguous_format]


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=Key.root(0).fold("pooled", *shape).torch())


def plainly(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    return torch.max_pool2d(torch.relu(torch.conv2d(x, kernel, bias, padding=1)), 2)


def layer(shape: tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype) -> list[Tensor]:
    x, kernel, bias = some(*shape), some(32, shape[1], 3, 3) / 9, some(32)
    return [
        x.contiguous(memory_format=layout).to(dtype),
        kernel.contiguous(memory_format=layout).to(dtype),
        bias.to(dtype),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_of_the_plain_order_and_the_same_to_the_bit_without_a_gradient(
    shape: tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype
) -> None:
    given = layer(shape, layout, dtype)
    found = convolved_and_pooled(*given)
    expected = plainly(*given)
    # Where the library adds up from the bias on, rounding differs; in bfloat16 it never does.
    assert torch.allclose(
        found, expected, rtol=0, atol=0.0 if dtype == torch.bfloat16 else 256 * torch.finfo(dtype).eps
    )
    with torch.no_grad():
        assert torch.equal(convolved_and_pooled(*given), found)
    assert 0.1 < float((found > 0).double().mean()) < 1.0  # ReLU had something to do


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_plain_order(shape: tuple[int, ...]) -> None:
    found = []
    for function in (convolved_and_pooled, plainly):
        given = [tensor.requires_grad_() for tensor in layer(shape, torch.channels_last, torch.float64)]
        y = function(*given)
        found.append(torch.autograd.grad((y * some(*y.shape).double()).sum(), given))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12 * float(theirs.abs().max()))


def test_of_equal_numbers_the_first_is_followed_as_ever() -> None:
    found = []
    for function in (convolved_and_pooled, plainly):
        kernel = some(32, 3, 3, 3).requires_grad_()
        found.append(torch.autograd.grad(function(torch.ones(2, 3, 8, 8), kernel, torch.ones(32)).sum(), kernel)[0])
    assert torch.equal(*found)


def test_a_processor_without_bfloat16_takes_the_plain_order(monkeypatch: pytest.MonkeyPatch) -> None:
    given = layer((4, 32, 8, 8), torch.channels_last, torch.bfloat16)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    module._has_bfloat16.cache_clear()
    with torch.no_grad():
        found = convolved_and_pooled(*given)
    module._has_bfloat16.cache_clear()
    assert torch.equal(found, plainly(*given))
