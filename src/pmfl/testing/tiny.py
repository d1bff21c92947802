"""A world small enough to play hundreds of rounds a second: three models, three clients, one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pmfl.core.client import train_client
from pmfl.core.keys import Key
from pmfl.core.method import ClientRule, Measure, Method
from pmfl.core.round import ServerState, play, start
from pmfl.core.sums import check_range, exact_weighted_sum, from_fixed_point
from pmfl.core.types import Batch, Downlink, Masks, Model, Round, Scalars, Seen, Uplink, Vector, Work

FEATURES, HIDDEN, CLASSES = 4, 6, 3
HELD_OUT = 6
KEEP = 0.8

Kind = Literal["linear", "hidden", "dropout"]
Crowd = Literal["nobody", "one", "everyone"]
CROWDS: tuple[Crowd, ...] = ("nobody", "one", "everyone")


def linear_model() -> Model:
    """Logistic regression: its loss is convex."""
    return Model(
        size=FEATURES * CLASSES + CLASSES,
        init=lambda key: torch.randn(FEATURES * CLASSES + CLASSES, generator=key.torch()) / 2,
        represent=lambda w, x, masks: x,
        classify=lambda w, z, masks: _affine(w, z, CLASSES),
    )


def hidden_model(*, dropout: bool) -> Model:
    """One hidden layer, with or without a dropout mask on it."""
    encoder = FEATURES * HIDDEN + HIDDEN

    def represent(w: Vector, x: Tensor, masks: Masks) -> Tensor:
        z = _affine(w[:encoder], x, HIDDEN).relu()
        return z * masks[0] if masks else z

    size = encoder + HIDDEN * CLASSES + CLASSES
    return Model(
        size=size,
        init=lambda key: torch.randn(size, generator=key.torch()) / 2,
        represent=represent,
        classify=lambda w, z, masks: _affine(w[encoder:], z, CLASSES),
        masks=(((HIDDEN,), KEEP),) if dropout else (),
    )


def _affine(w: Vector, x: Tensor, width: int) -> Tensor:
    n = x.shape[-1] * width
    return x @ w[:n].view(x.shape[-1], width) + w[n : n + width]


MODELS = {
    "linear": linear_model(),
    "hidden": hidden_model(dropout=False),
    "dropout": hidden_model(dropout=True),
}


class Position(NamedTuple):
    """Where a run stands: all that has to be saved to go on."""

    server: ServerState
    memories: dict[int, Any]


@dataclass(frozen=True)
class Tiny:
    """A tiny federation and its draws; ``build`` makes the method under test anew."""

    build: Callable[[], Method]
    kind: Kind = "dropout"
    clients: int = 3
    iterations: int = 3
    batch_size: int = 3
    client_lr: float = 0.1
    rate: float = 0.5  # everybody's true participation rate
    total: int = 8
    dtype: torch.dtype = torch.float32
    key: Key = Key.root(0)  # noqa: RUF009 - a key is a name, frozen

    def but(self, **changes: Any) -> Tiny:
        """The same world with some of it exchanged."""
        return replace(self, **changes)

    @property
    def model(self) -> Model:
        """The classifier all clients train."""
        return MODELS[self.kind]

    @cached_property
    def data(self) -> list[Batch]:
        """Each client's samples: three well separated classes, 9, 12, 15 … of them and some held out."""
        centres = 2 * torch.eye(FEATURES, dtype=self.dtype)[:CLASSES]
        made = []
        for k in range(self.clients):
            draws = self.key.fold("data", k).torch()
            y = torch.arange(9 + 3 * k + HELD_OUT) % CLASSES
            noise = torch.randn(len(y), FEATURES, generator=draws).to(self.dtype)
            made.append(Batch(centres[y] + 0.4 * noise, y))
        return made

    @cached_property
    def everything(self) -> Batch:
        """All samples of all clients, for evaluation."""
        return Batch(torch.cat([own.x for own in self.data]), torch.cat([own.y for own in self.data]))

    def first_model(self) -> Vector:
        """W^0."""
        return self.model.init(self.key.fold("init")).to(self.dtype)

    def now(self, t: int) -> Round:
        """What a rule may know of round ``t``."""
        rates = torch.full((self.clients,), self.rate, dtype=torch.float64)
        return Round(t, self.total, self.clients, self.client_lr, self.key.fold("round", t), rates)

    def crowd(self, who: Crowd, t: int) -> Tensor:
        """Who is available in round ``t``, [K] bool."""
        available = torch.full((self.clients,), who == "everyone")
        if who == "one":
            available[t % self.clients] = True
        return available

    def work(self, t: int, k: int, *, check: bool) -> Work:
        """Client k's mini-batches of round t, its dropout masks and, if asked for, held-out samples."""
        own, key = self.data[k], self.key.fold("work", t, k)
        samples = len(own.y) - HELD_OUT
        shape = (self.iterations, self.batch_size)
        rows = torch.randperm(samples, generator=key.torch())[: self.iterations * self.batch_size].view(shape)
        masks = tuple(
            (torch.rand(*shape, *sample, generator=key.fold("mask").torch()) < keep).to(self.dtype) / keep
            for sample, keep in self.model.masks
        )
        held_out = Batch(own.x[samples:].clone(), own.y[samples:].clone()) if check else None
        return Work(Batch(own.x[rows], own.y[rows], masks), torch.tensor(float(samples)), held_out)

    def start(self, method: Method) -> Position:
        """The position before round 0."""
        return Position(start(method, self.first_model(), self.clients), {})

    def advance(self, method: Method, at: Position, available: Tensor, *, backwards: bool = False) -> Position:
        """The position after one more round, looked at as a run would; ``at`` stays as it is."""
        engine = TinyEngine(self, method.client, dict(at.memories), backwards=backwards)
        server, _ = play(method, engine, at.server, available, self.now(at.server.t))
        method.weigh.importance(server.weigh)
        method.server.show(server.server, server.w)
        return Position(server, engine.memories)

    def play(self, method: Method, crowds: Sequence[Crowd], at: Position | None = None, **how: Any) -> Position:
        """The position after one round per crowd, from the start or from ``at``."""
        at = at or self.start(method)
        for who in crowds:
            at = self.advance(method, at, self.crowd(who, at.server.t), **how)
        return at


class TinyEngine:
    """Clients one after the other, or in reverse order and summed in two shards."""

    def __init__(
        self, tiny: Tiny, rule: ClientRule[Any], memories: dict[int, Any] | None = None, *, backwards: bool = False
    ) -> None:
        self.tiny, self.rule, self.backwards = tiny, rule, backwards
        self.memories = {} if memories is None else memories

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> TinyReplies:
        """Let the chosen clients take part in round ``now``."""
        clients: list[int] = chosen.nonzero().flatten().tolist()
        uplinks = {k: self.one(sent, k, now.t) for k in (reversed(clients) if self.backwards else clients)}
        self.memories |= {k: uplink.memory for k, uplink in uplinks.items()}
        return TinyReplies(Seen(chosen.clone(), gather(uplinks)), uplinks, sent.w, now.t, self.backwards)

    def one(self, sent: Downlink, k: int, t: int) -> Uplink:
        """One participation of client ``k``."""
        work = self.tiny.work(t, k, check=self.rule.checks)
        return train_client(self.rule, self.tiny.model, sent, self.memory(sent, k), work)

    def memory(self, sent: Downlink, k: int) -> Any:
        """What client ``k`` remembers; the rule's first memory before its first participation."""
        return self.memories[k] if k in self.memories else self.rule.init(sent.w)


@dataclass(frozen=True)
class TinyReplies:
    """The answers of one round."""

    seen: Seen
    uplinks: dict[int, Uplink]  # in order of arrival
    like: Vector
    t: int
    sharded: bool

    @property
    def updates(self) -> list[Vector]:
        """Delta_k of those who took part, by client id."""
        return [self.uplinks[k].update for k in sorted(self.uplinks)]

    def measure(self, measure: Measure) -> Tensor:
        """A number for each update, by client id."""
        size = self.like.numel()
        return measure(
            self.updates,
            lambda weights: from_fixed_point(exact_weighted_sum(weights, self.updates, size), torch.float64),
        )

    def weighted_sum(self, weights: Tensor) -> Vector:
        """sum_k weights[k] * uplink[k], in fixed point."""
        arrived = list(self.uplinks)
        shards = [arrived[::2], arrived[1::2]] if self.sharded else [arrived]
        total = torch.zeros(self.like.numel(), dtype=torch.int64)
        for clients in shards:
            mine, vectors = [float(weights[k]) for k in clients], [self.uplinks[k].vector for k in clients]
            check_range(mine, vectors, clients, self.t)
            total += exact_weighted_sum(mine, vectors, self.like.numel())
        return from_fixed_point(total, self.like.dtype)


def gather(uplinks: dict[int, Uplink]) -> Scalars:
    """Each scalar of each uplink, as one row per name, by client id."""
    ordered = [uplinks[k].scalars for k in sorted(uplinks)]
    return {name: torch.stack([scalars[name] for scalars in ordered]) for name in (ordered[0] if ordered else {})}
