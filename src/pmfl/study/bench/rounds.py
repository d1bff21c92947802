"""Rounds of the workload, timed: one run by itself, or several that take turns so that the machine treats all alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from pmfl.core.keys import Key
from pmfl.core.tree import map_tree
from pmfl.core.types import Round
from pmfl.engines.local import LocalEngine, exactly
from pmfl.errors import SpecError
from pmfl.study.bench.ceiling import ceiling
from pmfl.study.bench.process import Peak, age, machine
from pmfl.study.bench.watch import Clock, Watched, shares
from pmfl.study.bench.workload import EVALUATED
from pmfl.study.cost import client_flops
from pmfl.study.run import Run
from pmfl.study.spec import RunSpec

WARM = 2  # rounds that are played before any is timed
FILLING = 3  # participations after which a client's memory is as large as it gets
EVALUATIONS = 3


def engine_of(text: str, profile: str = "exact") -> tuple[dict[str, Any], int]:
    """The [engine] section that ``local:2``, ``lanes:8`` or ``lanes:25@cuda`` stands for, and how many workers play.

    >>> engine_of("local:2")
    ({'profile': 'exact'}, 2)
    """
    engine, _, device = text.partition("@")
    kind, _, count = engine.partition(":")
    if kind not in ("local", "lanes") or not (count or "1").isdigit() or count == "0" or (device and kind == "local"):
        hint = "local, local:WORKERS, lanes:WIDTH or lanes:WIDTH@DEVICE; `pmfl bench compare` times ranks"
        raise SpecError(f"--engine {text}", hint=hint)
    if kind == "lanes":
        return {"profile": profile, "lanes": int(count or 8), "device": device or "cpu"}, 1
    return {"profile": profile}, int(count or cores())


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def time_run(spec: RunSpec, *, rounds: int, workers: int) -> dict[str, Any]:
    """One run of the workload: its rounds, where their time goes, and how far that is from what the machine can do."""
    with Peak(os.getpid()) as peak:
        run = Run(spec, workers=workers)
        started = age()
        first = play_rounds(run, 1)[0]
        fill(run)
        play_rounds(run, WARM - 1)
        cpu = time.process_time()
        seconds = play_rounds(run, rounds)
        cpu = time.process_time() - cpu
        evaluation = time_evaluation(run)
        where = where_time_goes(run, workers) if isinstance(run.engine, LocalEngine) else {}
        run.close()
    median = statistics.median(seconds)
    flops = client_flops(spec) * spec.participation.pattern.params["participants"]
    device = spec.engine.device
    together = 1 if device == "cpu" else spec.participation.pattern.params["participants"]
    limits = ceiling(workers, spec.training.batch_size * together, device)
    return {
        "method": spec.method.name,
        "engine": spec.engine.model_dump(),
        "workers": workers,
        "workload": _workload(spec),
        "seconds": {"median": median, "min": min(seconds), "all": seconds},
        "cpu seconds": cpu / rounds,
        "rounds per second": 1 / median,
        "start-up": started,
        "first round": first,
        "evaluation of 10,000 images": evaluation,
        "peak MB": peak.bytes / 2**20,
        "shares": where,
        "GFLOP a round": flops / 1e9,
        "GFLOP/s": flops / median / 1e9,
        "ceiling GFLOP/s": limits,
        "of the convolution ceiling": flops / median / 1e9 / limits["convolution"],
        "machine": machine(),
    }


def take_turns(specs: Mapping[str, RunSpec], *, rounds: int, workers: int) -> dict[str, dict[str, Any]]:
    """Several runs in one process, a round of each in turn; by name: their seconds, and those after the training."""
    runs = {name: Run(spec, workers=workers) for name, spec in specs.items()}
    clocks, found = dict[str, Clock](), {name: list[float]() for name in specs}
    for name, run in runs.items():
        fill(run)
        play_rounds(run, WARM)
        clocks[name] = _watch(run)
    for _ in range(rounds):
        for name, run in runs.items():
            found[name] += play_rounds(run, 1)
    table = {}
    for name, run in runs.items():
        spent = clocks[name].seconds
        after = (sum(found[name]) - spent["train"] - spent["evaluation"]) / rounds
        clients = rounds * run.spec.participation.pattern.params["participants"]
        table[name] = {
            "median": statistics.median(found[name]),
            "all": found[name],
            "training of a client": spent["train"] * workers / clients,
            "after training": after,
            "weighted sum": spent["aggregation"] / rounds,
        }
        run.close()
    return table


def time_evaluation(run: Run) -> float:
    """Seconds to evaluate the global model on 10,000 images."""
    dataset, found = run.world.dataset, []
    with exactly():
        for _ in range(EVALUATIONS):
            began = time.perf_counter()
            run.engine.evaluate(run.w, dataset.test, dataset)
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def where_time_goes(run: Run, workers: int) -> dict[str, float]:
    """The shares of as many rounds as there are from one evaluation to the next."""
    clock = _watch(run)
    return shares(clock, sum(play_rounds(run, EVALUATED)), workers)


def fill(run: Run) -> None:
    """Give every client the memory of one that has taken part before, so that no round is cheaper than later ones."""
    spec, server = run.spec, run.state.server
    now = Round(0, spec.training.rounds, spec.data.clients, spec.training.client_lr, Key.root(1))
    one = torch.zeros(spec.data.clients, dtype=torch.bool)
    one[0] = True
    sent = run.method.server.send(server.server, server.w, now)
    with exactly():
        for t in range(FILLING):
            run.engine.train(sent, one, now._replace(t=t))
    memories, rule = run.engine.memories, run.method.client
    full = memories.get(0, lambda: rule.init(server.w))
    for k in range(1, spec.data.clients):
        memories.put(k, map_tree(lambda path, leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, full))


def log_rounds(spec: RunSpec, *, rounds: int, workers: int) -> dict[str, Any]:
    """What other programs are compared by: start-up, and the seconds of each round from the first on."""
    run = Run(spec, workers=workers)
    started, seconds = age(), play_rounds(run, rounds)
    run.close()
    return {"startup": started, "rounds": seconds}


def play_rounds(run: Run, n: int) -> list[float]:
    """Play ``n`` rounds; the seconds of each."""
    rounds, found = iter(run), []
    for _ in range(n):
        began = time.perf_counter()
        next(rounds)
        found.append(time.perf_counter() - began)
    rounds.close()  # type: ignore[attr-defined]
    return found


def _watch(run: Run) -> Clock:
    clock = Clock()
    assert isinstance(run.engine, LocalEngine)
    run.engine = Watched(run.engine, clock)  # type: ignore[assignment]
    return clock


def _workload(spec: RunSpec) -> dict[str, Any]:
    return {
        "model": spec.training.model.name,
        "clients": spec.data.clients,
        "participants": spec.participation.pattern.params["participants"],
        "iterations": spec.training.iterations,
        "batch": spec.training.batch_size,
    }
