"""Participation that is observed, not drawn: the clients are machines, and there when they are there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.errors import SpecError
from pmfl.world.participation import Pattern
from pmfl.world.partition import FloatArray


class Tally(NamedTuple):
    """What a server must not forget of its clients, each [K] int64."""

    counted: Tensor  # the last round whose reply was counted; -1 before the first
    replies: Tensor  # how many were counted
    late: Tensor  # came after the round was over, and were discarded
    refused: Tensor  # were not what a reply should be
    lost: Tensor  # times the network reported an error instead of a reply
    fresh: Tensor  # times the client had lost its memory and started with a new one


def new_tally(clients: int) -> Tally:
    """Before the first round."""
    return Tally(torch.full((clients,), -1), *(torch.zeros(clients, dtype=torch.int64) for _ in Tally._fields[1:]))


def live(rates: FloatArray, key: Key) -> Pattern:
    """Nothing is drawn: whoever is there takes part. For runs between machines.

    The true rates are known to nobody, so they are NaN.
    """

    def row(state: Tally, t: int) -> tuple[Tensor, Tally]:
        raise SpecError(
            'participation.pattern = "live" observes machines, and here there are none',
            hint="`pmfl deploy` runs it; to simulate, choose a drawn pattern such as bernoulli",
            code="S163",
        )

    return Pattern(lambda: new_tally(len(rates)), row, np.full(len(rates), np.nan))
