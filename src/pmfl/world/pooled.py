"""A convolution, 2 x 2 pooling and ReLU, in the order that computes least; on one set of parameters at a time.

The largest of four numbers stays the largest when the same bias is added to each, and when ReLU follows: both come
after the pooling and work on a quarter of the numbers, and so does the gradient of the bias. Where no gradient is asked
for, nothing notes which of the four it was. Numbers in bfloat16 that are not negative are compared as the integers
that their bits are, in half the time; there the convolution itself adds the bias and applies ReLU, which is free.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def convolved_and_pooled(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """ReLU of the 2 x 2 maxima of a 3 x 3 convolution, the image's border padded with zeros."""
    noting = torch.is_grad_enabled() or x.device.type != "cpu" or x.shape[2] % 2 or x.shape[3] % 2
    if x.dtype == torch.bfloat16:  # which rounds after every step: the bias comes first, as in torch's order
        if noting or not _has_bfloat16():
            return torch.max_pool2d(torch.conv2d(x, kernel, bias, padding=1), 2).relu_()
        y = torch.ops.mkldnn._convolution_pointwise(x, kernel, bias, [1, 1], [1, 1], [1, 1], 1, "relu", [], "")
        return _maxima(y.view(torch.int16)).view(x.dtype)
    y = torch.conv2d(x, kernel, padding=1)
    return (torch.max_pool2d(y, 2) if noting else _maxima(y)).add_(bias[:, None, None]).relu_()


def _maxima(y: Tensor) -> Tensor:
    """Of every two rows, and of every two columns of these; long runs of numbers at once, channels last."""
    n, channels, height, width = y.shape
    pairs = y.permute(0, 2, 3, 1).reshape(n, height // 2, 2, width * channels)
    rows = torch.maximum(pairs.select(2, 0), pairs.select(2, 1)).view(n, height // 2, width // 2, 2, channels)
    return torch.maximum(rows.select(3, 0), rows.select(3, 1)).permute(0, 3, 1, 2)


@cache
def _has_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 on this processor."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())  # type: ignore[no-untyped-call]
