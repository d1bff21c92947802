"""The server rule of PMFL: mix the new global model with the global models before it (Alg. 2, last step).

Early on this is a strong brake (at psi = 1/2 and H = 3 the model drifts 29 % of the way a plain step would take it),
and a round without participants still moves the model, towards its past.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pmfl.core.method import ServerRule, send_model
from pmfl.core.ring import Ring, empty_ring
from pmfl.core.types import Downlink, Round, Seen, Vector

HistoryIn = Literal["update", "broadcast", "evaluation"]


class Mix(NamedTuple):
    """S_g and what came of it."""

    past: Ring  # W^{t-1}, ..., W^{t-H+1}
    mixed: Vector  # (1 - psi) U + psi * mean(past)


def global_history(*, server_lr: float, history: int, acts_in: HistoryIn) -> ServerRule[Mix]:
    """W <- (1 - psi) (W + eta_g step) + psi mean(W^{t-1}, ..., W^{t-H+1}),  psi = 1/2 - t / (2 (T - 1)).

    As printed, the mix *is* the server's trajectory (``update``). With ``broadcast`` or ``evaluation`` the server
    keeps the unmixed one, and the mix is what clients start from and what is evaluated, or only the latter.
    """

    def init(w: Vector) -> Mix:
        return Mix(empty_ring(history - 1, w), w)

    def apply(state: Mix, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Mix]:
        moved = w + server_lr * step
        psi = 0.5 - now.t / (2 * (now.total - 1)) if now.total > 1 else 0.0
        mixed = moved + psi * (state.past.mean(otherwise=moved) - moved)
        return mixed if acts_in == "update" else moved, Mix(state.past.push(w), mixed)

    def send(state: Mix, w: Vector, now: Round) -> Downlink:
        return send_model(state, state.mixed if acts_in == "broadcast" else w, now)

    return ServerRule(init=init, apply=apply, send=send, show=lambda state, w: state.mixed)
