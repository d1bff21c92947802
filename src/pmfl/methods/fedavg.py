"""FedAvg: local SGD, then the mean of the updates.

Under participation heterogeneity "the mean" has several meanings, and they converge to different points:
  participants   over those who took part; biased towards clients that are often there
  all            over all K nodes, absent ones counting as zero; the same bias, smaller steps
  known          each update divided by its client's true rate p_k; unbiased, but needs to know p_k
  samples        over those who took part, by their number of samples
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pmfl.core.method import Method, WeighRule, add_step, node_mean, participant_mean
from pmfl.core.params import Rate
from pmfl.core.types import Round, Seen
from pmfl.errors import MethodError

Mean = Literal["participants", "all", "known", "samples"]


def _by_known_rate(state: tuple[()], seen: Seen, now: Round) -> tuple[Tensor, tuple[()]]:
    if now.rates is None:
        raise MethodError(
            "fedavg with mean = 'known' needs the true participation rates, and here nobody knows them",
            hint="use method fedau, which estimates them, or a drawn participation pattern",
        )
    return seen.took_part.double() / now.rates.double().clamp(min=torch.finfo(torch.float64).tiny) / now.clients, state


def _by_samples(state: tuple[()], seen: Seen, now: Round) -> tuple[Tensor, tuple[()]]:
    weights = torch.zeros(now.clients, dtype=torch.float64)
    if seen.clients.numel():
        samples = seen.scalars["samples"].double()
        weights[seen.clients] = samples / samples.sum()
    return weights, state


known_rates: WeighRule[tuple[()]] = WeighRule(init=lambda clients: (), apply=_by_known_rate)
by_samples: WeighRule[tuple[()]] = WeighRule(init=lambda clients: (), apply=_by_samples)

MEANS = {"participants": participant_mean, "all": node_mean, "known": known_rates, "samples": by_samples}


def fedavg(*, mean: Mean = "participants", server_lr: Rate = 1.0) -> Method:
    """Local SGD and the mean of the updates (McMahan et al., 2017).

    mean: what the mean is taken over: "participants", "all", "known" (1/p_k) or "samples"
    server_lr: eta_g, the global learning rate
    """
    return Method(name="fedavg", weigh=MEANS[mean], server=add_step(server_lr))
