"""FedHyper: learning rates that follow their own gradient (Wang, Wang and Li, ICLR 2024).

What is new: how the loss answers to a learning rate is told by the inner product of two consecutive steps, so a rate
grows while steps agree and shrinks when they turn back. A variant says whose rate it is:
  g   the server's rate alpha: W <- W + eta_g alpha step
  gm  the same, with steps compared to a decaying sum of all before
  sl  the server sets the rate that all clients use in the next round
  cl  every client adapts its own rate at every iteration, starting from 1 in every participation

Where paper and authors' code differ there is a parameter: ``bounds``, and ``local_rule`` (the code multiplies a rate by
min(1.1, 1 + agreement of the last two moves), the paper adds the agreement of the last two gradients). Inner products
grow with the square of the step: where they drive a rate from bound to bound, ``normalise`` compares directions only.
A round in which nobody takes part changes nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pmfl.core.method import ClientRule, Method, ServerRule, plain_client, send_model
from pmfl.core.params import Rate
from pmfl.core.types import Batch, Downlink, Local, Model, Round, Scalar, Seen, Vector

Variant = Literal["g", "gm", "sl", "cl", "g+cl", "gm+cl"]
Form = Literal["paper", "code"]
LocalRule = Literal["multiply", "add"]

RATE_BOUNDS = {
    "paper": {"g": (1 / 3, 3.0), "gm": (1 / 3, 3.0), "sl": (0.1, 10.0)},
    "code": {"g": (0.2, 5.0), "gm": (0.8, 5.0), "sl": (-torch.inf, torch.inf)},
}
CODE_CLIENT_LR = (0.001, 0.1)  # for "sl" the code bounds not the rate but the learning rate that comes of it
LOCAL_BOUNDS = (0.1, 10.0)  # of a client's own rate, in the paper and in the code
LARGEST_GROWTH = 1.1  # of a client's own rate in one iteration
GLOBAL_SHARE = 0.1  # how much the server's last step counts beside the client's own
DECAY = 0.9
BLOCK = 1 << 14  # entries summed at a time: so few that torch sums them on one thread


class Pace(NamedTuple):
    """What the server knows of its rate, and of the steps that set it."""

    rate: Tensor  # [] float64; alpha, or for "sl" the clients' beta
    previous: Vector  # the step of the last round that had one
    momentum: Vector  # M, the decaying sum of steps; empty unless the variant is "gm"
    joined: Tensor  # [] int64; how many clients the previous step is the mean of


class LocalPace(NamedTuple):
    """What a client knows of its own rate during one participation."""

    rate: Scalar  # beta
    move: Vector  # the last move ("multiply") or gradient ("add")
    share: Scalar | float  # how much the server's last step counts beside it


def dot(a: Vector, b: Vector) -> Scalar:
    """<a, b>, summed in blocks: the same bits for any number of threads."""
    products = a * b
    whole = products.numel() // BLOCK * BLOCK
    return products[:whole].view(-1, BLOCK).sum(1).sum() + products[whole:].sum()


def cosine(a: Vector, b: Vector) -> Scalar:
    """The cosine between two vectors; 0 where one of them is zero."""
    sizes = dot(a, a).sqrt() * dot(b, b).sqrt()
    return dot(a, b) / sizes.clamp(min=torch.finfo(sizes.dtype).tiny)


def adapted_client_rate(*, local_rule: LocalRule, normalise: bool) -> ClientRule[tuple[()]]:
    """Local SGD at eta_l * beta, where beta follows the client's own steps and the server's last one."""
    agree = cosine if normalise else dot

    def begin(model: Model, local: Local[Any], batches: Batch) -> LocalPace:
        share = GLOBAL_SHARE / local.sent.extra["joined"] if local_rule == "multiply" else 1 / batches.y.shape[0]
        return LocalPace(torch.ones_like(local.sent.lr), local.sent.extra["previous"], share)

    def multiply(model: Model, local: Local[Any], gradient: Vector) -> tuple[Vector, LocalPace]:
        pace, last = local.scratch, local.sent.extra["previous"]
        move = -(local.sent.lr * pace.rate) * gradient
        if local.e > 0:  # the first move says nothing; the second is compared to the server's last step alone
            growth = 1 + pace.share * agree(move, last) + agree(move, pace.move)
            rate = (growth.clamp(max=LARGEST_GROWTH) * pace.rate).clamp(*LOCAL_BOUNDS)
            pace = pace._replace(rate=rate, move=move)
        return local.w + move, pace

    def add(model: Model, local: Local[Any], gradient: Vector) -> tuple[Vector, LocalPace]:
        pace, last = local.scratch, local.sent.extra["previous"]
        if local.e > 0:  # a gradient points uphill and the server's step downhill, hence the minus
            change = agree(gradient, pace.move) - pace.share * agree(gradient, last)
            pace = pace._replace(rate=(pace.rate + change).clamp(*LOCAL_BOUNDS))
        return local.w - local.sent.lr * pace.rate * gradient, pace._replace(move=gradient)

    return ClientRule(init=lambda w: (), begin=begin, step=multiply if local_rule == "multiply" else add)


def hyper_gradient(*, variant: Variant, bounds: Form, normalise: bool, server_lr: float) -> ServerRule[Pace]:
    """The server's rate, or the clients', from the agreement of this step with those before."""
    whose = variant.split("+")[0]
    low_high, agree = RATE_BOUNDS[bounds].get(whose), cosine if normalise else dot

    def init(w: Vector) -> Pace:
        momentum = torch.zeros_like(w) if whose == "gm" else w.new_zeros(0)
        return Pace(torch.ones((), dtype=torch.float64), torch.zeros_like(w), momentum, torch.tensor(1))

    def apply(state: Pace, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Pace]:
        if not seen.took_part.any():
            return w, state
        rate, momentum = state.rate, state.momentum
        if low_high:
            rate = (rate + agree(momentum if whose == "gm" else state.previous, step)).clamp(*low_high)
        move = step if whose in ("sl", "cl") else rate * step
        if whose == "gm":
            move, momentum = move + DECAY * (rate - 1) * momentum, step + DECAY * momentum
        return w + server_lr * move, Pace(rate, step, momentum, seen.took_part.sum())

    def send(state: Pace, w: Vector, now: Round) -> Downlink:
        plain = send_model(state, w, now)
        if variant.endswith("cl"):
            return plain._replace(extra={"previous": state.previous, "joined": state.joined.to(w.dtype)})
        lr = now.client_lr * state.rate
        lr = lr.clamp(*CODE_CLIENT_LR) if bounds == "code" else lr
        return plain._replace(lr=lr.to(w.dtype)) if whose == "sl" else plain

    return ServerRule(init=init, apply=apply, send=send)


def fedhyper(
    *,
    variant: Variant = "g+cl",
    bounds: Form = "paper",
    local_rule: LocalRule = "multiply",
    normalise: bool = False,
    server_lr: Rate = 1.0,
) -> Method:
    """Learning rates of server and clients that follow the agreement of consecutive steps.

    variant: whose rate adapts: "g" or "gm" (with momentum) the server's; "sl" all clients', "cl" each client's own
    bounds: "paper": alpha in [1/3, 3], beta in [1/10, 10]; "code": [.2, 5], gm [.8, 5], sl client rates [.001, .1]
    local_rule: how a client's rate changes under "cl": the code's "multiply" (moves) or the paper's "add" (gradients)
    normalise: whether steps are compared by the cosine between them instead of their inner product
    server_lr: eta_g, the global learning rate
    """
    client = adapted_client_rate(local_rule=local_rule, normalise=normalise) if "cl" in variant else plain_client
    server = hyper_gradient(variant=variant, bounds=bounds, normalise=normalise, server_lr=server_lr)
    return Method(name="fedhyper", client=client, server=server)
