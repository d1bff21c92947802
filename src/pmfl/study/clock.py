"""How long training and aggregation take, by a clock: what no two machines agree on, so only ratios say something.

clock/train      milliseconds of one client's participation, mean over those of the round
clock/aggregate  milliseconds of the round besides training: choosing, weighing, summing, moving the model
clock/flops      operations of one participation with a full memory, counted: the same on every machine
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from pmfl.core.keys import Key
from pmfl.core.method import Replies
from pmfl.core.round import play
from pmfl.core.types import Downlink, Round
from pmfl.engines.local import exactly
from pmfl.study.cost import client_flops
from pmfl.study.made import Numbers
from pmfl.study.run import Run, State
from pmfl.study.spec import RunSpec
from pmfl.world.datasets import Dataset, from_arrays
from pmfl.world.sources.known import KNOWN

PER_CLIENT = 40  # samples: enough for a mini-batch at the paper's size


class Stopwatch:
    """An engine whose training is timed."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.seconds = engine, 0.0

    def train(self, sent: Downlink, chosen: torch.Tensor, now: Round) -> Replies:
        """As the engine does it."""
        began = time.perf_counter()
        replies: Replies = self.engine.train(sent, chosen, now)
        self.seconds += time.perf_counter() - began
        return replies


def clock_numbers(spec: RunSpec) -> Numbers:
    """A few rounds by the clock, without evaluation; images are noise of the right shape, since they do not matter."""
    run = Run(spec, dataset=_noise(spec))
    rows: list[tuple[int, str, str, float]] = []
    try:
        with exactly():
            for t in range(spec.training.rounds):
                rows += [(t, "clock", *pair) for pair in _timed(run, t)]
    finally:
        run.close()
    return [*rows, (spec.training.rounds - 1, "clock", "flops", float(client_flops(spec)))], {}


def _timed(run: Run, t: int) -> list[tuple[str, float]]:
    training = run.spec.training
    now = Round(t, training.rounds, run.spec.data.clients, training.client_lr, run.key.fold("round", t))
    available, pattern = run.world.pattern.row(run.state.pattern, t)
    engine, began = Stopwatch(run.engine), time.perf_counter()
    server, outcome = play(run.method, engine, run.state.server, available, now)
    seconds = time.perf_counter() - began
    run.state = State(server, pattern)
    came = int(outcome.replies.seen.took_part.sum())
    found = [("aggregate", 1000 * (seconds - engine.seconds))]
    return [*found, ("train", 1000 * engine.seconds / came)] if came else found


def _noise(spec: RunSpec) -> Dataset | None:
    """Images of the data set's shape, so that it need not be there; None where it is not known by name."""
    known = KNOWN.get(spec.data.dataset)
    if known is None:
        return None
    n = PER_CLIENT * spec.data.clients
    x = Key.root(0).fold("noise").numpy().integers(0, 256, (n, *known.shape), np.uint8)
    y = np.arange(n) % known.classes
    few, labels = slice(known.classes), [str(k) for k in range(known.classes)]
    return from_arrays(x, y, x[few], y[few], labels=labels, augment=known.augment)
