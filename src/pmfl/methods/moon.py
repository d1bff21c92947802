"""MOON: a contrast between the received model and the client's own previous ones (Li et al., CVPR 2021).

What is new: the representation of a sample is pulled towards that of the received model, and pushed away from
those of the models that ended the client's last participations. A client's first participation has no such model,
and its contrastive loss is exactly zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from pmfl.core.method import ClientRule, Method, accuracy, add_step, plain_client
from pmfl.core.params import Rate, Size, Weight
from pmfl.core.ring import Ring, empty_ring
from pmfl.core.types import Batch, Local, Model, Scalar, Scalars, Uplink, Vector
from pmfl.methods.contrast import contrast
from pmfl.methods.frozen import Frozen, represent_frozen

NO_POSITIVES = float("inf")  # no similarity reaches it: every old model is a negative


class Scratch(NamedTuple):
    """The representations by the frozen models of a participation."""

    sent: Frozen
    past: tuple[Frozen, ...]  # oldest first


def previous_contrastive(*, weight: float, temperature: float, history: int) -> ClientRule[Ring]:
    """L = l_cro + weight * l_con, with the models that ended the last participations as negatives."""

    def init(w: Vector) -> Ring:
        return empty_ring(history, w)

    def begin(model: Model, local: Local[Ring], batches: Batch) -> Scratch:
        total = batches.y.shape[0]
        # The local model of iteration 0 is the received one: without dropout, `loss` gets that one for free.
        sent = represent_frozen(model, local.sent.w, batches, 0 if model.masks else 1, total)
        rows = local.memory.rows
        return Scratch(sent, tuple(represent_frozen(model, rows[j], batches, 0, total) for j in range(history)))

    def loss(model: Model, local: Local[Ring], batch: Batch) -> tuple[Scalar, Scalars]:
        known, e = local.scratch, local.e
        z = model.represent(local.w, batch.x, batch.masks)
        logits = model.classify(local.w, z, batch.masks)
        sent = z.detach() if e < known.sent.first else known.sent.at(e)
        past = torch.stack([old.at(e) for old in known.past])
        l_con = contrast(z, sent, past, local.memory.valid, NO_POSITIVES, temperature)
        total = cross_entropy(logits, batch.y) + weight * l_con
        return total, {"accuracy": accuracy(logits, batch.y), "contrast": l_con.detach()}

    def reply(model: Model, local: Local[Ring], delta: Vector, check: Batch | None) -> Uplink:
        return Uplink(delta, local.memory.push(local.w), {}, delta)

    return ClientRule(init=init, begin=begin, loss=loss, reply=reply)


def moon(
    *, contrast_weight: Weight = 1.0, temperature: Rate = 0.5, local_models: Size = 1, server_lr: Rate = 1.0
) -> Method:
    """Contrast with the client's previous models, and the mean of the updates.

    contrast_weight: the weight of the model-contrastive term
    temperature: tau of the model-contrastive term
    local_models: how many past local models a client keeps
    server_lr: eta_g, the global learning rate
    """
    client = previous_contrastive(weight=contrast_weight, temperature=temperature, history=local_models)
    return Method(name="moon", client=client if contrast_weight else plain_client, server=add_step(server_lr))
