"""The workload that rounds are timed on: noise in the shape of CIFAR-10, and exactly so many participants a round.

Every client holds 200 images and does E iterations of B of them. What the images show does not matter to the time.
Everything here has a name that a study can use, so that the workload is an ordinary run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.params import Size
from pmfl.errors import SpecError
from pmfl.study.spec import RunSpec, run_spec
from pmfl.world.datasets import Dataset, IntArray, from_arrays
from pmfl.world.participation import Pattern
from pmfl.world.partition import Partition

SAMPLES, PER_CLIENT, TEST, CLASSES = 50_000, 200, 10_000, 10
HERE = "pmfl.study.bench.workload"
ENDLESS = 10**6  # rounds of which only the first few are played
EVALUATED = 10  # rounds between two evaluations
RATE = 0.01  # of learning: noise cannot be learned, and must not make a long benchmark diverge


def images() -> Dataset:
    """Noise in the shape of CIFAR-10: 50,000 images to train on, 10,000 to test."""
    rng = Key.root(0).fold("bench").numpy()
    x = rng.integers(0, 256, (SAMPLES + TEST, 32, 32, 3), dtype=np.uint8)
    y = rng.integers(0, CLASSES, SAMPLES + TEST)
    labels = [str(label) for label in range(CLASSES)]
    return from_arrays(x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:], name="noise", labels=labels)


def even(y: IntArray, classes: int, clients: int, key: Key, users: IntArray | None = None) -> Partition:
    """Client k holds images 200 k to 200 k + 199, counted around."""
    owned = tuple(np.sort(np.arange(PER_CLIENT * k, PER_CLIENT * (k + 1)) % len(y)) for k in range(clients))
    mix = np.stack([np.bincount(y[mine], minlength=classes) / PER_CLIENT for mine in owned])
    return Partition(owned, mix)


def exactly(rates: np.ndarray, key: Key, *, participants: Size) -> Pattern:
    """So many clients in every round, any of them.

    participants: how many
    """
    clients = len(rates)
    if participants > clients:
        raise SpecError(f"{participants} participants of {clients} clients", hint="ask for fewer, or more clients")

    def row(state: Any, t: int) -> tuple[Tensor, Any]:
        here = torch.zeros(clients, dtype=torch.bool)
        here[torch.from_numpy(key.fold("round", t).numpy().choice(clients, participants, replace=False))] = True
        return here, state

    return Pattern(lambda: (), row, np.full(clients, participants / clients))


def workload(
    method: str = "fedavg",
    *,
    model: str = "cnn-cifar10",
    clients: int = 250,
    participants: int = 25,
    iterations: int = 5,
    batch: int = 16,
    engine: dict[str, Any] | None = None,
) -> RunSpec:
    """A run of the workload; by default the one that every number of the benchmarks is for.

    >>> workload().participation.pattern.params
    {'participants': 25}
    """
    return run_spec(
        {
            "method": method,
            "data": {"dataset": f"{HERE}:images", "clients": clients, "partition": f"{HERE}:even", "augment": "none"},
            "participation": {"pattern": {"name": f"{HERE}:exactly", "participants": participants}},
            "training": {
                "rounds": ENDLESS,
                "iterations": iterations,
                "batch_size": batch,
                "client_lr": RATE,
                "model": model,
            },
            "evaluation": {"every": EVALUATED},
            "engine": engine or {},
        },
        where="bench",
    )
