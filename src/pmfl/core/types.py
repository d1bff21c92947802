"""The nouns. A model, an update and a gradient are all points of R^P: one flat tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from pmfl.core.keys import Key

Vector: TypeAlias = Tensor  # [P]
Scalar: TypeAlias = Tensor  # []
Scalars: TypeAlias = Mapping[str, Tensor]  # a few named numbers, never a vector
Masks: TypeAlias = tuple[Tensor, ...]  # dropout masks, one per dropout layer; () means evaluation

MemoryT = TypeVar("MemoryT")


class Batch(NamedTuple):
    """Inputs [B, ...], labels [B] and dropout masks; or E of them, with a leading axis E."""

    x: Tensor
    y: Tensor
    masks: Masks = ()

    def at(self, e: int) -> Batch:
        """Mini-batch number ``e``."""
        return Batch(self.x[e], self.y[e], tuple(mask[e] for mask in self.masks))


class Work(NamedTuple):
    """All that one client needs for one participation; every draw has already been made."""

    batches: Batch  # [E, B, ...]
    samples: Tensor  # [] how many samples the client holds
    check: Batch | None = None  # held-out training samples [V, ...], for rules that ask for them


@dataclass(frozen=True)
class Model:
    """A classifier as pure functions of a flat parameter vector."""

    size: int  # P
    init: Callable[[Key], Vector]
    represent: Callable[[Vector, Tensor, Masks], Tensor]  # z = Pro(Enc(x)), [B, D]
    classify: Callable[[Vector, Tensor, Masks], Tensor]  # logits = Cla(z), [B, classes]
    masks: tuple[tuple[tuple[int, ...], float], ...] = ()  # per dropout layer: sample shape, keep probability
    tensors: Callable[[Vector], Mapping[str, Tensor]] = lambda w: {
        "w": w
    }  # the parameters by name, as layers hold them

    def logits(self, w: Vector, x: Tensor, masks: Masks = ()) -> Tensor:
        """Class scores [B, classes]; without masks, those of evaluation."""
        return self.classify(w, self.represent(w, x, masks), masks)


class Round(NamedTuple):
    """Where we are. Every rule may look at it; none may change it."""

    t: int
    total: int  # T
    clients: int  # K
    client_lr: float  # the local learning rate scheduled for this round
    key: Key  # this round's randomness
    rates: Tensor | None = None  # [K] true participation rates, where the world knows them


class Seen(NamedTuple):
    """What the server knows of a round's answers before touching any vector."""

    took_part: Tensor  # [K] bool
    scalars: Scalars  # each [n], one entry per client that took part, in order of client id

    @property
    def clients(self) -> Tensor:
        """The ids of those who took part, ascending, [n]."""
        return self.took_part.nonzero().flatten()

    def mean(self, name: str) -> float:
        """The mean of a scalar over those who took part; NaN when nobody did."""
        values = self.scalars.get(name)
        return float("nan") if values is None or values.numel() == 0 else float(values.double().mean())


class Downlink(NamedTuple):
    """What the server sends to every chosen client."""

    w: Vector
    lr: Scalar
    extra: dict[str, Tensor]


class Local(NamedTuple, Generic[MemoryT]):
    """What one client sees during one local iteration."""

    w: Vector
    sent: Downlink
    memory: MemoryT  # from the last participation; replaced only by ``reply``
    e: int = 0  # local iteration
    scratch: Any = None  # made by ``begin``, dies with this participation


class Uplink(NamedTuple):
    """What one participation gives: to the server, to the client's own memory, to the metrics."""

    vector: Vector  # what the server sums
    memory: Any  # stays with the client
    scalars: Scalars
    update: Vector  # Delta_k = trained minus received model; metrics may look at it, methods get only sums


def nobody(clients: int) -> Seen:
    """The answers of a round in which no client took part."""
    return Seen(torch.zeros(clients, dtype=torch.bool), {})
