"""Exact weighted sums, in fixed point.

Every term is rounded to a multiple of 2^-40 and added as a 64-bit integer. Integer addition is associative:
partial sums may be formed in any order, on any number of ranks, over any arrival order of messages, and give
the same bits. It is also the arithmetic that secure aggregation needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pmfl.core.types import Vector
from pmfl.errors import Diverged

FIXED_POINT = 2.0**40  # resolution 1e-12
RANGE = 2.0**22  # |sum of terms| stays below it, so int64 cannot overflow
SMALL = 2.0**12  # integers of float64 end at 2^53: sums of terms below this are exact there too
BLOCK = 1 << 15  # entries at a time: the float64 and int64 scratch stays in cache
WIDE = 1 << 20  # the same on a device with room for it


def exact_weighted_sum(
    weights: Sequence[float], vectors: Sequence[Vector], size: int, bound: float = float("inf")
) -> Tensor:
    """The fixed-point sum [P] of weights [n] times vectors n x [P]; add partial sums as integers.

    bound: what the magnitudes of an entry's terms add up to, at most; where it is small, the same integers are added
        in floating point, in half the time

    >>> total = exact_weighted_sum([0.5, 2.0], [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])], 2)
    >>> from_fixed_point(total, torch.float32)
    tensor([ 6.5000, -1.0000])
    """
    device = vectors[0].device if len(vectors) else torch.device("cpu")
    total = torch.zeros(size, dtype=torch.int64, device=device)
    block = BLOCK if device.type == "cpu" else max(size, 1)
    for start in range(0, size, block):
        into = total[start : start + block]
        if len(vectors) and bound < SMALL and device.type == "cpu":
            into.copy_(_sum_in_float(weights, [vector[start : start + block] for vector in vectors]))
            continue
        for weight, vector in zip(weights, vectors, strict=True):
            terms = vector[start : start + block].to(torch.float64, copy=True)
            into += terms.mul_(weight * FIXED_POINT).round_().long()
    return total


def sum_of_rows(weights: Sequence[float], rows: Tensor) -> Tensor:
    """The same integers from rows [n, P] on a wide device, which likes few operations on many numbers."""
    scales = torch.tensor(weights, dtype=torch.float64).mul_(FIXED_POINT).to(rows.device)[:, None]
    parts = [(part.double() * scales).round_().long().sum(0) for part in torch.split(rows, WIDE, dim=1)]
    return torch.cat(parts)


def _sum_in_float(weights: Sequence[float], parts: Sequence[Vector]) -> Tensor:
    total, terms = torch.zeros_like(parts[0], dtype=torch.float64), torch.empty_like(parts[0], dtype=torch.float64)
    for weight, part in zip(weights, parts, strict=True):
        total += terms.copy_(part).mul_(weight * FIXED_POINT).round_()
    return total


def from_fixed_point(total: Tensor, dtype: torch.dtype) -> Tensor:
    """Back to floating point."""
    return total.double().div_(FIXED_POINT).to(dtype)


def peaks(vectors: Sequence[Vector] | Tensor) -> Tensor:
    """The largest magnitude in each vector, [n] float64 on the CPU; NaN where there is one."""
    if not len(vectors) or not vectors[0].numel():
        return torch.zeros(len(vectors), dtype=torch.float64)
    found = vectors.abs().amax(1) if isinstance(vectors, Tensor) else torch.stack([v.abs().amax() for v in vectors])
    return found.double().cpu()


def check_peaks(weights: Sequence[float], peaks: Tensor, clients: Sequence[int], t: int) -> None:
    """Raise ``Diverged`` naming every client whose weighted vector is not finite, or too large to be summed."""
    sizes = peaks * torch.tensor(weights, dtype=torch.float64).abs()
    if not len(sizes) or bool(sizes.sum() < RANGE):  # false for NaN as well
        return
    wrong = ~(sizes < RANGE / (2 * len(sizes)))  # at least one: the sum of smaller ones is far from the range
    raise Diverged(round=t, clients=[k for k, bad in zip(clients, wrong.tolist(), strict=True) if bad])


def check_range(weights: Sequence[float], vectors: Sequence[Vector] | Tensor, clients: Sequence[int], t: int) -> None:
    """``check_peaks`` of vectors that are all here."""
    check_peaks(weights, peaks(vectors), clients, t)
