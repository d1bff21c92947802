"""How the parameters of a network lie in one flat vector.

Kernels of two-dimensional convolutions are stored channels-last, (out, height, width, in), and handed out as permuted
views (out, in, height, width): on a CPU, convolutions then run without reordering a single number, which halves the
time of a training iteration. All views come from one split, so that the gradient is put together by one ``cat``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.func import debug_unwrap

from pmfl.core.types import Vector

Views: TypeAlias = tuple[Tensor, ...]


def transformed(*tensors: Tensor) -> bool:
    """Whether a ``torch.func`` transform is at work on any of these."""
    return any(debug_unwrap(x) is not x for x in tensors)


def in_default_order(tensors: Views) -> Views:
    """Copies of those that lie channels-last, which group normalisation cannot take under ``torch.vmap``."""
    return tuple(x.contiguous() for x in tensors)


class Slot(NamedTuple):
    """One parameter: its shape as a layer wants it, and whether it is stored channels-last."""

    shape: tuple[int, ...]
    channels_last: bool = False

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in which its numbers lie in the vector."""
        if not self.channels_last:
            return self.shape
        outputs, inputs, height, width = self.shape
        return (outputs, height, width, inputs)


class Layout:
    """Where each parameter lies in the flat vector.

    >>> import torch
    >>> layout = Layout([Slot((2, 3)), Slot((2,))])
    >>> [tuple(view.shape) for view in layout.views(torch.zeros(layout.size))]
    [(2, 3), (2,)]
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.sizes = [prod(slot.shape) for slot in self.slots]
        self.size = sum(self.sizes)
        # A part of the vector is a row already: one-dimensional parameters need no further view.
        self._plan = [(None if len(slot.shape) == 1 else slot.stored, slot.channels_last) for slot in self.slots]
        self._opened = threading.local()

    def views(self, w: Vector) -> Views:
        """Every parameter as a view of ``w``."""
        parts = w.split_with_sizes(self.sizes)
        return tuple(
            part if shape is None else part.reshape(shape).permute(0, 3, 1, 2) if channels_last else part.reshape(shape)
            for part, (shape, channels_last) in zip(parts, self._plan, strict=True)
        )

    def pack(self, tensors: Sequence[Tensor]) -> Vector:
        """The vector whose views are these tensors."""
        parts = [
            (tensor.permute(0, 2, 3, 1) if slot.channels_last else tensor).reshape(-1)
            for tensor, slot in zip(tensors, self.slots, strict=True)
        ]
        return torch.cat(parts) if parts else torch.zeros(0)

    def open(self, w: Vector) -> Views:
        """The views of ``w``, kept for the ``close`` that follows in this thread.

        A loss calls ``represent`` and then ``classify`` with the same vector. Two splits would mean two gradients of
        full length and their sum: 5 % of the training time of a CNN.
        """
        views = self.views(w)
        # Views made without a graph must not serve a call that needs one, and cost nothing to make again.
        self._opened.pair = (w, views) if w.requires_grad and torch.is_grad_enabled() else None
        return views

    def close(self, w: Vector) -> Views:
        """The views that ``open`` made of this very vector, or new ones; nothing is kept any longer."""
        pair: tuple[Vector, Views] | None = getattr(self._opened, "pair", None)
        self._opened.pair = None
        return pair[1] if pair is not None and pair[0] is w else self.views(w)
