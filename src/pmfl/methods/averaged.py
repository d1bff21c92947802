"""FedAU whose evaluated model is an average of its recent global models: the control for PMFL's global history.

PMFL mixes past models into the trajectory itself. If past models help because averaging removes noise, then an average
that is only looked at, and that no client ever starts from, should help as much and brake nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pmfl.core.method import Method, ServerRule
from pmfl.core.params import Count, Rate, Size
from pmfl.core.ring import Ring, empty_ring
from pmfl.core.types import Round, Seen, Vector
from pmfl.methods.fedau import Timing, average_interval

Average = Literal["window", "exponential"]


class Window(NamedTuple):
    """The last models, this round's included."""

    models: Ring


class Faded(NamedTuple):
    """A mean in which a model counts less the older it is."""

    mean: Vector


def shows_window(server_lr: float, models: int) -> ServerRule[Window]:
    """W moves by the full step; what is shown is the mean of the last ``models`` of it, or of those that exist."""

    def init(w: Vector) -> Window:
        return Window(empty_ring(models, w))

    def apply(state: Window, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Window]:
        moved = w + server_lr * step
        return moved, Window(state.models.push(moved))

    return ServerRule(init=init, apply=apply, show=lambda state, w: state.models.mean(otherwise=w))


def shows_faded(server_lr: float, models: int) -> ServerRule[Faded]:
    """W moves by the full step; what is shown fades by 2 / (models + 1), so that its mean age is that of the window.

    While fewer than ``models`` exist the mean is over all of them, so that the first model leaves no trace later on.
    """

    def init(w: Vector) -> Faded:
        return Faded(w)

    def apply(state: Faded, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Faded]:
        moved = w + server_lr * step
        newest = max(2 / (models + 1), 1 / (now.t + 1))
        return moved, Faded(state.mean + newest * (moved - state.mean))

    return ServerRule(init=init, apply=apply, show=lambda state, w: state.mean)


def fedau_mean(
    *,
    average: Average = "window",
    models: Size = 20,
    cutoff: Count = 50,
    timing: Timing = "predictive",
    server_lr: Rate = 1.0,
) -> Method:
    """FedAU, evaluated at an average of its recent global models.

    average: "window" (the plain mean of the last models) or "exponential" (older ones count less)
    models: how many models the window holds; the exponential mean has the same mean age
    cutoff: C, the longest interval that counts; 0 for none
    timing: "predictive" (intervals that ended before this round) or "inclusive" (this one too)
    server_lr: eta_g, the global learning rate
    """
    server: ServerRule[Any] = (shows_window if average == "window" else shows_faded)(server_lr, models)
    return Method(name="fedau-mean", weigh=average_interval(cutoff, timing), server=server)
