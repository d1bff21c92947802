"""PMFL: model-contrastive federated learning with historical information.

What is new, one rule each:
  client  contrast the current model with the last N local models     (l_con itself: contrast.py)
  weigh   weigh clients by their average participation interval       (Alg. 2; shared with FedAU)
  server  mix the new global model with the last H - 1 global models  (Alg. 2, last step: global_history.py)
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pmfl.core.method import ClientRule, Method, accuracy, add_step, plain_client, sgd_step
from pmfl.core.params import Count, Rate, Weight
from pmfl.core.ring import Ring, empty_ring
from pmfl.core.types import Batch, Local, Model, Scalar, Scalars, Uplink, Vector
from pmfl.methods.contrast import contrast
from pmfl.methods.fedau import Timing, average_interval
from pmfl.methods.frozen import Frozen, represent_frozen
from pmfl.methods.global_history import HistoryIn, global_history

Threshold = Literal["last_local", "current", "received"]
Unit = Literal["iteration", "round"]


class Memory(NamedTuple):
    """What a client keeps between participations: N + 1 models."""

    history: Ring  # S_l, the last N local models
    last: Vector  # the model at the end of the last participation


class Scratch(NamedTuple):
    """What a participation has worked out so far."""

    batches: Batch
    sent: Frozen  # the received model's representations
    last: Frozen | None  # those of the last participation's model, if the threshold asks for them
    past: tuple[Frozen, ...]  # those of the history, oldest first, then of this participation's models
    trail: tuple[Vector, ...]  # this participation's models, to be remembered


def history_contrastive(
    *, weight: float, temperature: float, history: int, threshold: Threshold | float, unit: Unit
) -> ClientRule[Memory]:
    """L = l_cro + lambda * l_con, with positives and negatives drawn from the client's own past."""

    def init(w: Vector) -> Memory:
        return Memory(empty_ring(history, w), last=w)

    def begin(model: Model, local: Local[Memory], batches: Batch) -> Scratch:
        total = batches.y.shape[0]
        # By iteration, old model j has left the window after iteration j: no forward is spent on it beyond.
        ends = [total if unit == "round" else min(j + 1, total) for j in range(history)]
        rows = local.memory.history.rows
        past = tuple(represent_frozen(model, rows[j], batches, 0, ends[j]) for j in range(history))
        # By round, the model that ended the last participation is the newest of the history.
        last = past[-1] if unit == "round" else None
        if threshold == "last_local" and last is None:
            last = represent_frozen(model, local.memory.last, batches, 0, total)
        # The local model of iteration 0 is the received one: without dropout, `loss` gets that one for free.
        sent = represent_frozen(model, local.sent.w, batches, 0 if model.masks else 1, total)
        return Scratch(batches, sent, last, past, ())

    def loss(model: Model, local: Local[Memory], batch: Batch) -> tuple[Scalar, Scalars]:
        known, e = local.scratch, local.e
        z = model.represent(local.w, batch.x, batch.masks)
        logits = model.classify(local.w, z, batch.masks)
        sent = z.detach() if e < known.sent.first else known.sent.at(e)
        pushed = e if unit == "iteration" else 0
        past = torch.stack([old.at(e) for old in known.past[pushed : pushed + history]])
        valid = torch.arange(history, device=z.device) >= history - local.memory.history.filled - pushed
        l_con = contrast(z, sent, past, valid, anchor(local, z.detach()), temperature)
        total = cross_entropy(logits, batch.y) + weight * l_con
        return total, {"accuracy": accuracy(logits, batch.y), "contrast": l_con.detach()}

    def anchor(local: Local[Memory], z: Tensor) -> Tensor | float:
        """mu itself, or the representations whose similarity to the received model's is mu."""
        if threshold == "received":
            return 1.0  # Sim(Z^t, Z^t), as printed
        if threshold == "current":
            return z
        if threshold == "last_local":
            return torch.where(local.memory.history.filled > 0, local.scratch.last.at(local.e), z)
        return float(threshold)

    def step(model: Model, local: Local[Memory], gradient: Vector) -> tuple[Vector, Scratch]:
        w, known = sgd_step(model, local, gradient)
        if unit == "round":
            return w, known
        first, end = local.e + 1, min(local.e + 1 + history, known.batches.y.shape[0])
        new = known.sent if local.e == 0 else represent_frozen(model, local.w, known.batches, first, end)
        return w, known._replace(past=(*known.past, new), trail=(*known.trail, local.w))

    def reply(model: Model, local: Local[Memory], delta: Vector, check: Batch | None) -> Uplink:
        trail = local.scratch.trail if unit == "iteration" else (local.w,)
        return Uplink(delta, Memory(local.memory.history.push(*trail), last=local.w), {}, delta)

    return ClientRule(init=init, begin=begin, loss=loss, step=step, reply=reply)


def pmfl(
    *,
    contrast_weight: Weight = 0.5,
    temperature: Rate = 0.5,
    local_models: Count = 5,
    threshold: Threshold | float = "last_local",
    history_unit: Unit = "iteration",
    cutoff: Count = 50,
    timing: Timing = "inclusive",
    global_models: Count = 3,
    history_in: HistoryIn = "update",
    server_lr: Rate = 1.0,
) -> Method:
    """Contrast with local history, weights from participation intervals, a mix with global history.

    contrast_weight: lambda, the weight of the model-contrastive term
    temperature: tau of the model-contrastive term
    local_models: N, how many past local models a client keeps
    threshold: mu, from which similarity on a past model is a positive: a rule or a number
    history_unit: whether a client remembers the model of every iteration, or of every round
    cutoff: C, the longest participation interval that counts; 0 for none
    timing: whether a weight counts the interval that ends now ("inclusive") or not ("predictive")
    global_models: H, the global buffer: this model and H - 1 older ones; 0 or 1 for no mixing
    history_in: where the mix acts: on the server's own "update", on the "broadcast", on "evaluation" only
    server_lr: eta_g, the global learning rate
    """
    client = history_contrastive(
        weight=contrast_weight, temperature=temperature, history=local_models, threshold=threshold, unit=history_unit
    )
    mix = global_history(server_lr=server_lr, history=global_models, acts_in=history_in)
    return Method(
        name="pmfl",
        client=client if contrast_weight and local_models else plain_client,
        weigh=average_interval(cutoff, timing),
        server=mix if global_models > 1 else add_step(server_lr),
    )
