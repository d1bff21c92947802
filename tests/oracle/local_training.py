"""Algorithm 1 of the PMFL paper (local model training) with its loss, and those of MOON and FedProx, transcribed.

Nothing is cached: at every iteration every representation by every model is computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.oracle.network import Layers, Number, Row, classify, exp, gradient, log, represent

Models: TypeAlias = list[list[float]]


@dataclass
class Sample:
    """One sample of a mini-batch, with its dropout masks if there are any."""

    x: list[float]
    y: int
    masks: tuple[list[float] | None, list[float] | None] = (None, None)


@dataclass
class Memory:
    """What a node keeps: S_l, and the model at the end of its last participation."""

    s_l: Models = field(default_factory=list)
    last: list[float] | None = None


def sim(a: Row, b: Row) -> Number:
    """Sim(a, b) = a^T b / (||a|| ||b||)."""
    norms = (sum(v * v for v in a) ** 0.5) * (sum(v * v for v in b) ** 0.5)
    return sum(v * u for v, u in zip(a, b, strict=True)) / norms


def l_cro(logits: Row, y: int) -> Number:
    """Cross-entropy: -log of the softmax at the label."""
    return -log(exp(logits[y]) / sum(exp(v) for v in logits))


def split(z: Row, history: Sequence[Row], mu: float) -> tuple[list[Row], list[Row]]:
    """Z^+ and Z^-: the historical representations at least mu-similar to z, and the others."""
    positive = [z_j for z_j in history if sim(z, z_j) >= mu]
    negative = [z_j for z_j in history if sim(z, z_j) < mu]
    return positive, negative


def l_con(z: Row, z_global: Row, positive: Sequence[Row], negative: Sequence[Row], tau: float) -> Number:
    """l_con = -log(pos / (pos + neg)), with pos and neg as printed."""
    pos = exp(sim(z, z_global) / tau) + sum(exp(sim(z, z_j) / tau) for z_j in positive)
    neg = sum(exp(sim(z, z_j) / tau) for z_j in negative)
    return -log(pos / (pos + neg))


def moon_loss(z: Row, z_global: Row, previous: Sequence[Row], tau: float) -> Number:
    """Cross-entropy of the similarities over tau, where the right answer is the global one (MOON, main.py)."""
    return l_cro([sim(z, z_global) / tau, *(sim(z, z_j) / tau for z_j in previous)], 0)


def threshold_mu(
    layers: Layers, threshold: str | float, x: Row, z: Row, z_global: Row, last: list[float] | None
) -> float:
    """mu = Sim(z_k^{tE}, Z^t) in the readings of the Decisions table."""
    if threshold == "received":
        return 1.0
    if threshold == "current" or (threshold == "last_local" and last is None):
        return float(sim(z, z_global))
    if threshold == "last_local":
        assert last is not None
        return float(sim(represent(layers, last, x), z_global))
    return float(threshold)


def sgd(
    received: list[float],
    batches: Sequence[Sequence[Sample]],
    lr: float,
    loss_at: Callable[[list[float], int, Sequence[Sample]], Callable[[Row], Number]],
) -> list[list[float]]:
    """Algorithm 1, lines 4-8: every model of one participation, the received one first."""
    models = [received]
    for e, batch in enumerate(batches):
        w = models[-1]
        g = gradient(loss_at(w, e, batch), w)
        models.append([v - lr * d for v, d in zip(w, g, strict=True)])
    return models


def pmfl_participation(
    layers: Layers,
    received: list[float],
    batches: Sequence[Sequence[Sample]],
    memory: Memory,
    *,
    lr: float,
    weight: float,
    tau: float,
    n: int,
    threshold: str | float,
    unit: str,
) -> tuple[list[float], Memory, list[float]]:
    """Algorithm 1 with L = l_cro + lambda l_con; returns Delta, the new memory and l_con of every iteration."""
    s_l: Models = list(memory.s_l)
    trace: list[float] = []

    def loss_at(w: list[float], e: int, batch: Sequence[Sample]) -> Callable[[Row], Number]:
        sets = []
        for sample in batch:  # no gradient flows through mu, the split, the global and the historical representations
            z = represent(layers, w, sample.x, sample.masks[0])
            z_global = represent(layers, received, sample.x)
            history = [represent(layers, w_j, sample.x) for w_j in s_l]
            mu = threshold_mu(layers, threshold, sample.x, z, z_global, memory.last)
            sets.append((z_global, *split(z, history, mu)))
            trace.append(float(l_con(z, *sets[-1], tau)) / len(batch))
        if unit == "iteration":
            s_l.append(w)  # before its step
            del s_l[:-n]

        def loss(v: Row) -> Number:
            total: Number = 0.0
            for sample, (z_global, positive, negative) in zip(batch, sets, strict=True):
                z = represent(layers, v, sample.x, sample.masks[0])
                logits = classify(layers, v, z, sample.masks[1])
                total += l_cro(logits, sample.y) + weight * l_con(z, z_global, positive, negative, tau)
            return total / len(batch)

        return loss

    models = sgd(received, batches, lr, loss_at)
    if unit == "round":
        s_l.append(models[-1])
        del s_l[:-n]
    size = len(batches[0])
    per_iteration = [sum(trace[i : i + size]) for i in range(0, len(trace), size)]
    return _update(models), Memory(s_l, models[-1]), per_iteration


def moon_participation(
    layers: Layers,
    received: list[float],
    batches: Sequence[Sequence[Sample]],
    previous: Models,
    *,
    lr: float,
    weight: float,
    tau: float,
    n: int,
) -> tuple[list[float], Models]:
    """Local training of MOON; returns Delta and the buffer of end-of-round models."""

    def loss_at(w: list[float], e: int, batch: Sequence[Sample]) -> Callable[[Row], Number]:
        def loss(v: Row) -> Number:
            total: Number = 0.0
            for sample in batch:
                z = represent(layers, v, sample.x, sample.masks[0])
                old = [represent(layers, w_j, sample.x) for w_j in previous]
                total += l_cro(classify(layers, v, z, sample.masks[1]), sample.y)
                total += weight * moon_loss(z, represent(layers, received, sample.x), old, tau)
            return total / len(batch)

        return loss

    models = sgd(received, batches, lr, loss_at)
    return _update(models), [*previous, models[-1]][-n:]


def fedprox_participation(
    layers: Layers, received: list[float], batches: Sequence[Sequence[Sample]], *, lr: float, mu: float
) -> list[float]:
    """Local training on l_cro + mu/2 ||w - W^t||^2; returns Delta. With mu = 0 it is FedAvg's."""

    def loss_at(w: list[float], e: int, batch: Sequence[Sample]) -> Callable[[Row], Number]:
        def loss(v: Row) -> Number:
            total: Number = mu / 2 * sum((a - b) ** 2 for a, b in zip(v, received, strict=True))
            for sample in batch:
                z = represent(layers, v, sample.x, sample.masks[0])
                total += l_cro(classify(layers, v, z, sample.masks[1]), sample.y) / len(batch)
            return total

        return loss

    return _update(sgd(received, batches, lr, loss_at))


def _update(models: Models) -> list[float]:
    """Delta_k^t = w^{(t+1)E} - w^{tE} (line 9)."""
    return [end - begin for begin, end in zip(models[0], models[-1], strict=True)]
