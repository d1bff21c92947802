"""MIFA: let the last update of an absent client stand in for it (Gu et al., NeurIPS 2021).

What is new: the server moves by the mean over *all* clients of their last updates, however old they are;
a round without participants repeats the move. The table of updates is a running mean: see differences.py.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pmfl.core.method import Method, SelectRule, ServerRule, everyone_available, node_mean
from pmfl.core.params import Rate
from pmfl.core.types import Round, Seen, Vector
from pmfl.methods.differences import Store, send_difference

Start = Literal["zeros", "wait_for_all"]


def _all_at_once(met: Tensor, available: Tensor, last: Seen, now: Round) -> tuple[Tensor, Tensor]:
    met_now = met | available
    fill = met_now.all().expand_as(available)  # the first time everybody has been met, all of them train at W^0
    return torch.where(met.all(), available, fill), met_now


wait_for_all: SelectRule[Tensor] = SelectRule(
    init=lambda clients: torch.zeros(clients, dtype=torch.bool),  # [K] who has been available so far
    apply=_all_at_once,
)


def mean_of_last(server_lr: float, store: Store) -> ServerRule[Vector]:
    """W <- W + eta_g * mean of all y_k, times this round's eta_l if what is stored was divided by it."""

    def apply(mean: Vector, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Vector]:
        mean = mean + step
        scale = now.client_lr if store == "delta_over_lr" else 1.0
        return w + server_lr * scale * mean, mean

    return ServerRule(init=torch.zeros_like, apply=apply)


def mifa(*, start: Start = "zeros", store: Store = "delta", server_lr: Rate = 1.0) -> Method:
    """The mean of every client's last update, however long ago it was.

    start: "zeros" for clients not heard of yet, or "wait_for_all": no move before everybody has been available
    store: the last "delta", or "delta_over_lr", which the rate of the round that uses it multiplies again
    server_lr: eta_g, the global learning rate
    """
    return Method(
        name="mifa",
        client=send_difference(store),
        select=wait_for_all if start == "wait_for_all" else everyone_available,
        weigh=node_mean,
        server=mean_of_last(server_lr, store),
    )
