"""The whole server loop: start, then play one round after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from pmfl.core.method import Engine, Method, Replies
from pmfl.core.types import Round, Seen, Vector, nobody


class ServerState(NamedTuple):
    """All that a server must save to resume; randomness needs no saving, since keys are derived."""

    t: int
    w: Vector
    select: Any
    weigh: Any
    server: Any
    last: Seen


class Outcome(NamedTuple):
    """What is worth recording of a round."""

    t: int
    replies: Replies
    weights: Tensor  # [K], float64; meaningful where the client took part


def start(method: Method, w: Vector, clients: int) -> ServerState:
    """The state before round 0."""
    return ServerState(
        0, w, method.select.init(clients), method.weigh.init(clients), method.server.init(w), nobody(clients)
    )


def play(method: Method, engine: Engine, s: ServerState, available: Tensor, now: Round) -> tuple[ServerState, Outcome]:
    """One round: select, train, weigh, sum, move."""
    chosen, select = method.select.apply(s.select, available, s.last, now)
    replies = engine.train(method.server.send(s.server, s.w, now), chosen, now)
    weights, weigh = method.weigh.apply(s.weigh, replies.seen, now)
    step = replies.weighted_sum(weights)
    w, server = method.server.apply(s.server, s.w, step, replies.seen, now)
    return ServerState(now.t + 1, w, select, weigh, server, replies.seen), Outcome(now.t, replies, weights)
