from __future__ import annotations

import importlib

import pytest
import torch
from torch.nn.functional import linear
from torch.utils.flop_counter import FlopCounterMode

from pmfl.core.keys import Key
from pmfl.world import dense as module
from pmfl.world.dense import FORMULAS, LEAST, dense

WIDE, INPUTS = 256, 512
assert WIDE * INPUTS >= LEAST


def some(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=Key.root(0).fold("dense", *shape).torch()).to(dtype)


def both(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Value and gradients of ours, and of torch's."""
    found = []
    for product in (lambda *given: dense(*given, plain=False), linear):
        given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        y = product(*given)
        found.append([y.detach(), *torch.autograd.grad((y * some(*y.shape, dtype=y.dtype)).sum(), given)])
    return found[0], found[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [3, WIDE])
def test_value_and_gradients_are_those_of_linear(outputs: int, dtype: torch.dtype) -> None:
    ours, theirs = both(some(16, INPUTS, dtype=dtype), some(outputs, INPUTS, dtype=dtype), some(outputs, dtype=dtype))
    for mine, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-5, atol=1e-3 if dtype == torch.float32 else 1e-9)


def test_without_gradients_the_value_is_the_same_to_the_bit() -> None:
    x, weight, bias = some(16, INPUTS), some(WIDE, INPUTS).requires_grad_(), some(WIDE)
    with torch.no_grad():
        alone = dense(x, weight, bias, plain=False)
    assert torch.equal(alone, dense(x, weight, bias, plain=False).detach())


def test_only_the_gradients_that_are_asked_for_are_made() -> None:
    x, weight, bias = some(16, INPUTS), some(WIDE, INPUTS).requires_grad_(), some(WIDE)
    (gradient,) = torch.autograd.grad(dense(x, weight, bias, plain=False).sum(), weight)
    assert torch.allclose(gradient, x.sum(0).expand(WIDE, -1), atol=1e-4)


def test_it_can_be_transformed() -> None:
    x, weight, bias = some(3, 16, INPUTS), some(3, WIDE, INPUTS), some(3, WIDE)
    lanes = torch.vmap(lambda *given: dense(*given, plain=True))(x, weight, bias)
    assert torch.allclose(lanes[1], linear(x[1], weight[1], bias[1]), atol=1e-3)


def test_its_operations_are_counted() -> None:
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter, torch.no_grad():
        dense(some(16, INPUTS), some(WIDE, INPUTS), some(WIDE), plain=False)
    assert counter.get_total_flops() == 2 * 16 * INPUTS * WIDE


def test_a_build_without_the_library_takes_torch_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        importlib.reload(module)
        assert module.FORMULAS == {}
        given = some(16, INPUTS), some(WIDE, INPUTS), some(WIDE)
        assert torch.equal(module.dense(*given, plain=False), linear(*given))
    importlib.reload(module)
