"""One participation of one client: the only place where local training is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from pmfl.core.method import ClientRule
from pmfl.core.types import Batch, Downlink, Local, Model, Scalar, Scalars, Uplink, Vector, Work

Objective: TypeAlias = Callable[[Vector], tuple[Scalar, Scalars]]
Differentiate: TypeAlias = Callable[[Objective, Vector], tuple[Vector, Scalar, Scalars]]


def by_autograd(objective: Objective, w: Vector) -> tuple[Vector, Scalar, Scalars]:
    """The gradient by plain autograd: the least overhead for one client at a time."""
    w = w.detach().requires_grad_()
    value, scalars = objective(w)
    (gradient,) = torch.autograd.grad(value, w)
    return gradient, value.detach(), scalars


def by_transform(objective: Objective, w: Vector) -> tuple[Vector, Scalar, Scalars]:
    """The gradient as a function transform, which composes with ``torch.vmap`` over clients."""
    gradient, (value, scalars) = torch.func.grad_and_value(objective, has_aux=True)(w)
    return gradient, value, scalars


def train_client(
    rule: ClientRule[Any],
    model: Model,
    sent: Downlink,
    memory: Any,
    work: Work,
    differentiate: Differentiate = by_autograd,
) -> Uplink:
    """E iterations from the received model, one per mini-batch of ``work``."""
    local = Local(sent.w, sent, memory)
    local = local._replace(scratch=rule.begin(model, local, work.batches))
    trail: list[Scalars] = []
    for e in range(work.batches.y.shape[0]):
        local = local._replace(e=e)
        batch = work.batches.at(e)

        def objective(w: Vector, here: Local[Any] = local, batch: Batch = batch) -> tuple[Scalar, Scalars]:
            return rule.loss(model, here._replace(w=w), batch)

        gradient, value, scalars = differentiate(objective, local.w)
        with torch.no_grad():
            w, scratch = rule.step(model, local, gradient)
        local = local._replace(w=w, scratch=scratch)
        trail.append({"loss": value, **scalars})
    with torch.no_grad():
        uplink = rule.reply(model, local, local.w - sent.w, work.check)
    return uplink._replace(scalars={**_first_and_last(trail), **uplink.scalars, "samples": work.samples})


def _first_and_last(trail: list[Scalars]) -> dict[str, Scalar]:
    """Numbers of the received model (first iteration) and of the nearly trained one (last)."""
    return {f"{name}/{when}": trail[i][name] for when, i in (("first", 0), ("last", -1)) for name in trail[0]}
