"""The five rules that make a method, and the plain rules that most methods keep.

A rule is ``init`` and ``apply``: state goes in and comes out, nothing mutates.
Argument order is ``apply(state, <what it acts on>, seen, now)``, result order ``(output, state)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pmfl.core.types import Batch, Downlink, Local, MemoryT, Model, Round, Scalar, Scalars, Seen, Uplink, Vector

StateT = TypeVar("StateT")


def classification(model: Model, local: Local[Any], batch: Batch) -> tuple[Scalar, Scalars]:
    """l_cro: mean cross-entropy over the mini-batch."""
    logits = model.logits(local.w, batch.x, batch.masks)
    return cross_entropy(logits, batch.y), {"accuracy": accuracy(logits, batch.y)}


def accuracy(logits: Tensor, y: Tensor) -> Scalar:
    """The share of samples whose highest score is their label."""
    return (logits.detach().argmax(-1) == y).float().mean()


def no_scratch(model: Model, local: Local[Any], batches: Batch) -> None:
    """Nothing to prepare for a participation."""


def sgd_step(model: Model, local: Local[Any], gradient: Vector) -> tuple[Vector, Any]:
    """w <- w - eta_l * gradient."""
    return torch.addcmul(local.w, gradient, local.sent.lr, value=-1), local.scratch  # in one pass


def send_update(model: Model, local: Local[Any], delta: Vector, check: Batch | None) -> Uplink:
    """The update itself goes to the server; the memory stays as it was."""
    return Uplink(delta, local.memory, {}, delta)


def send_model(state: Any, w: Vector, now: Round) -> Downlink:
    """The global model and the scheduled learning rate."""
    return Downlink(w, torch.tensor(now.client_lr, dtype=w.dtype), {})


def show_model(state: Any, w: Vector) -> Vector:
    """The model that is evaluated and exported is the server's own."""
    return w


@dataclass(frozen=True, kw_only=True)
class ClientRule(Generic[MemoryT]):
    """What a client optimises, and what it remembers until it next takes part.

    Call order in one participation: ``begin`` once, which sees all mini-batches; per iteration ``loss``
    and ``step``, which both see the model *before* the step; then ``reply``, with the trained model.
    """

    init: Callable[[Vector], MemoryT]
    begin: Callable[[Model, Local[MemoryT], Batch], Any] = no_scratch
    loss: Callable[[Model, Local[MemoryT], Batch], tuple[Scalar, Scalars]] = classification
    step: Callable[[Model, Local[MemoryT], Vector], tuple[Vector, Any]] = sgd_step
    reply: Callable[[Model, Local[MemoryT], Vector, Batch | None], Uplink] = send_update
    checks: bool = False  # whether ``reply`` needs held-out training samples
    sends_changes: bool = False  # of a vector that the client keeps, zero at first: all it has sent adds up to it


@dataclass(frozen=True, kw_only=True)
class SelectRule(Generic[StateT]):
    """Which clients are asked; ``last`` is what the round before showed."""

    init: Callable[[int], StateT]
    apply: Callable[[StateT, Tensor, Seen, Round], tuple[Tensor, StateT]]  # available [K] -> chosen [K]


@dataclass(frozen=True, kw_only=True)
class WeighRule(Generic[StateT]):
    """How much each client counts, decided before any vector is touched."""

    init: Callable[[int], StateT]
    apply: Callable[[StateT, Seen, Round], tuple[Tensor, StateT]]  # -> weights [K], float64
    importance: Callable[[StateT], Tensor | None] = lambda state: None  # [K] the paper's x_k, for the record


@dataclass(frozen=True, kw_only=True)
class ServerRule(Generic[StateT]):
    """How the global model moves, given the weighted sum of the uplinks."""

    init: Callable[[Vector], StateT]
    apply: Callable[[StateT, Vector, Vector, Seen, Round], tuple[Vector, StateT]]  # w, step -> w
    send: Callable[[StateT, Vector, Round], Downlink] = send_model
    show: Callable[[StateT, Vector], Vector] = show_model


@dataclass(frozen=True, kw_only=True)
class Method:
    """Five rules and a name."""

    name: str
    client: ClientRule[Any] = field(default_factory=lambda: plain_client)
    select: SelectRule[Any] = field(default_factory=lambda: everyone_available)
    weigh: WeighRule[Any] = field(default_factory=lambda: participant_mean)
    server: ServerRule[Any] = field(default_factory=lambda: add_step(1.0))

    def but(self, name: str, **rules: Any) -> Method:
        """The same method with some rules exchanged: how ablations are written."""
        return replace(self, name=name, **rules)


Total: TypeAlias = Callable[[Sequence[float]], Vector]  # a weight for each update that is here -> the sum over all
Measure: TypeAlias = Callable[[Sequence[Vector], Total], Tensor]  # the m updates that are here -> [m] float64


class Replies(Protocol):
    """The answers of one round; the vectors stay wherever the engine keeps them."""

    @property
    def seen(self) -> Seen:
        """Who took part, and the numbers they reported."""
        ...

    def measure(self, measure: Measure) -> Tensor:
        """A number for each Delta_k of those who took part, by client id. For metrics; no rule gets to see them."""
        ...

    def weighted_sum(self, weights: Tensor) -> Vector:
        """sum_k weights[k] * uplink[k]: the same bits for any order or sharding of clients."""
        ...


class Engine(Protocol):
    """Where clients run: the only thing that differs between a laptop, a cluster and the world."""

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> Replies:
        """Let the chosen clients take part in round ``now``."""
        ...


plain_client: ClientRule[tuple[()]] = ClientRule(init=lambda w: ())

everyone_available: SelectRule[tuple[()]] = SelectRule(
    init=lambda clients: (),
    apply=lambda state, available, last, now: (available, state),
)


def _participant_mean(state: tuple[()], seen: Seen, now: Round) -> tuple[Tensor, tuple[()]]:
    here = seen.took_part.double()
    return here / here.sum().clamp(min=1), state


participant_mean: WeighRule[tuple[()]] = WeighRule(init=lambda clients: (), apply=_participant_mean)

node_mean: WeighRule[tuple[()]] = WeighRule(
    init=lambda clients: (),
    apply=lambda state, seen, now: (seen.took_part.double() / now.clients, state),
)


def add_step(server_lr: float) -> ServerRule[tuple[()]]:
    """W <- W + eta_g * step. Steps point downhill, so the sign is a plus."""
    return ServerRule(
        init=lambda w: (),
        apply=lambda state, w, step, seen, now: (w + server_lr * step, state),
    )
