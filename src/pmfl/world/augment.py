"""From stored samples to the inputs of a network: training augmentation of uint8 images, and normalisation.

All mini-batches of a participation are treated in one call, and every sample has its own draws: sample i is changed
in the same way whatever the other samples are, and however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.errors import SpecError

Images: TypeAlias = npt.NDArray[np.uint8]  # [n, height, width, channels]
Floats: TypeAlias = npt.NDArray[np.float32]

PAD = 4  # pixels around an image, before a window of its own size is cut out
BRIGHTNESS, HUE = 0.05, 0.05  # FedAU's colour jitter for CIFAR-100: factors 0.95 to 1.05, turns of -0.05 to 0.05
AT_ONCE = 16  # images whose colours are worked on together, so that all of their planes stay in a core's cache
COARSE = np.uint8(0b11000000)  # posterize keeps two bits
TRUNCATED = np.float32(255.999 / 255)  # what a level is multiplied by before its fraction is cut off


class Augment(Protocol):
    """A training augmentation of images [n, height, width, channels], drawn from a key."""

    def __call__(self, x: Images, key: Key, fill: Sequence[int] = (0,)) -> Images:
        """Changed images; ``fill`` is the colour (per channel, or one level) of what lies beyond an image's border."""
        ...


def none(x: Images, key: Key, fill: Sequence[int] = (0,)) -> Images:
    """Images as they are."""
    return x


def crop(x: Images, key: Key, fill: Sequence[int] = (0,)) -> Images:
    """A window of the image's own size, cut at random out of the image with 4 pixels of border around it."""
    _check("crop", x)
    return _cut(x, draw_windows(key, len(x))[:, :2], fill)


def crop_flip(x: Images, key: Key, fill: Sequence[int] = (0,)) -> Images:
    """A random window as in ``crop``, then left and right exchanged in every second image or so."""
    _check("crop-flip", x)
    draws = draw_windows(key, len(x))
    return _flip(_cut(x, draws[:, :2], fill), draws[:, 2] % 2 == 1)


def fedau(x: Images, key: Key, fill: Sequence[int] = (0,)) -> Images:
    """FedAU's augmentation for CIFAR-100.

    Sharpness doubled (every second image or so), brightness and hue jittered in either order, two bits per channel kept
    (every second), histogram equalised (every second), random window, flip.
    """
    _check("fedau", x)
    draws = key.fold("colour").numpy().random((len(x), 6))
    coloured = np.empty_like(x)
    for start in range(0, len(x), AT_ONCE):
        here = slice(start, start + AT_ONCE)
        coloured[here] = _colour(x[here].copy(), draws[here])
    return crop_flip(coloured, key, fill)


AUGMENTS: dict[str, Augment] = {"none": none, "crop": crop, "crop-flip": crop_flip, "fedau": fedau}


def draw_windows(key: Key, n: int) -> npt.NDArray[np.uint32]:
    """Row and column of each image's window, and a number that is odd for images to be flipped."""
    raw = key.fold("window").numpy().bit_generator.random_raw(n).view(np.uint16).reshape(n, 4)
    draws = raw[:, :3].astype(np.uint32)
    draws[:, :2] = (draws[:, :2] * (2 * PAD + 1)) >> 16
    return draws


FLIPS = {crop: False, crop_flip: True}  # the augmentations that are a window and no more: these run on any device


def cut(x: Tensor, rows: Tensor, draws: Tensor, fill: Tensor, *, flips: bool) -> Tensor:
    """Windows of the images ``x[rows]``, by the same draws and with the same bits as on the host.

    x: uint8 [n, height, width, channels]
    rows: [m] numbers of images
    draws: [m, 3] of ``draw_windows``
    fill: [channels] uint8, the colour of what lies beyond an image's border
    """
    height, width = x.shape[1:3]
    i = draws[:, :1] + torch.arange(-PAD, height - PAD, device=x.device)
    j = draws[:, 1:2] + torch.arange(-PAD, width - PAD, device=x.device)
    if flips:
        j = torch.where(draws[:, 2:] % 2 == 1, j.flip(1), j)
    inside = ((i >= 0) & (i < height))[:, :, None] & ((j >= 0) & (j < width))[:, None, :]
    i, j = i.clamp(0, height - 1), j.clamp(0, width - 1)
    return torch.where(inside[..., None], x[rows[:, None, None], i[:, :, None], j[:, None, :]], fill)


def mean_colour(mean: Sequence[float]) -> tuple[int, ...]:
    """The ``fill`` that normalisation by this mean turns into (nearly) zero: border as if padded after it."""
    return tuple(round(255 * level) for level in mean)


def to_input(
    x: npt.NDArray[Any] | Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Normalised inputs: uint8 images [..., h, w, c] become [..., c, h, w], float rows [..., f] keep their shape.

    Images stay where they are in memory, channels last, which is how convolutions on a CPU like them.

    >>> tuple(to_input(np.zeros((5, 32, 32, 3), np.uint8), mean=(0.5,), std=(0.5,)).shape)
    (5, 3, 32, 32)
    """
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(x if x.flags.writeable else x.copy())  # torch wants memory it could write to
    if x.dtype != torch.uint8:
        scale, shift = _affine(tuple(mean), tuple(std), x.shape[-1], 1, 1.0, dtype)
        return torch.addcmul(shift.to(x.device), x.to(dtype), scale.to(x.device))
    *_, width, channels = x.shape
    scale, shift = _affine(tuple(mean), tuple(std), channels, width, 255.0, dtype)
    rows = x.to(dtype).reshape(-1, width * channels)  # long rows: a last axis of 3 would leave vector units idle
    torch.addcmul(shift.to(x.device), rows, scale.to(x.device), out=rows)
    return rows.view(x.shape).movedim(-1, -3)


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int, width: int, top: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Normalisation as x * scale + shift, for a row of ``width`` pixels."""
    m, s = (np.broadcast_to(np.asarray(v, np.float64), channels) for v in (mean, std))
    return tuple(torch.from_numpy(np.tile(v, width)).to(dtype) for v in (1 / (top * s), -m / s))  # type: ignore[return-value]


def _colour(x: Images, draws: npt.NDArray[np.float64]) -> Images:
    sharp, late, coarse, equal = (draws[:, :4] < 0.5).T
    factors = (1 + BRIGHTNESS * (2 * draws[:, 4] - 1)).astype(np.float32)
    turns = (HUE * (2 * draws[:, 5] - 1)).astype(np.float32)
    x[sharp] = sharpen(x[sharp])
    x[~late] = brighten(x[~late], factors[~late])
    x = turn_hue(x, turns)
    x[late] = brighten(x[late], factors[late])
    x[coarse] &= COARSE
    x[equal] = equalise(x[equal])
    return x


def sharpen(x: Images) -> Images:
    """Twice the difference to a softened image, 3 x 3 with weight 5 in the middle; the outermost pixels stay."""
    wide = x.astype(np.int16)
    rows = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    middle = wide[:, 1:-1, 1:-1]
    box = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * middle
    soft = (2 * box + 13) // 26  # box / 13, rounded
    out = x.copy()
    out[:, 1:-1, 1:-1] = np.clip(2 * middle - soft, 0, 255)
    return out


def brighten(x: Images, factors: Floats) -> Images:
    """Each image's levels times its factor."""
    brighter: Floats = np.minimum(x * factors[:, None, None, None], np.float32(255))
    return brighter.astype(np.uint8)


def turn_hue(x: Images, turns: Floats) -> Images:
    """Each image's hues turned by a fraction of the colour circle; images without colour stay as they are."""
    if x.shape[-1] != 3:
        return x
    red, green, blue = (x[..., channel].astype(np.float32) for channel in range(3))
    high, low = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    chroma = high - low
    zero, one = np.zeros_like(chroma), np.ones_like(chroma)
    # The hue in sixths of the circle, counted from the brightest colour. Sums of masked terms: `where` is slow.
    is_red, is_green = (red == high).astype(np.float32), (green == high).astype(np.float32)
    hue = red - green + 4 * chroma
    hue += is_green * (blue - red + 2 * chroma - hue)
    hue += is_red * (green - blue - hue)
    hue /= np.maximum(chroma, one)
    hue += 6 * turns[:, None, None]
    hue -= 6 * np.floor(hue * np.float32(1 / 6))
    low *= TRUNCATED
    chroma *= TRUNCATED
    out = np.empty_like(x)
    for channel, level in enumerate((np.abs(hue - 3) - 1, 2 - np.abs(hue - 2), 2 - np.abs(hue - 4))):
        np.maximum(level, zero, out=level)
        np.minimum(level, one, out=level)
        level *= chroma
        level += low
        out[..., channel] = level.astype(np.uint8)
    return out


def equalise(x: Images) -> Images:
    """Levels spread so that each channel's histogram is as even as it can be."""
    n, height, width, channels = x.shape
    planes = n * channels
    levels = x.transpose(0, 3, 1, 2).reshape(planes, height * width).astype(np.intp)
    levels += 256 * np.arange(planes)[:, None]
    histogram = np.bincount(levels.ravel(), minlength=256 * planes).reshape(planes, 256)
    below = np.cumsum(histogram, axis=1) - histogram
    highest = 255 - np.argmax(histogram[:, ::-1] > 0, axis=1)
    step = below[np.arange(planes), highest] // 255  # what lies below the highest level in use, in 255 steps
    spread = np.minimum((below + (step // 2)[:, None]) // np.maximum(step, 1)[:, None], 255)
    spread[step == 0] = np.arange(256)
    table: Images = spread.astype(np.uint8)
    return table.ravel()[levels].reshape(n, channels, height, width).transpose(0, 2, 3, 1)


def _check(name: str, x: Images) -> None:
    if x.ndim != 4:
        raise SpecError(f"augmentation `{name}` is for images, and samples have shape {x.shape[1:]}", hint="use `none`")


def _cut(x: Images, corners: npt.NDArray[np.uint32], fill: Sequence[int]) -> Images:
    n, height, width, channels = x.shape
    side = 2 * PAD + 1
    line = np.resize(np.asarray(fill, np.uint8), (width + 2 * PAD) * channels)
    padded = np.empty((n, height + 2 * PAD, len(line)), np.uint8)
    padded[:] = line
    padded = padded.reshape(n, height + 2 * PAD, width + 2 * PAD, channels)
    padded[:, PAD:-PAD, PAD:-PAD] = x
    image, row, pixel, level = padded.strides
    # Every window of every image, as a view; rows of a window are one run of bytes, copied at once.
    windows = as_strided(padded, (n, side, side, height, width * channels), (image, row, pixel, row, level))
    cut: Images = windows[np.arange(n), corners[:, 0], corners[:, 1]]
    return cut.reshape(x.shape)


def _flip(x: Images, which: npt.NDArray[np.bool_]) -> Images:
    """Exchanges left and right in place; torch has a fast path for just this layout."""
    images = torch.from_numpy(x[which]).permute(0, 3, 1, 2).flip(3)
    x[which] = images.permute(0, 2, 3, 1).numpy()
    return x
