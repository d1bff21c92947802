"""The client rule of MIFA and FedVARP: send how the update differs from the one before.

The textbook server keeps the last update of every client in a table [K, P], and uses its mean. Here every client
keeps its own row and sends the change of it, so that the server needs the mean alone: [P].
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from pmfl.core.method import ClientRule
from pmfl.core.types import Batch, Local, Model, Uplink, Vector

Store = Literal["delta", "delta_over_lr"]


class Row(NamedTuple):
    """What a client keeps between participations: its row of the table, zero before the first."""

    y: Vector


def send_difference(store: Store = "delta") -> ClientRule[Row]:
    """y_k <- Delta_k, or Delta_k / eta_l; what goes to the server is the change of y_k."""

    def init(w: Vector) -> Row:
        return Row(torch.zeros_like(w))

    def reply(model: Model, local: Local[Row], delta: Vector, check: Batch | None) -> Uplink:
        y = delta / local.sent.lr if store == "delta_over_lr" else delta
        return Uplink(y - local.memory.y, Row(y), {}, delta)

    return ClientRule(init=init, reply=reply, sends_changes=True)
