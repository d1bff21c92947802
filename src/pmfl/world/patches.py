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

WIDE = torch.complex128  # what patches are copied as: 16 bytes at a time, a quarter of the reckoning where each belongs


def convolved_and_halved(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(x), 2)), with a border of zeros before the convolution.

    x: [n, height, width, channels]
    kernel: [outputs, 3, 3, channels], as it lies in a model's vector
    bias: [outputs], added after pooling: the largest number stays the largest, and there is a quarter of the work
    """
    if torch.is_grad_enabled():
        y: Tensor = _ConvolvedAndHalved.apply(x, kernel, bias)[0]  # type: ignore[no-untyped-call]
        return y
    return torch.relu(_windows(x, kernel)[0].amax(1) + bias).view(*_half(x), len(bias))


def _half(x: Tensor) -> tuple[int, int, int]:
    return x.shape[0], x.shape[1] // 2, x.shape[2] // 2


def _missing(x: Tensor) -> int:
    """How many channels to add so that each pixel is a whole number of wide ones."""
    return -x.shape[-1] % (WIDE.itemsize // x.element_size())


class _Patches(torch.autograd.Function):
    """The neighbours of each pixel, zeros beyond the border: [n, pixels, 9 * channels], missing channels included.

    Not differentiated. To ``torch.vmap``, the images of several lanes are more images.
    """

    @staticmethod
    def forward(x: Tensor, below: int, right: int, by_window: bool) -> Tensor:
        """below, right: rows and columns of zeros that count as pixels.

        by_window: first the upper left pixels of all pooling windows, then the upper right ones, and so on
        """
        wide = pad(x, (0, _missing(x), 1, 1 + right, 1, 1 + below)).view(WIDE)
        rows = wide.unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3)
        if by_window:  # axes of height and width become two each: which window, and where in it
            height, width = x.shape[1] // 2, x.shape[2] // 2
            rows = torch.unflatten(rows[:, : 2 * height, : 2 * width], 2, (width, 2))
            rows = torch.unflatten(rows, 1, (height, 2)).permute(0, 2, 4, 1, 3, 5, 6, 7).flatten(1, 3)
        return rows.flatten(3).flatten(1, 2).view(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], x: Tensor, *how: Any) -> tuple[Tensor, int]:
        rows = _Patches.apply(x.movedim(in_dims[0], 0).flatten(0, 1), *how)  # type: ignore[no-untyped-call]
        return torch.unflatten(rows, 0, (info.batch_size, -1)), 0


def _patches(x: Tensor, below: int = 0, right: int = 0, *, by_window: bool = False) -> Tensor:
    rows: Tensor = _Patches.apply(x, below, right, by_window)  # type: ignore[no-untyped-call]
    return rows


def _matrix(kernel: Tensor) -> Tensor:
    """[outputs, 3, 3, channels] as what patches are multiplied by, [9 * channels, outputs]."""
    return pad(kernel, (0, _missing(kernel))).flatten(1).t()


def _windows(x: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """For m pooling windows of each image the convolution at their four places, [n, 4, m, outputs], and the patches."""
    patches = _patches(x, by_window=True)
    return (patches.flatten(0, 1) @ _matrix(kernel)).view(len(x), 4, -1, len(kernel)), patches


class _ConvolvedAndHalved(torch.autograd.Function):
    """Beside the result, what its gradients need: the patches, and which place of each window was the largest."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, patches = _windows(x, kernel)
        largest, place = y.max(1)
        return torch.relu(largest + bias).view(*_half(x), len(bias)), patches, place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, kernel, _ = inputs
        ctx.shape = x.shape
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(kernel, *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        kernel, y, patches, place = ctx.saved_tensors
        n, height, width, outputs = y.shape
        by_y = (gradients[0] * (y > 0)).view(n, -1, outputs)
        by_places = by_y[:, None] * (place[:, None] == torch.arange(4, device=y.device)[:, None, None])
        by_kernel = (by_places.flatten(1, 2).transpose(1, 2) @ patches).sum(0)
        by_kernel = by_kernel.view(*kernel.shape[:3], -1)[..., : kernel.shape[3]]
        by_x = None
        if ctx.needs_input_grad[0]:
            # The same convolution the other way: kernels turned round, outputs and channels exchanged.
            at_pixels = by_places.view(n, 2, 2, height, width, outputs).permute(0, 3, 1, 4, 2, 5)
            at_pixels = at_pixels.reshape(n, 2 * height, 2 * width, outputs)
            odd = ctx.shape[1] - 2 * height, ctx.shape[2] - 2 * width
            turned = _matrix(kernel.flip(1, 2).permute(3, 1, 2, 0))
            by_x = (_patches(at_pixels, *odd).flatten(0, 1) @ turned).view(ctx.shape)
        return by_x, by_kernel, by_y.sum((0, 1))
