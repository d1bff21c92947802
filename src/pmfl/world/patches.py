"""A 3 x 3 convolution with pooling and ReLU as one matrix product of patches, for many models side by side.

Under ``torch.vmap`` the convolutions of several models become one grouped convolution, which libraries for GPUs work
off group by group. As a product of each model's patches with its kernels, all models are one batched product, and so is
each gradient. Patches are a strided view, copied once. The copy takes nine times the room of the images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def convolved_and_halved(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(x), 2)), with a border of zeros before the convolution.

    x: [n, height, width, channels]
    kernel: [outputs, 3, 3, channels], as it lies in a model's vector
    bias: [outputs], added after pooling: the largest number stays the largest, and there is a quarter of the work
    """
    if torch.is_grad_enabled():
        y: Tensor = _ConvolvedAndHalved.apply(x, kernel, bias)[0]  # type: ignore[no-untyped-call]
        return y
    return torch.relu(_windows(x, kernel)[0].amax(0) + bias).view(*_half(x), len(bias))


def _half(x: Tensor) -> tuple[int, int, int]:
    return x.shape[0], x.shape[1] // 2, x.shape[2] // 2


def _patches(x: Tensor, below: int = 0, right: int = 0) -> Tensor:
    """The neighbours of each pixel, zeros beyond the border: [n, height, width, 3, 3, channels], as a view.

    below, right: rows and columns of zeros that count as pixels
    """
    return pad(x, (0, 0, 1, 1 + right, 1, 1 + below)).unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3)


def _windows(x: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """The convolution [4, m, outputs] at each place of m pooling windows, and the patches [4, m, 9 * channels]."""
    _, height, width = _half(x)
    # A view whose axes of height and width are two each: which window, and where in it.
    rows = torch.unflatten(_patches(x)[:, : 2 * height, : 2 * width], 2, (width, 2))
    rows = torch.unflatten(rows, 1, (height, 2)).permute(2, 4, 0, 1, 3, 5, 6, 7).flatten(5).flatten(0, 4)
    return (rows @ kernel.flatten(1).t()).view(4, -1, len(kernel)), rows.view(4, -1, rows.shape[1])


class _ConvolvedAndHalved(torch.autograd.Function):
    """Beside the result, what its gradients need: the patches, and which place of each window was the largest."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, patches = _windows(x, kernel)
        largest, place = y.max(0)
        return torch.relu(largest + bias).view(*_half(x), len(bias)), patches, place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, kernel, _ = inputs
        ctx.height, ctx.width = x.shape[1:3]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(kernel, *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        kernel, y, patches, place = ctx.saved_tensors
        n, height, width, outputs = y.shape
        by_y = (gradients[0] * (y > 0)).reshape(-1, outputs)
        places = torch.arange(4, device=y.device)[:, None, None]
        by_rows = by_y * (place == places)
        by_kernel = (by_rows.transpose(1, 2) @ patches).sum(0).view_as(kernel)
        by_x = None
        if ctx.needs_input_grad[0]:
            # The same convolution the other way: kernels turned round, outputs and channels exchanged.
            at_pixels = by_rows.view(2, 2, n, height, width, outputs).permute(2, 3, 0, 4, 1, 5)
            at_pixels = at_pixels.reshape(n, 2 * height, 2 * width, outputs)
            patches = _patches(at_pixels, ctx.height - 2 * height, ctx.width - 2 * width)
            turned = kernel.flip(1, 2).permute(1, 2, 0, 3).flatten(0, 2)
            by_x = (patches.flatten(3).flatten(0, 2) @ turned).view(n, ctx.height, ctx.width, -1)
        return by_x, by_kernel, by_y.sum(0)
