"""Small worlds for tests: four clients with quadratic losses (TOY), given updates, and tiny float64 classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from hypothesis import settings
from torch import Tensor

from pmfl.core.client import Differentiate, by_autograd, train_client
from pmfl.core.keys import Key
from pmfl.core.method import ClientRule, Measure, Method
from pmfl.core.round import Outcome, ServerState, play, start
from pmfl.core.sums import check_range, exact_weighted_sum, from_fixed_point
from pmfl.core.types import (
    Batch,
    Downlink,
    Local,
    Masks,
    Model,
    Round,
    Scalar,
    Scalars,
    Seen,
    Uplink,
    Vector,
    Work,
)

F64 = torch.float64


def examples(n: int) -> settings:
    """Hypothesis settings for n examples, without a clock and without files."""
    return settings(max_examples=n, deadline=None, database=None)


def normal(key: Key, *shape: int) -> Tensor:
    return torch.randn(shape, generator=key.torch(), dtype=F64)


def coins(key: Key, p: float, *shape: int) -> Tensor:
    return torch.rand(shape, generator=key.torch(), dtype=F64) < p


# The TOY problem: client k has loss 0.5 * ||w - a_k||^2, and is there in the rounds where its row has a 1.

TARGETS = torch.tensor([[1, 0], [0, 2], [-1, 1], [4, -4]], dtype=F64)
RATES = torch.tensor([0.8, 0.25, 0.5, 0.02], dtype=F64)
OPTIMUM = TARGETS.mean(0)
ROWS = ("11011011", "00100001", "01010011", "00000001")
PRESENT = torch.tensor([[mark == "1" for mark in row] for row in ROWS]).T  # [8, 4]


def with_empty_rounds(*rounds: int) -> Tensor:
    """The TOY participation with some rounds emptied."""
    present = PRESENT.clone()
    present[list(rounds)] = False
    return present


def quadratic(model: Model, local: Local[Any], batch: Batch) -> tuple[Scalar, Scalars]:
    """0.5 * ||w - a_k||^2, where the batch holds a_k."""
    value = 0.5 * (local.w - batch.x).square().sum()
    return value, {"accuracy": value.detach() * 0}


NO_MODEL = Model(2, lambda key: torch.zeros(2, dtype=F64), lambda w, x, masks: x, lambda w, z, masks: z)


@dataclass(frozen=True)
class GivenReplies:
    """Uplinks by client id, summed as every engine sums them."""

    seen: Seen
    clients: list[int]
    uplinks: list[Uplink]
    now: Round
    like: Vector

    @property
    def updates(self) -> list[Vector]:
        return [uplink.update for uplink in self.uplinks]

    def measure(self, measure: Measure) -> Tensor:
        size = self.like.numel()
        return measure(
            self.updates,
            lambda weights: from_fixed_point(exact_weighted_sum(weights, self.updates, size), torch.float64),
        )

    def weighted_sum(self, weights: Tensor) -> Vector:
        mine = [float(weights[k]) for k in self.clients]
        vectors = [uplink.vector for uplink in self.uplinks]
        check_range(mine, vectors, self.clients, self.now.t)
        return from_fixed_point(exact_weighted_sum(mine, vectors, self.like.numel()), self.like.dtype)


Participate = Callable[[Downlink, Any, int, Round], Uplink]


class SmallEngine:
    """An engine that lets clients take part one after the other, and writes down what was sent to whom."""

    def __init__(self, rule: ClientRule[Any], participate: Participate) -> None:
        self.rule, self.participate = rule, participate
        self.memories: dict[int, Any] = {}
        self.sent: list[Downlink] = []

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> GivenReplies:
        clients, uplinks = chosen.nonzero().flatten().tolist(), []
        self.sent.append(sent)
        for k in clients:
            memory = self.memories[k] if k in self.memories else self.rule.init(sent.w)
            uplinks.append(self.participate(sent, memory, k, now))
            self.memories[k] = uplinks[-1].memory
        names = uplinks[0].scalars if uplinks else {}
        scalars = {name: torch.stack([uplink.scalars[name] for uplink in uplinks]) for name in names}
        return GivenReplies(Seen(chosen.clone(), scalars), clients, uplinks, now, sent.w)


def toy_engine(method: Method, iterations: int = 2) -> SmallEngine:
    """Trains on the quadratics with the method's client rule; only the loss is exchanged."""
    rule = replace(method.client, loss=quadratic)

    def participate(sent: Downlink, memory: Any, k: int, now: Round) -> Uplink:
        batches = Batch(TARGETS[k].expand(iterations, 2), torch.zeros(iterations, 1))
        return train_client(rule, NO_MODEL, sent, memory, Work(batches, torch.tensor(10 * (k + 1))))

    return SmallEngine(rule, participate)


def given_updates(rule: ClientRule[Any], updates: Tensor) -> SmallEngine:
    """Client k ends round t with the update ``updates[t, k]``, whatever it received."""

    def participate(sent: Downlink, memory: Any, k: int, now: Round) -> Uplink:
        delta = updates[now.t, k].clone()
        uplink = rule.reply(NO_MODEL, Local(sent.w + delta, sent, memory), delta, None)
        return uplink._replace(scalars={"samples": torch.tensor(10 * (k + 1))})

    return SmallEngine(rule, participate)


class Played(NamedTuple):
    """What came of some rounds."""

    states: list[ServerState]  # after each round
    outcomes: list[Outcome]
    engine: SmallEngine

    @property
    def path(self) -> Tensor:
        """W after each round, [T, P]."""
        return torch.stack([state.w for state in self.states])


def play_rounds(
    method: Method,
    engine: SmallEngine,
    present: Tensor,
    *,
    w: Vector | None = None,
    total: int | None = None,
    client_lr: Callable[[int], float] = lambda t: 0.1,
    rates: Tensor | None = None,
) -> Played:
    """Play one round per row of ``present``."""
    rounds, clients = present.shape
    state = start(method, torch.zeros(2, dtype=F64) if w is None else w, clients)
    states, outcomes = [], []
    for t in range(rounds):
        now = Round(t, total or rounds, clients, client_lr(t), Key.root(0).fold("round", t), rates)
        state, outcome = play(method, engine, state, present[t], now)
        states.append(state)
        outcomes.append(outcome)
    return Played(states, outcomes, engine)


def play_toy(method: Method, present: Tensor = PRESENT, **options: Any) -> Played:
    """TOY: four clients, two full-batch steps at rate 0.1, from W^0 = 0."""
    return play_rounds(method, toy_engine(method), present, **options)


def points(text: str) -> Tensor:
    """Read ``(.0475,0) (.04,.05)`` as a path [T, 2]."""
    return torch.tensor([[float(v) for v in pair.strip("()").split(",")] for pair in text.split()], dtype=F64)


# Tiny classifiers: two tanh layers (encoder, projection) and a linear one, with a dropout mask before two of them.


class Sizes(NamedTuple):
    """The widths of a tiny classifier."""

    inputs: int = 2
    encoded: int = 2
    represented: int = 3
    classes: int = 3

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each layer; a flat vector holds, layer after layer, the matrix and then the bias."""
        return [
            (self.encoded, self.inputs),
            (self.represented, self.encoded),
            (self.classes, self.represented),
        ]


def tiny_model(sizes: Sizes = Sizes(), *, keep: float = 1.0) -> Model:  # noqa: B008  (a NamedTuple cannot change)
    """A classifier in float64; with ``keep`` below 1, one with dropout."""
    ends = [0]
    for rows, columns in sizes.layers:
        ends.append(ends[-1] + rows * columns + rows)

    def layer(w: Vector, i: int, x: Tensor) -> Tensor:
        rows, columns = sizes.layers[i]
        part = w[ends[i] : ends[i + 1]]
        return x @ part[: rows * columns].view(rows, columns).T + part[rows * columns :]

    def dropped(x: Tensor, masks: Masks, i: int) -> Tensor:
        return x * masks[i] if masks else x

    return Model(
        size=ends[-1],
        init=lambda key: normal(key, ends[-1]),
        represent=lambda w, x, masks: torch.tanh(layer(w, 1, dropped(torch.tanh(layer(w, 0, x)), masks, 0))),
        classify=lambda w, z, masks: layer(w, 2, dropped(z, masks, 1)),
        masks=(((sizes.encoded,), keep), ((sizes.represented,), keep)) if keep < 1 else (),
    )


def draw_batch(model: Model, key: Key, *shape: int, sizes: Sizes = Sizes()) -> Batch:  # noqa: B008  (as above)
    """Random samples of the leading shape given, with dropout masks where the model has dropout."""
    masks = tuple(
        coins(key.fold("mask", i), keep, *shape, *of_sample).to(F64) / keep
        for i, (of_sample, keep) in enumerate(model.masks)
    )
    y = torch.randint(sizes.classes, shape, generator=key.fold("y").torch())
    return Batch(normal(key.fold("x"), *shape, sizes.inputs), y, masks)


def draw_work(model: Model, key: Key, *, iterations: int, batch: int, check: int = 0) -> Work:
    """Random work for one participation."""
    held_out = draw_batch(model, key.fold("check"), check)._replace(masks=()) if check else None
    return Work(draw_batch(model, key, iterations, batch), torch.tensor(iterations * batch), held_out)


def downlink(w: Vector, lr: float = 0.1, **extra: Tensor) -> Downlink:
    return Downlink(w, torch.tensor(lr, dtype=w.dtype), extra)


def training_engine(
    rule: ClientRule[Any], model: Model, works: Sequence[Work], differentiate: Differentiate = by_autograd
) -> SmallEngine:
    """Client k trains on ``works[k]`` in every round."""

    def participate(sent: Downlink, memory: Any, k: int, now: Round) -> Uplink:
        return train_client(rule, model, sent, memory, works[k], differentiate)

    return SmallEngine(rule, participate)
