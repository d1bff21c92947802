"""The whole server loop: start, then play one round after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from pmfl.core.method import Engine, Method, Replies
from pmfl.core.types import Round, Seen, Vector, nobody
from pmfl.errors import MethodError


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
    _check(chosen, "select", now)
    replies = engine.train(method.server.send(s.server, s.w, now), chosen, now)
    weights, weigh = method.weigh.apply(s.weigh, replies.seen, now)
    _check(weights, "weigh", now)
    step = replies.weighted_sum(weights)
    w, server = method.server.apply(s.server, s.w, step, replies.seen, now)
    return ServerState(now.t + 1, w, select, weigh, server, replies.seen), Outcome(now.t, replies, weights)


def _check(given: Tensor, rule: str, now: Round) -> None:
    """Refuse what is not one entry per client: engines would take the entries that they find."""
    if given.shape != (now.clients,):
        raise MethodError(
            f"round {now.t}: the {rule} rule gave a tensor of shape {tuple(given.shape)} for {now.clients} clients",
            hint="give one entry per client; `pmfl check MODULE:FUNCTION` finds the rule that breaks its contract",
            code="M101",
        )
