"""Two loops without a framework, to compare with: how FedAvg is written at first, and how by somebody who measures.

Run as ``python -m pmfl.study.bench.references naive|tuned``; both do the workload's rounds of FedAvg with torch alone.
``exact`` and ``fast`` are this library's own profiles, timed in the same way, and with ``-ranks`` its processes.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from pmfl.core.keys import Key
from pmfl.study.bench.process import age
from pmfl.study.bench.ranked import in_ranks
from pmfl.study.bench.rounds import cores, engine_of, log_rounds
from pmfl.study.bench.workload import PER_CLIENT, images, workload

CLIENTS, PARTICIPANTS, ITERATIONS, BATCH, RATE = 250, 25, 5, 16, 0.1


def network() -> nn.Sequential:
    """The paper's network for CIFAR-10 as anyone would write it."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def samples() -> tuple[Tensor, Tensor]:
    """The workload's images, channels first, and labels."""
    train = images().train
    return torch.from_numpy(np.ascontiguousarray(train.x.transpose(0, 3, 1, 2))), torch.from_numpy(train.y)


def normal(x: Tensor) -> Tensor:
    """From bytes to numbers between -1 and 1."""
    return x.float().sub_(127.5).div_(127.5)


def draw(t: int, k: int) -> Tensor:
    """Which images client ``k`` looks at in round ``t``, [iterations, batch]."""
    rows = Key.root(0).fold("work", t, k).numpy().choice(PER_CLIENT, ITERATIONS * BATCH, replace=False)
    return torch.from_numpy(rows + k * PER_CLIENT).view(ITERATIONS, BATCH)


def participants(t: int) -> list[int]:
    """Who takes part in round ``t``."""
    chosen: list[int] = Key.root(0).fold("who", t).numpy().choice(CLIENTS, PARTICIPANTS, replace=False).tolist()
    return chosen


def naive(rounds: int) -> dict[str, Any]:
    """One process, torch's own number of threads, state dictionaries, an optimiser per client."""
    x, y = samples()
    server, model, loss = network(), network(), nn.CrossEntropyLoss()
    started, seconds = age(), []
    for t in range(rounds):
        began = time.perf_counter()
        first = copy.deepcopy(server.state_dict())
        total = {name: torch.zeros_like(value) for name, value in first.items()}
        for k in participants(t):
            model.load_state_dict(first)
            optimiser = optim.SGD(model.parameters(), lr=RATE)
            for rows in draw(t, k):
                optimiser.zero_grad()
                loss(model(normal(x[rows])), y[rows]).backward()
                optimiser.step()
            for name, value in model.state_dict().items():
                total[name] += value - first[name]
        server.load_state_dict({name: first[name] + total[name] / PARTICIPANTS for name in first})
        seconds.append(time.perf_counter() - began)
    return {"startup": started, "rounds": seconds}


def tuned(rounds: int) -> dict[str, Any]:
    """A process per core with one thread each, channels last, weights and sums in shared memory, fused updates."""
    workers, fork = cores(), torch.multiprocessing.get_context("fork")
    (x, y), parts = samples(), [p.detach() for p in network().parameters()]
    sums = [[torch.zeros_like(p) for p in parts] for _ in range(workers)]
    for tensor in (x, y, *parts, *(p for each in sums for p in each)):
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    turn, begin, end = fork.Value("i", 0), fork.Barrier(workers + 1), fork.Barrier(workers + 1)
    common = (rounds, x, y, parts, turn, begin, end)
    crew = [fork.Process(target=_work, args=(sums[rank], *common), daemon=True) for rank in range(workers)]
    for process in crew:
        process.start()
    started, seconds = age(), []
    for _ in range(rounds):
        began = time.perf_counter()
        turn.value = 0
        begin.wait()
        end.wait()
        for i, part in enumerate(parts):
            part.copy_(torch.stack([each[i] for each in sums]).sum(0) / PARTICIPANTS)
        seconds.append(time.perf_counter() - began)
    for process in crew:
        process.join()
    return {"startup": started, "rounds": seconds}


def _work(
    mine: list[Tensor], rounds: int, x: Tensor, y: Tensor, parts: list[Tensor], turn: Any, begin: Any, end: Any
) -> None:
    torch.set_num_threads(1)
    model = network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights = list(model.parameters())
    for t in range(rounds):
        begin.wait()
        chosen = participants(t)
        torch._foreach_zero_(mine)
        while (k := _next(turn, chosen)) is not None:
            with torch.no_grad():
                torch._foreach_copy_(weights, parts)
            for rows in draw(t, k):
                batch = normal(x[rows]).contiguous(memory_format=torch.channels_last)
                gradients = torch.autograd.grad(cross_entropy(model(batch), y[rows]), weights)
                with torch.no_grad():
                    torch._foreach_add_(weights, gradients, alpha=-RATE)
            with torch.no_grad():
                torch._foreach_add_(mine, weights)
        end.wait()


def _next(turn: Any, chosen: list[int]) -> int | None:
    """The next client that nobody has."""
    with turn.get_lock():
        turn.value += 1
        return chosen[turn.value - 1] if turn.value <= len(chosen) else None


def ours(profile: str, rounds: int) -> dict[str, Any]:
    """This library, on all cores."""
    engine, workers = engine_of("local", profile)
    return log_rounds(workload(engine=engine), rounds=rounds, workers=workers)


def ranks(profile: str, rounds: int) -> dict[str, Any]:
    """This library, in as many ranks as there are cores."""
    return in_ranks(workload(engine=engine_of("local", profile)[0]), ranks=cores(), rounds=rounds)


REFERENCES: dict[str, Callable[[int], dict[str, Any]]] = {
    "naive": naive,
    "tuned": tuned,
    "exact": functools.partial(ours, "exact"),
    "fast": functools.partial(ours, "fast"),
    "exact-ranks": functools.partial(ranks, "exact"),
    "fast-ranks": functools.partial(ranks, "fast"),
}


def main() -> None:
    """Play, and write what was seen to the file that $PB_OUT names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=sorted(REFERENCES))
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    Path(os.environ["PB_OUT"]).write_text(json.dumps(REFERENCES[given.which](given.rounds)), encoding="utf-8")


if __name__ == "__main__":
    main()
