"""Dropout with masks that are drawn from keys and enter a model as data."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from pmfl.core.keys import Key
from pmfl.core.types import Masks, Model

LEVELS = 1 << 16  # a mask entry is decided by 16 random bits: its probability is exact to 1e-5


def draw_masks(model: Model, key: Key, prefix: tuple[int, ...]) -> Masks:
    """One mask [*prefix, *sample shape] per dropout layer of ``model``; true is kept.

    >>> from pmfl.world.networks import MODELS
    >>> masks = draw_masks(MODELS["cnn-cifar100"]((32, 32, 3), 100), Key.root(0), (5, 16))
    >>> [tuple(mask.shape) for mask in masks]
    [(5, 16, 2048), (5, 16, 512), (5, 16, 256)]
    """
    return tuple(
        _draw(key.fold("mask", layer), (*prefix, *shape), keep) for layer, (shape, keep) in enumerate(model.masks)
    )


def _draw(key: Key, shape: tuple[int, ...], keep: float) -> Tensor:
    count = prod(shape)
    # The raw stream of the generator: several times faster than its distributions, and promised to stay the same.
    bits = key.numpy().bit_generator.random_raw(-(-count // 4)).view(np.uint16)[:count]
    return torch.from_numpy(bits < round(keep * LEVELS)).view(shape)


def drop(x: Tensor, mask: Tensor, keep: float) -> Tensor:
    """Zero where the mask is false, scaled up elsewhere so that the expectation stays the same."""
    return x * (mask.to(x.dtype) * (1.0 / keep if keep else 0.0))


class Feed:
    """Hands the masks of one forward to the dropout layers it comes through, in order of use."""

    def __init__(self) -> None:
        self.masks: Iterator[Tensor] | None = None  # None: evaluation, nothing is dropped
        self.seen: list[tuple[tuple[int, ...], float]] | None = None  # where set: what masks would have been taken

    def give(self, x: Tensor, keep: float, whole_channels: bool) -> Tensor | None:
        """The mask whose turn it is, if anything is to be dropped."""
        if self.seen is not None:
            trailing = (1,) * (x.ndim - 2) if whole_channels else tuple(x.shape[2:])
            self.seen.append(((*x.shape[1:2], *trailing), keep))
        return None if self.masks is None else next(self.masks)


class KeyedDropout(nn.Module):
    """A dropout layer that reads its mask instead of drawing it."""

    def __init__(self, keep: float, whole_channels: bool, feed: Feed) -> None:
        super().__init__()
        self.keep, self.whole_channels, self.feed = keep, whole_channels, feed

    def forward(self, x: Tensor) -> Tensor:
        """``x``, dropped by the mask whose turn it is."""
        mask = self.feed.give(x, self.keep, self.whole_channels)
        return x if mask is None else drop(x, mask, self.keep)


def key_dropout(layer: nn.Module, feed: Feed) -> nn.Module | None:
    """What takes the place of a dropout layer; None for any other layer."""
    if isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return KeyedDropout(1.0 - layer.p, not isinstance(layer, nn.Dropout), feed) if layer.p else nn.Identity()
    return None
