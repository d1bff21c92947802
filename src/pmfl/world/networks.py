"""The paper's networks, as plain functions over views of one flat vector, and two general ones.

Pooling comes before ReLU: both only ever pass the largest number on, so the result and every gradient are the same,
and ReLU has a quarter of the work. Images are flattened in the order they lie in memory: height, width, channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod, sqrt
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import group_norm, linear

from pmfl.core.keys import Key
from pmfl.core.params import Share, Size
from pmfl.core.types import Masks, Model, Vector
from pmfl.errors import SpecError
from pmfl.world.dense import dense
from pmfl.world.layout import Layout, Slot, Views, in_default_order, transformed
from pmfl.world.masks import drop
from pmfl.world.patches import convolved_and_halved
from pmfl.world.pooled import convolved_and_pooled

Projection = Literal["hidden", "moon"]
Shape: TypeAlias = tuple[int, ...]  # of a sample as data sets hold it: (height, width, channels) or (features,)
Encode: TypeAlias = Callable[[Views, Tensor, bool], Tensor]  # the last: whether ``torch.func`` transforms it

CHANNELS = 32  # of both convolutions of the paper's networks
IN_CACHE = 16  # images at a time where no gradient is asked for: what lies between two layers then stays in cache
MOON_WIDTH = 256  # outputs of MOON's projection head
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # ResNet-18: channels and stride of four pairs of blocks


class Draw(NamedTuple):
    """How a parameter of this shape is initialised: normal(0, scale), uniform(-scale, scale) or the constant."""

    shape: Shape
    kind: Literal["normal", "uniform", "constant"]
    scale: float


def cnn_fashion(
    shape: Shape, classes: int, dtype: torch.dtype = torch.float32, *, projection: Projection = "hidden"
) -> Model:
    """Two convolutions and one hidden layer of 128, for FashionMNIST.

    projection: "hidden" (the hidden layer is the projection) or "moon" (an extra two-layer head is)
    """
    return _cnn("cnn-fashion", shape, classes, dtype, hidden=(128,), projection=projection)


def cnn_svhn(
    shape: Shape, classes: int, dtype: torch.dtype = torch.float32, *, projection: Projection = "hidden"
) -> Model:
    """Two convolutions and one hidden layer of 128, for SVHN.

    projection: "hidden" (the hidden layer is the projection) or "moon" (an extra two-layer head is)
    """
    return _cnn("cnn-svhn", shape, classes, dtype, hidden=(128,), projection=projection)


def cnn_cifar10(
    shape: Shape, classes: int, dtype: torch.dtype = torch.float32, *, projection: Projection = "hidden"
) -> Model:
    """Two convolutions and hidden layers of 256 and 64, for CIFAR-10.

    projection: "hidden" (the hidden layers are the projection) or "moon" (an extra two-layer head is)
    """
    return _cnn("cnn-cifar10", shape, classes, dtype, hidden=(256, 64), projection=projection)


def cnn_cifar100(
    shape: Shape,
    classes: int,
    dtype: torch.dtype = torch.float32,
    *,
    dropout: Share = 0.2,
    projection: Projection = "hidden",
) -> Model:
    """Two convolutions and hidden layers of 512 and 256 with dropout, for CIFAR-100.

    dropout: share of the inputs of every fully connected layer that is dropped in training
    projection: "hidden" (the hidden layers are the projection) or "moon" (an extra two-layer head is)
    """
    return _cnn("cnn-cifar100", shape, classes, dtype, hidden=(512, 256), projection=projection, dropout=dropout)


def cnn_cinic10(
    shape: Shape,
    classes: int,
    dtype: torch.dtype = torch.float32,
    *,
    dropout: Share = 0.2,
    projection: Projection = "hidden",
) -> Model:
    """Two convolutions and hidden layers of 512 and 256 with dropout, for CINIC-10.

    dropout: share of the inputs of every fully connected layer that is dropped in training
    projection: "hidden" (the hidden layers are the projection) or "moon" (an extra two-layer head is)
    """
    return _cnn("cnn-cinic10", shape, classes, dtype, hidden=(512, 256), projection=projection, dropout=dropout)


def mlp(
    shape: Shape,
    classes: int,
    dtype: torch.dtype = torch.float32,
    *,
    hidden: Size | tuple[Size, ...] = 64,
    projection: Projection = "hidden",
) -> Model:
    """Fully connected layers, for rows of features and for small images.

    hidden: width of the hidden layer, or a list of widths; an empty list is logistic regression
    projection: "hidden" (the hidden layers are the projection) or "moon" (an extra two-layer head is)
    """
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if min(widths, default=1) < 1:
        raise SpecError(f"mlp: hidden = {hidden!r}", hint="widths count from 1")
    is_image = len(shape) == 3

    def encode(p: Views, x: Tensor, transforming: bool) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1) if is_image else x

    return _headed([], encode, (prod(shape), *widths), classes, dtype, projection, keep=1.0)


def resnet18_gn(
    shape: Shape,
    classes: int,
    dtype: torch.dtype = torch.float32,
    *,
    groups: Size = 32,
    projection: Projection = "hidden",
) -> Model:
    """ResNet-18 for small images: a 3 x 3 stem without pooling, and group instead of batch normalisation.

    groups: of every group normalisation; a divisor of 64
    projection: "hidden" (the pooled features are the projection) or "moon" (an extra two-layer head is)
    """
    channels, width = _image("resnet18-gn", shape, least=1)[2], STAGES[0][0]
    if width % groups:
        raise SpecError(f"resnet18-gn: groups = {groups}", hint=f"choose a divisor of {width}")
    draws = [_kernel(width, channels, 3), *_norm(width)]
    for channels_out, stride in STAGES:
        for s in (stride, 1):
            draws += [_kernel(channels_out, width, 3), *_norm(channels_out)]
            draws += [_kernel(channels_out, channels_out, 3), *_norm(channels_out)]
            if (s, width) != (1, channels_out):
                draws += [_kernel(channels_out, width, 1), *_norm(channels_out)]
            width = channels_out

    def encode(p: Views, x: Tensor, transforming: bool) -> Tensor:
        x, *kernels = in_default_order((x, *p)) if transforming else (x, *p)
        take = iter(kernels)

        def convolve(x: Tensor, stride: int, padding: int) -> Tensor:
            x = torch.conv2d(x, next(take), None, stride, padding)
            return group_norm(x, groups, next(take), next(take))

        x = torch.relu(convolve(x, 1, 1))
        for channels_out, stride in STAGES:
            for s in (stride, 1):
                y = convolve(torch.relu(convolve(x, s, 1)), 1, 1)
                x = torch.relu(y + (x if (s, x.shape[1]) == (1, channels_out) else convolve(x, s, 0)))
        return x.mean((2, 3))

    return _headed(draws, encode, (width,), classes, dtype, projection, keep=1.0)


MODELS: dict[str, Callable[..., Model]] = {
    "cnn-fashion": cnn_fashion,
    "cnn-svhn": cnn_svhn,
    "cnn-cifar10": cnn_cifar10,
    "cnn-cifar100": cnn_cifar100,
    "cnn-cinic10": cnn_cinic10,
    "mlp": mlp,
    "resnet18-gn": resnet18_gn,
}


def _cnn(
    name: str,
    shape: Shape,
    classes: int,
    dtype: torch.dtype,
    *,
    hidden: tuple[int, ...],
    projection: Projection,
    dropout: float = 0.0,
) -> Model:
    """3 x 3 convolution, pooling and ReLU, twice, then fully connected layers, each after dropout if there is any."""
    height, width, channels = _image(name, shape, least=4)
    draws = [_kernel(CHANNELS, channels, 3), _constant(CHANNELS), _kernel(CHANNELS, CHANNELS, 3), _constant(CHANNELS)]
    widths = (CHANNELS * (height // 4) * (width // 4), *hidden)

    def encode(p: Views, x: Tensor, transforming: bool) -> Tensor:
        if len(x) > IN_CACHE and x.device.type == "cpu" and not torch.is_grad_enabled():
            return torch.cat([encode(p, x[i : i + IN_CACHE], transforming) for i in range(0, len(x), IN_CACHE)])
        if transforming:
            x = x.permute(0, 2, 3, 1)
            for kernel, bias in ((p[0], p[1]), (p[2], p[3])):
                x = convolved_and_halved(x, kernel.permute(0, 2, 3, 1), bias)
            return x.flatten(1)
        for kernel, bias in ((p[0], p[1]), (p[2], p[3])):
            x = convolved_and_pooled(x, kernel, bias)
        return x.permute(0, 2, 3, 1).flatten(1)

    return _headed(draws, encode, widths, classes, dtype, projection, keep=1.0 - dropout)


def _headed(
    draws: list[Draw],
    encode: Encode,
    widths: tuple[int, ...],
    classes: int,
    dtype: torch.dtype,
    projection: Projection,
    *,
    keep: float,
) -> Model:
    """An encoder, hidden layers of these widths (the first is the encoder's), perhaps MOON's head, a classifier.

    A dropout layer precedes each hidden layer and the classifier, if ``keep`` is below 1.
    """
    first, last_hidden = len(draws), len(draws) + 2 * (len(widths) - 1)
    draws = draws + _dense(widths, classes, projection)
    layout = Layout([Slot(draw.shape, len(draw.shape) == 4) for draw in draws])

    def represent(w: Vector, x: Tensor, masks: Masks) -> Tensor:
        p, transforming = layout.open(w), transformed(w, x)
        x = encode(p, x, transforming)
        for layer, i in enumerate(range(first, last_hidden, 2)):
            if masks:
                x = drop(x, masks[layer], keep)
            x = torch.relu(dense(x, p[i], p[i + 1], plain=transforming))
        if projection == "moon":
            x = torch.relu(dense(x, p[-6], p[-5], plain=transforming))
            x = dense(x, p[-4], p[-3], plain=transforming)
        return x

    def classify(w: Vector, z: Tensor, masks: Masks) -> Tensor:
        p = layout.close(w)
        return linear(drop(z, masks[-1], keep) if masks else z, p[-2], p[-1])

    dropped = (*widths[:-1], draws[-2].shape[1]) if keep < 1.0 else ()
    masks = tuple(((width,), keep) for width in dropped)
    names = _names(first, len(draws))
    return Model(
        layout.size,
        lambda key: _initial(layout, draws, key, dtype),
        represent,
        classify,
        masks,
        lambda w: dict(zip(names, layout.views(w), strict=True)),
    )


def _names(encoder: int, total: int) -> list[str]:
    """encoder.0 … in the order of use, then weight and bias of each projector layer and of the classifier."""
    layers = [*(f"projector.{i}" for i in range((total - encoder) // 2 - 1)), "classifier"]
    return [
        *(f"encoder.{i}" for i in range(encoder)),
        *(f"{name}.{part}" for name in layers for part in ("weight", "bias")),
    ]


def _dense(widths: tuple[int, ...], classes: int, projection: Projection) -> list[Draw]:
    """The parameters from the first hidden layer on."""
    if projection not in ("hidden", "moon"):
        raise SpecError(f"projection = {projection!r}", hint='choose "hidden" or "moon"')
    draws = [draw for inputs, outputs in pairwise(widths) for draw in _hidden(inputs, outputs)]
    if projection == "hidden":
        return draws + _last(widths[-1], classes)
    return [*draws, *_hidden(widths[-1], widths[-1]), *_hidden(widths[-1], MOON_WIDTH), *_last(MOON_WIDTH, classes)]


def _initial(layout: Layout, draws: Sequence[Draw], key: Key, dtype: torch.dtype) -> Vector:
    """Drawn in float32, whatever the precision asked for: runs in float64 start from the same point."""
    tensors = []
    for i, draw in enumerate(draws):
        generator = key.fold("parameter", i).torch()
        if draw.kind == "normal":
            tensors.append(torch.randn(draw.shape, generator=generator) * draw.scale)
        elif draw.kind == "uniform":
            tensors.append((torch.rand(draw.shape, generator=generator) * 2 - 1) * draw.scale)
        else:
            tensors.append(torch.full(draw.shape, draw.scale))
    return layout.pack(tensors).to(dtype)


def _kernel(outputs: int, inputs: int, side: int) -> Draw:
    return Draw((outputs, inputs, side, side), "normal", sqrt(2 / (inputs * side * side)))  # Kaiming, for ReLU


def _hidden(inputs: int, outputs: int) -> list[Draw]:
    return [Draw((outputs, inputs), "normal", sqrt(2 / inputs)), _constant(outputs)]


def _last(inputs: int, outputs: int) -> list[Draw]:
    return [Draw((outputs, inputs), "uniform", inputs**-0.5), Draw((outputs,), "uniform", inputs**-0.5)]


def _norm(channels: int) -> list[Draw]:
    return [_constant(channels, 1.0), _constant(channels)]


def _constant(size: int, value: float = 0.0) -> Draw:
    return Draw((size,), "constant", value)


def _image(name: str, shape: Shape, least: int) -> tuple[int, int, int]:
    """Height, width and channels, if samples of this shape are images of at least ``least`` pixels a side."""
    if len(shape) != 3 or min(shape[:2]) < least:
        raise SpecError(
            f"{name} needs images of at least {least} x {least} pixels, and samples have shape {tuple(shape)}",
            hint="use model `mlp`, which takes rows of features and images of any size",
        )
    return shape[0], shape[1], shape[2]
