"""FedProx: a proximal term holds local models near the received one (Li et al., MLSys 2020)."""

from __future__ import annotations

from typing import Any

from pmfl.core.method import ClientRule, Method, add_step
from pmfl.core.params import Rate, Weight
from pmfl.core.types import Local, Model, Vector


def proximal_client(proximal: float) -> ClientRule[tuple[()]]:
    """SGD on l_cro + (mu / 2) ||w - W^t||^2, with the gradient of the second term in closed form.

    The losses it reports are l_cro, as for the methods without this term.
    """

    def step(model: Model, local: Local[tuple[()]], gradient: Vector) -> tuple[Vector, Any]:
        return local.w - local.sent.lr * (gradient + proximal * (local.w - local.sent.w)), local.scratch

    return ClientRule(init=lambda w: (), step=step)


def fedprox(*, proximal: Weight = 0.01, server_lr: Rate = 1.0) -> Method:
    """Local SGD with a pull towards the received model, and the mean of the updates.

    proximal: mu of the proximal term (mu / 2) ||w - W^t||^2
    server_lr: eta_g, the global learning rate
    """
    return Method(name="fedprox", client=proximal_client(proximal), server=add_step(server_lr))
