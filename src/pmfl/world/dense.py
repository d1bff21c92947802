"""Fully connected layers by the faster of two libraries.

On processors that are not Intel's, the matrix products of MKL leave half of each vector register idle; those of oneDNN,
which convolutions use anyway, do not. Same numbers up to rounding, 1.7 times as fast at the paper's sizes. Where oneDNN
cannot help (another device, another precision, a ``torch.func`` transform, a small layer), torch's own ``linear`` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

LEAST = 1 << 16  # entries of a weight from which the call through Python pays


def _product() -> Any:
    """oneDNN's x @ w.T + b for single precision; None where this build of torch has none."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_PRODUCT = _product()


def _operations(x: Sequence[int], weight: Sequence[int], *rest: Any, **named: Any) -> int:
    return 2 * prod(x) * weight[0]


# What torch's counter of floating-point operations is to be told of a product it does not know.
FORMULAS: dict[Any, Any] = {} if _PRODUCT is None else {_PRODUCT: _operations}


def dense(x: Tensor, weight: Tensor, bias: Tensor, *, plain: bool) -> Tensor:
    """``x @ weight.T + bias``; ``plain``: in a form that ``torch.func`` can transform."""
    if plain or _PRODUCT is None or weight.numel() < LEAST or x.dtype != torch.float32 or x.device.type != "cpu":
        return linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _times(x, weight, bias)
    product: Tensor = _Dense.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


def _times(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = _PRODUCT(x, weight, bias, "none", [], "")
    return product


class _Dense(torch.autograd.Function):
    """The product with its three gradients, each a product again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient, (by_x, by_weight, by_bias) = gradients[0], ctx.needs_input_grad
        return (
            _times(gradient, weight.t()) if by_x else None,
            _times(gradient.t(), x.t()) if by_weight else None,
            gradient.sum(0) if by_bias else None,
        )
