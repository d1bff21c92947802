"""FedAU: weigh each client by its average participation interval (Wang and Ji, ICLR 2024).

What is new: 1/p_k is unknown, but the mean number of rounds between two participations of a client estimates it.
A client absent for ``cutoff`` rounds counts as if it had taken part, which bounds its weight.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pmfl.core.method import Method, WeighRule, add_step
from pmfl.core.params import Count, Rate
from pmfl.core.types import Round, Seen

Timing = Literal["inclusive", "predictive"]


class Intervals(NamedTuple):
    """What the server remembers of every client's participation."""

    q: Tensor  # [K] rounds since the last event
    r: Tensor  # [K] number of events: participations and cutoffs
    x: Tensor  # [K] mean interval between events; NaN before the first


def average_interval(cutoff: int, timing: Timing) -> WeighRule[Intervals]:
    """x_k / K, where x_k is the mean interval between the events of client k.

    ``inclusive`` counts the interval that this participation ends; ``predictive`` uses only those that ended
    before (and 1 while there is none), so that a weight never depends on the participation it multiplies.
    """

    def init(clients: int) -> Intervals:
        zeros = torch.zeros(clients, dtype=torch.int64)
        return Intervals(zeros, zeros, torch.full((clients,), torch.nan, dtype=torch.float64))

    def apply(before: Intervals, seen: Seen, now: Round) -> tuple[Tensor, Intervals]:
        q = before.q + 1
        event = seen.took_part | (q == cutoff)
        mean = (before.r * before.x.nan_to_num(0.0) + q) / (before.r + 1)
        after = Intervals(q=torch.where(event, 0, q), r=before.r + event, x=torch.where(event, mean, before.x))
        x = after.x if timing == "inclusive" else before.x.nan_to_num(1.0)
        return x / now.clients, after

    return WeighRule(init=init, apply=apply, importance=lambda state: state.x)


def fedau(*, cutoff: Count = 50, timing: Timing = "predictive", server_lr: Rate = 1.0) -> Method:
    """Weights from the average participation interval.

    cutoff: C, the longest interval that counts; 0 for none
    timing: "predictive" (intervals that ended before this round) or "inclusive" (this one too)
    server_lr: eta_g, the global learning rate
    """
    return Method(name="fedau", weigh=average_interval(cutoff, timing), server=add_step(server_lr))
