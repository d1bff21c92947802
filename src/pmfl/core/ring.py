"""The last N vectors, oldest first: the paper's sliding buffers, local and global."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pmfl.core.types import Vector


class Ring(NamedTuple):
    """Rows are filled from the end: the newest is ``rows[-1]``, the valid ones are the last ``filled``."""

    rows: Tensor  # [N, P]
    filled: Tensor  # [] int64, at most N

    @property
    def valid(self) -> Tensor:
        """Which rows hold a vector, [N] bool."""
        n = self.rows.shape[0]
        return torch.arange(n, device=self.rows.device) >= n - self.filled

    def push(self, *vectors: Vector) -> Ring:
        """Append vectors, the newest last; the oldest fall out."""
        n = self.rows.shape[0]
        newest = vectors[max(len(vectors) - n, 0) :]
        if not newest:
            return self
        rows = torch.cat([self.rows[len(newest) :], *(vector[None] for vector in newest)])
        return Ring(rows, (self.filled + len(newest)).clamp(max=n))

    def mean(self, otherwise: Vector) -> Vector:
        """The mean of the valid rows, or ``otherwise`` when there is none."""
        total = (self.rows * self.valid[:, None]).sum(0)
        return torch.where(self.filled > 0, total / self.filled.clamp(min=1), otherwise)


def empty_ring(n: int, like: Vector) -> Ring:
    """A ring for ``n`` vectors shaped like ``like``.

    >>> ring = empty_ring(2, torch.zeros(1)).push(torch.ones(1))
    >>> ring.valid.tolist(), ring.rows.tolist()
    ([False, True], [[0.0], [1.0]])
    """
    return Ring(like.new_zeros((n, *like.shape)), torch.zeros((), dtype=torch.int64, device=like.device))
