"""What is measured of a round, and how a run's curve becomes a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from pmfl.core.method import Replies, Total
from pmfl.core.types import Seen, Vector
from pmfl.engines.local import Scores

FloatArray = npt.NDArray[np.float64]


def split_metrics(split: str, scores: Scores) -> dict[str, float]:
    """Accuracy and loss as means over samples."""
    return {
        f"{split}/accuracy": float(scores.correct.double().mean()),
        f"{split}/loss": float(scores.loss.mean()),
    }


def client_metrics(scores: Scores, owner: npt.NDArray[np.int64], clients: int) -> dict[str, FloatArray]:
    """Accuracy and loss of the global model on each client's own training samples."""
    count = np.bincount(owner, minlength=clients)
    with np.errstate(invalid="ignore"):
        return {
            "accuracy": np.bincount(owner, scores.correct.numpy(), minlength=clients) / count,
            "loss": np.bincount(owner, scores.loss.numpy(), minlength=clients) / count,
        }


def deviation(replies: Replies) -> dict[str, float]:
    """Dev^t = sum over participants of 1 - Sim(Delta_k, mean Delta), and its mean; zero updates are left out."""
    apart = [distance for distance in replies.measure(from_mean).tolist() if distance == distance]
    return {"local/deviation": sum(apart), "local/deviation_mean": sum(apart) / len(apart)} if apart else {}


def from_mean(updates: Sequence[Vector], total: Total) -> Tensor:
    """1 - Sim(Delta_k, mean Delta) of each of these updates, where ``total`` sums over all; NaN for a zero one."""
    centre = total([1.0] * len(updates))  # it has the direction of the mean; all ranks add it up, whoever has updates
    if not updates:
        return torch.zeros(0, dtype=torch.float64)
    similar = torch.stack([cosine_similarity(update.double(), centre, dim=0) for update in updates])
    moved = torch.stack([update.any() for update in updates])
    return torch.where(moved, 1 - similar, torch.nan).cpu()  # a device is waited for once


def training_metrics(seen: Seen) -> dict[str, float]:
    """How many took part, and what they reported of the first local iteration."""
    reported = {
        f"local/{name.removesuffix('/first')}": seen.mean(name) for name in seen.scalars if name.endswith("/first")
    }
    return {"local/clients": float(seen.took_part.sum()), **reported}


def summary_of(curve: Sequence[float], *, lower_is_better: bool = False) -> dict[str, float]:
    """The three ways in which a curve is reported; the best-of ones look at the curve they judge.

    >>> summary_of([0.1, 0.5, 0.4])["final"]
    0.4
    """
    best = sorted(curve, reverse=not lower_is_better)[:5]
    last = curve[-10:]
    return {"final": curve[-1], "last10_mean": sum(last) / len(last), "top5_mean": sum(best) / len(best)}


def mean_interval(values: Sequence[float]) -> Mapping[str, float]:
    """Mean and 95 % interval over seeds (Student's t); without an interval for a single value."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return {"n": n, "mean": mean, "low": float("nan"), "high": float("nan")}
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.975)) * float(np.std(values, ddof=1)) / n**0.5
    return {"n": n, "mean": mean, "low": mean - half, "high": mean + half}
