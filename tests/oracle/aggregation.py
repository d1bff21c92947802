"""Algorithm 2 of the PMFL paper (aggregation), FedAU's weights, FedAvg's means, FedVARP and MIFA, transcribed.

``present[t][k]`` is A_k^t; ``update(t, k, w)`` is Delta_k^t of a node that received w. Every function returns
the global models W^1, W^2, ... of all rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Point: TypeAlias = list[float]
Present: TypeAlias = Sequence[Sequence[bool]]
Update: TypeAlias = Callable[[int, int, Point], Point]


@dataclass
class Node:
    """What Algorithm 2 keeps per node; x is None before the first event ("-" in the test vectors)."""

    q: int = 0
    r: int = 0
    x: float | None = None


def algorithm_2_weight(node: Node, here: bool, c: int) -> None:
    """Algorithm 2, lines 3-12, for one node."""
    node.q += 1
    if here or node.q == c:
        q_star = node.q
        node.x = float(q_star) if node.x is None else (node.r * node.x + q_star) / (node.r + 1)
        node.r += 1
        node.q = 0


def inclusive_weights(here: Sequence[bool], c: int) -> list[float | None]:
    """x_k^t of one node for every round, as Algorithm 2 has it after its line 12."""
    node, weights = Node(), []
    for mark in here:
        algorithm_2_weight(node, mark, c)
        weights.append(node.x)
    return weights


def fedau_weights(here: Sequence[bool], c: int) -> list[float]:
    """FedAU: the mean of the list of intervals that ended before each round; 1 while the list is empty."""
    intervals: list[int] = []
    weights, length = [], 0
    for mark in here:
        weights.append(sum(intervals) / len(intervals) if intervals else 1.0)
        length += 1
        if mark or length == c:
            intervals.append(length)
            length = 0
    return weights


def psi(t: int, total: int) -> float:
    """psi = 1/2 - t / (2 (T - 1)); 0 when T = 1."""
    return 1 / 2 - t / (2 * (total - 1)) if total > 1 else 0.0


@dataclass
class Models:
    """The models of a run of PMFL: what the server holds, sends and evaluates after each round."""

    held: list[Point] = field(default_factory=list)
    sent: list[Point] = field(default_factory=list)
    shown: list[Point] = field(default_factory=list)


def pmfl(
    start: Point,
    present: Present,
    update: Update,
    *,
    c: int,
    h: int,
    eta: float = 1.0,
    timing: str = "inclusive",
    history_in: str = "update",
    total: int | None = None,
) -> Models:
    """Algorithm 2 with the signs and the 1/K of the Decisions table.

    ``history_in`` other than "update": the recursion runs on the unmixed U, and the mix of the printed formula,
    with U in the place of W, is what is sent and evaluated ("broadcast"), or only what is evaluated ("evaluation").
    """
    clients, rounds = len(present[0]), len(present)
    held = [start]  # W^0, W^1, ...; or U^0, U^1, ...
    mixed = [start]
    models = Models()
    for t in range(rounds):
        sent = mixed[t] if history_in == "broadcast" else held[t]
        models.sent.append(sent)
        moved = list(held[t])
        for k in range(clients):
            if not present[t][k]:
                continue  # Delta_k^t = 0
            column = [row[k] for row in present[: t + 1]]
            x = inclusive_weights(column, c)[t] if timing == "inclusive" else fedau_weights(column, c)[t]
            assert x is not None
            delta = update(t, k, sent)
            moved = [m + eta / clients * x * d for m, d in zip(moved, delta, strict=True)]
        past = [held[t - i] for i in range(1, h) if t - i >= 0]
        new = moved
        if past:
            p = psi(t, total or rounds)
            mean = [sum(column) / len(past) for column in zip(*past, strict=True)]
            new = [(1 - p) * m + p * o for m, o in zip(moved, mean, strict=True)]
        mixed.append(new)
        held.append(new if history_in == "update" else moved)
        models.held.append(held[-1])
        models.shown.append(mixed[-1])
    return models


def fedau(start: Point, present: Present, update: Update, *, c: int, eta: float = 1.0) -> list[Point]:
    """W + eta/K sum_S omega_k Delta_k."""
    clients, w, path = len(present[0]), start, []
    weights = [fedau_weights([row[k] for row in present], c) for k in range(clients)]
    for t, row in enumerate(present):
        deltas = {k: update(t, k, w) for k in range(clients) if row[k]}
        w = [v + eta / clients * sum(weights[k][t] * deltas[k][i] for k in deltas) for i, v in enumerate(w)]
        path.append(w)
    return path


def fedavg(
    start: Point,
    present: Present,
    update: Update,
    *,
    mean: str,
    eta: float = 1.0,
    rates: Sequence[float] = (),
    samples: Sequence[float] = (),
) -> list[Point]:
    """The four means of section 1.2: participants, all, known, samples."""
    clients, w, path = len(present[0]), start, []
    for t, row in enumerate(present):
        here = [k for k in range(clients) if row[k]]
        if mean == "participants":
            share = {k: 1 / len(here) for k in here}
        elif mean == "all":
            share = dict.fromkeys(here, 1 / clients)
        elif mean == "known":
            share = {k: 1 / rates[k] / clients for k in here}
        else:
            share = {k: samples[k] / sum(samples[i] for i in here) for k in here}
        deltas = {k: update(t, k, w) for k in here}
        w = [v + eta * sum(share[k] * deltas[k][i] for k in here) for i, v in enumerate(w)]
        path.append(w)
    return path


def fedvarp(start: Point, present: Present, update: Update, *, eta: float = 1.0) -> list[Point]:
    """The table y of [K, P]; v = (1/|S|) sum_S (Delta_k - y_k) + ybar with the old y; nothing if S is empty."""
    clients, size, w, path = len(present[0]), len(start), start, []
    y = [[0.0] * size for _ in range(clients)]
    for t, row in enumerate(present):
        here = [k for k in range(clients) if row[k]]
        deltas = {k: update(t, k, w) for k in here}
        if here:
            ybar = [sum(y[k][i] for k in range(clients)) / clients for i in range(size)]
            v = [sum(deltas[k][i] - y[k][i] for k in here) / len(here) + ybar[i] for i in range(size)]
            w = [a + eta * b for a, b in zip(w, v, strict=True)]
        for k in here:
            y[k] = deltas[k]
        path.append(w)
    return path


def mifa(
    start: Point,
    present: Present,
    update: Update,
    *,
    eta: float = 1.0,
    wait: bool = False,
    over_lr: bool = False,
    lr: Callable[[int], float] = lambda t: 0.1,
) -> list[Point]:
    """The table y of [K, P]; y_k <- Delta_k (or Delta_k / eta_t), then v = (1/K) sum over all of y_k (times eta_t).

    With ``wait`` nothing happens until every node has been available once; in that round all of them train.
    """
    clients, size, w, path = len(present[0]), len(start), start, []
    y = [[0.0] * size for _ in range(clients)]
    met: set[int] = set()
    filled = not wait
    for t, row in enumerate(present):
        here = [k for k in range(clients) if row[k]]
        if not filled:
            met.update(here)
            filled = len(met) == clients
            here = list(range(clients)) if filled else []
        scale = lr(t) if over_lr else 1.0
        for k in here:
            y[k] = [d / scale for d in update(t, k, w)]
        v = [scale * sum(y[k][i] for k in range(clients)) / clients for i in range(size)]
        w = [a + eta * b for a, b in zip(w, v, strict=True)]
        path.append(w)
    return path
