"""Representations by models that no longer change, for many mini-batches in one forward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pmfl.core.types import Batch, Model, Vector


class Frozen(NamedTuple):
    """One model's representations of some of a participation's mini-batches."""

    first: int
    z_EBD: Tensor

    def at(self, e: int) -> Tensor:
        """The representations of mini-batch ``e``."""
        return self.z_EBD[e - self.first]


@torch.no_grad()
def represent_frozen(model: Model, w: Vector, batches: Batch, first: int, end: int) -> Frozen:
    """Mini-batches ``first`` to ``end`` (exclusive) under ``w``, in evaluation mode."""
    x = batches.x[first:end]
    if x.shape[0] == 0:
        return Frozen(first, x)
    z = model.represent(w, x.flatten(0, 1), ())
    return Frozen(first, z.reshape(*x.shape[:2], *z.shape[1:]))
