"""A method of your own: FedAvg with momentum on the server (FedAvgM; Hsu, Qi and Brown, 2019), in one rule.

    python examples/02_your_method.py                         its checks, as in your own test suite
    pmfl check ./examples/02_your_method.py:fedavgm           the same from the command line

In a study, `name = "./examples/02_your_method.py:fedavgm"` stands where the name of a built-in method would.
"""

from __future__ import annotations

import torch

from pmfl.core.method import Method, ServerRule
from pmfl.core.params import Rate, Share
from pmfl.core.types import Round, Seen, Vector
from pmfl.testing import check_method


def momentum(*, decay: float, server_lr: float) -> ServerRule[Vector]:
    """v <- decay * v + step, W <- W + eta_g * v; a round in which nobody took part leaves both as they are."""

    def init(w: Vector) -> Vector:
        return torch.zeros_like(w)

    def apply(v: Vector, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Vector]:
        if not seen.took_part.any():
            return w, v
        v = decay * v + step  # a new vector: rules never change what they were given
        return w + server_lr * v, v

    return ServerRule(init=init, apply=apply)


def fedavgm(*, decay: Share = 0.9, server_lr: Rate = 1.0) -> Method:
    """FedAvg with momentum on the server.

    decay: how much of the past rounds' direction is kept, from 0 (plain FedAvg) to 1
    server_lr: eta_g, the global learning rate
    """
    return Method(name="fedavgm", server=momentum(decay=decay, server_lr=server_lr))


if __name__ == "__main__":
    report = check_method(fedavgm)
    print(report)
    report.raise_if_failed()
