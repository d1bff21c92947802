"""FedVARP: the last updates of all clients as a control variate (Jhunjhunwala et al., UAI 2022).

What is new: the mean over those who took part is corrected by what *all* clients last sent, which takes out the
variance of who happened to be there:  step = mean over S of (Delta_k - y_k)  +  mean over all of y_k.
The table of y_k is a running mean: see differences.py.
"""

from __future__ import annotations

import torch

from pmfl.core.method import Method, ServerRule
from pmfl.core.params import Rate
from pmfl.core.types import Round, Seen, Vector
from pmfl.methods.differences import send_difference


def control_variate(server_lr: float) -> ServerRule[Vector]:
    """W <- W + eta_g * (step + mean), where mean is that of the y_k before this round; W stays if nobody came."""

    def apply(mean: Vector, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Vector]:
        share = int(seen.took_part.sum()) / now.clients
        return w + server_lr * (step + mean) if share else w, mean + share * step

    return ServerRule(init=torch.zeros_like, apply=apply)


def fedvarp(*, server_lr: Rate = 1.0) -> Method:
    """The mean update of those who took part, corrected by the last updates of all.

    server_lr: eta_g, the global learning rate
    """
    return Method(name="fedvarp", client=send_difference(), server=control_variate(server_lr))
