"""FedPPO as its authors' code computes it, with global models judged one round late: loops and floats.

Never imported by src. Weights are lists: per layer a matrix (list of rows) and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Layer = tuple[list[list[float]], list[float]]


def rewards(accuracies: Sequence[float], global_accuracy: float, drops: Sequence[float]) -> list[float]:
    """r_i = acc_i + acc_global * drop_i / sum_j drop_j."""
    total = 0.0
    for drop in drops:
        total += drop
    return [a + global_accuracy * drop / total for a, drop in zip(accuracies, drops, strict=True)]


def returns(of: Sequence[float], discount: float) -> list[float]:
    """G_i = r_i + discount G_{i+1}."""
    found = [0.0] * len(of)
    following = 0.0
    for i in range(len(of) - 1, -1, -1):
        found[i] = of[i] + discount * following
        following = found[i]
    return found


def standardise(values: Sequence[float]) -> list[float]:
    """(G - mean) / (std + 1e-7), with the unbiased std; a single value has none, and becomes 0."""
    n = len(values)
    mean = sum(values) / n
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else 0.0
    return [(v - mean) / (std + 1e-7) for v in values]


@dataclass
class Books:
    """What the server writes down: asked, then answered, then complete once the next answers judge the model."""

    clients: int
    discard_every: int  # complete rounds between two updates; each update empties the list
    s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    waiting: list[tuple[int, float, float]] = field(default_factory=list)  # client, accuracy, drop
    complete: list[tuple[int, float]] = field(default_factory=list)  # client, reward
    rounds: int = 0
    updates: int = 0

    def __post_init__(self) -> None:
        self.s, self.loss = [0.0] * (self.clients + 1), [0.0] * self.clients

    def hear(
        self, asked: Sequence[int], received: dict[int, float], trained: dict[int, float], loss: dict[int, float]
    ) -> None:
        """The answers of those who took part, by client."""
        if not received:
            return
        judged = sum(received.values()) / len(received)
        if self.waiting:
            reward = rewards([a for _, a, _ in self.waiting], judged, [d for _, _, d in self.waiting])
            for (client, _, _), r in zip(self.waiting, reward, strict=True):
                self.complete.append((client, r))
        closed = bool(self.waiting)
        self.s[0] = judged
        self.waiting = []
        for client in asked:
            if client in trained:
                drop = max(self.loss[client] - loss[client], 1e-5)
                self.waiting.append((client, trained[client], drop))
        for client in trained:
            self.s[client + 1] = trained[client]
            self.loss[client] = loss[client]
        if closed:
            if self.rounds % self.discard_every == 0:
                self.complete = []
                self.updates += 1
            self.rounds += 1


def chance_of(order: Sequence[int], p: Sequence[float]) -> float:
    """How likely repeated draws, with repetitions thrown away, give the clients in this order."""
    chance, left = 1.0, 1.0
    for client in order:
        chance *= p[client] / left
        left -= p[client]
    return chance


def network(layers: Sequence[Layer], s: Sequence[float]) -> list[float]:
    """Two hidden tanh layers and a linear one."""
    z = list(s)
    for i, (matrix, bias) in enumerate(layers):
        out = []
        for row, b in zip(matrix, bias, strict=True):
            total = b
            for weight, value in zip(row, z, strict=True):
                total += weight * value
            out.append(math.tanh(total) if i < 2 else total)
        z = out
    return z


def probabilities(logits: Sequence[float], eligible: Sequence[bool]) -> list[float]:
    """Softmax over those who could be drawn."""
    peak = max(v for v, ok in zip(logits, eligible, strict=True) if ok)
    raised = [math.exp(v - peak) if ok else 0.0 for v, ok in zip(logits, eligible, strict=True)]
    return [v / sum(raised) for v in raised]


@dataclass
class Transition:
    """One client that was asked and answered."""

    s: list[float]
    eligible: list[bool]
    client: int
    old_logp: float
    old_value: float
    g: float  # standardised return


def objective(
    actor: Sequence[Layer], critic: Sequence[Layer], of: Sequence[Transition], clip: float, entropy_weight: float
) -> float:
    """Mean of -min(rho A, clip(rho) A) + .5 (V - G)^2 - weight * entropy."""
    total = 0.0
    for it in of:
        p = probabilities(network(actor, it.s), it.eligible)
        value = network(critic, it.s)[0]
        rho = math.exp(math.log(p[it.client]) - it.old_logp)
        advantage = it.g - it.old_value
        bounded = min(max(rho, 1 - clip), 1 + clip)
        entropy = -sum(v * math.log(v) for v in p if v > 0)
        total += -min(rho * advantage, bounded * advantage) + 0.5 * (value - it.g) ** 2 - entropy_weight * entropy
    return total / len(of)


def adam(theta: list[float], gradients: Sequence[Sequence[float]], lr: float) -> list[float]:
    """Adam with its usual constants, for gradients that are given."""
    mean, square = [0.0] * len(theta), [0.0] * len(theta)
    theta = list(theta)
    for n, gradient in enumerate(gradients, start=1):
        for i, g in enumerate(gradient):
            mean[i] = 0.9 * mean[i] + 0.1 * g
            square[i] = 0.999 * square[i] + 0.001 * g * g
            theta[i] -= lr * (mean[i] / (1 - 0.9**n)) / (math.sqrt(square[i] / (1 - 0.999**n)) + 1e-8)
    return theta
