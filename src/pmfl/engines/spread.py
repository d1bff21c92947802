"""The engine for several ranks: each trains its share of a round's clients with an engine of its own.

Shares differ by one client at most. A client trains where its memory is, as far as that leaves the shares equal, and
otherwise takes its memory along. Vectors stay where they were trained; one sum of whole numbers goes around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pmfl.core.method import ClientRule, Measure
from pmfl.core.sums import check_peaks, exact_weighted_sum, from_fixed_point, peaks
from pmfl.core.tree import from_bytes, leaves, to_bytes
from pmfl.core.types import Downlink, Round, Scalars, Seen, Vector
from pmfl.engines.crew import Alone
from pmfl.engines.local import Scores
from pmfl.engines.memory import Memories
from pmfl.errors import EngineError
from pmfl.world.datasets import Dataset, Split


class Own(Protocol):
    """The answers of the clients that were trained here."""

    @property
    def seen(self) -> Seen:
        """Who they are, and their numbers."""
        ...

    @property
    def updates(self) -> list[Vector]:
        """Delta_k, by client id."""
        ...

    def peaks(self) -> Tensor:
        """The largest magnitude in each uplink, by client id."""
        ...

    def partial_sum(self, weights: Tensor) -> Tensor:
        """Their weighted sum as integers."""
        ...


class Trains(Protocol):
    """An engine that plays a part of a round."""

    device: torch.device
    memories: Memories
    evaluated_at_once: int  # samples in one forward of an evaluation

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> Own:
        """Let the chosen clients take part in round ``now``."""
        ...

    def evaluate(self, w: Vector, split: Split, dataset: Dataset) -> Scores:
        """Loss and correctness of ``w`` on every sample of ``split``."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


@dataclass(frozen=True)
class SpreadReplies:
    """The uplinks of one round: vectors where they were trained, numbers of all of them everywhere."""

    seen: Seen
    clients: list[int]
    own: Own
    order: Tensor  # [n] where each client's number lies when ranks tell theirs one after the other
    peaks: Tensor  # [n]
    crew: Alone
    t: int
    like: Vector

    @property
    def updates(self) -> list[Vector]:
        """Delta_k of those that were trained here, by client id."""
        return self.own.updates

    def measure(self, measure: Measure) -> Tensor:
        """A number for each update, by client id."""
        updates = self.updates

        def total(weights: Sequence[float]) -> Vector:
            largest = peaks(updates) * torch.tensor(weights, dtype=torch.float64).abs()
            check_peaks([1.0] * len(self.clients), self._all(largest), self.clients, self.t)
            found = self.crew.add(exact_weighted_sum(weights, updates, self.like.numel()))
            return from_fixed_point(found, torch.float64)

        return self._all(measure(updates, total))

    def weighted_sum(self, weights: Tensor) -> Vector:
        """sum_k weights[k] * uplink[k], in fixed point."""
        check_peaks(weights[self.clients].tolist(), self.peaks, self.clients, self.t)
        total = self.crew.add(self.own.partial_sum(weights))
        return from_fixed_point(total, self.like.dtype).to(self.like.device)

    def _all(self, own: Tensor) -> Tensor:
        """A number per client, told by whoever trained it."""
        told = [number for part in self.crew.share(own.tolist) for number in part]
        return torch.tensor(told, dtype=torch.float64)[self.order]


class SpreadEngine:
    """One rank's view: ``inner`` trains what falls to it."""

    def __init__(self, inner: Trains, rule: ClientRule[Any], crew: Alone) -> None:
        self.inner, self.rule, self.crew = inner, rule, crew
        self.device, self.memories = inner.device, inner.memories
        self.moved = 0  # memories that went from rank to rank
        self._owner: dict[int, int] | None = None  # whose memory lies where; the same on every rank
        self._parts: dict[int, tuple[Split, Split]] = {}  # of evaluation, by identity of the split

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> SpreadReplies:
        """Let the chosen clients take part in round ``now``."""
        clients = chosen.nonzero().flatten().tolist()
        owner = self._owners(sent)
        placed = spread(clients, owner, self.crew.world)
        moves = [(k, owner[k], rank) for rank, part in enumerate(placed) for k in part if owner.get(k, rank) != rank]
        if self._remembers(sent):
            owner.update({k: rank for rank, part in enumerate(placed) for k in part})
        own = list[Own]()

        def play() -> dict[str, Any]:
            wrong = self._move(moves, sent)
            if wrong is not None:
                raise wrong
            mine = torch.zeros_like(chosen)
            mine[placed[self.crew.rank]] = True
            own.append(self.inner.train(sent, mine, now))
            scalars = {name: [str(row.dtype), row.tolist()] for name, row in own[0].seen.scalars.items()}
            return {"scalars": scalars, "peaks": own[0].peaks().tolist(), "model": _sum_of_bits(sent.w)}

        told = self.crew.share(play)
        self._check_agreement([part["model"] for part in told], now.t)
        order = torch.tensor([k for part in placed for k in part], dtype=torch.int64).argsort()
        largest = torch.tensor([x for part in told for x in part["peaks"]], dtype=torch.float64)[order]
        seen = Seen(chosen.clone(), _joined([part["scalars"] for part in told], order))
        return SpreadReplies(seen, clients, own[0], order, largest, self.crew, now.t, sent.w)

    def evaluate(self, w: Vector, split: Split, dataset: Dataset) -> Scores:
        """Loss and correctness of ``w`` on every sample of ``split``, a part of them on every rank."""
        n, at_once = len(split), self.inner.evaluated_at_once
        forwards = -(-n // at_once)  # cut where one rank alone would cut: a sample's last bit may depend on its batch
        begin, end = (
            min(n, forwards * rank // self.crew.world * at_once) for rank in (self.crew.rank, self.crew.rank + 1)
        )

        def judge() -> Tensor:
            numbers = torch.zeros(2, n, dtype=torch.int64)
            if begin < end:
                found = self.inner.evaluate(w, self._part(split, begin, end), dataset)
                numbers[0, begin:end], numbers[1, begin:end] = found.loss.view(torch.int64), found.correct
            return numbers

        loss, correct = self.crew.add(self.crew.together(judge))
        return Scores(loss.view(torch.float64), correct.bool())

    def close(self) -> None:
        """Let go of what the engine holds."""
        self.inner.close()

    def _owners(self, sent: Downlink) -> dict[int, int]:
        """Which rank has whose memory. Asked once; from then on every rank knows of every move."""
        if self._owner is None:
            held = self.crew.share(lambda: sorted(self.memories.clients()))
            self._owner = {k: rank for rank, part in enumerate(held) for k in part}
        return self._owner

    def _remembers(self, sent: Downlink) -> bool:
        """Whether clients have a memory at all."""
        return next(leaves(self.rule.init(sent.w)), None) is not None

    def _move(self, moves: Sequence[tuple[int, int, int]], sent: Downlink) -> Exception | None:
        """Hand memories over. Whatever goes wrong here, nobody is left waiting."""
        wrong: Exception | None = None
        for k, old, new in moves:
            if old == self.crew.rank:
                try:
                    numbers = to_bytes(self.memories.take(k, lambda: self.rule.init(sent.w)))
                except Exception as error:
                    numbers, wrong = None, error
                self.crew.send(numbers, new)
        for k, old, new in moves:
            if new == self.crew.rank:
                numbers = self.crew.receive(old)
                if numbers is not None:
                    self.memories.put(k, from_bytes(numbers, self.rule.init(sent.w)))
        self.moved += len(moves)
        return wrong

    def _check_agreement(self, models: Sequence[int], t: int) -> None:
        """Ranks compute the same server's step each for itself: on unlike machines, last bits would part for ever."""
        if len(set(models)) > 1:
            rank = next(rank for rank, model in enumerate(models) if model != models[0])
            raise EngineError(
                f"round {t}: rank {rank} has come to another global model than rank 0",
                hint="ranks must run on processors of one kind, with the same versions of torch and of this package",
                code="E131",
            )

    def _part(self, split: Split, begin: int, end: int) -> Split:
        """A part of a split; the same object each time, since engines may keep what they were given."""
        if id(split) not in self._parts:
            users = None if split.users is None else split.users[begin:end]
            self._parts[id(split)] = split, Split(split.x[begin:end], split.y[begin:end], users)
        return self._parts[id(split)][1]


def spread(clients: Sequence[int], owner: dict[int, int], world: int) -> list[list[int]]:
    """Each rank's share of the clients, ascending; shares differ by one at most, and as few as possible move.

    >>> spread([1, 2, 3, 4], {1: 0, 2: 0, 3: 0}, 2)
    [[1, 2], [3, 4]]
    """
    low, more = divmod(len(clients), world)
    placed: list[list[int]] = [[] for _ in range(world)]

    def stay(left: Sequence[int], may: Callable[[int], bool]) -> list[int]:
        away = list[int]()
        for k in left:
            rank = owner.get(k, -1)
            (placed[rank] if rank >= 0 and may(rank) else away).append(k)
        return away

    left = stay(clients, lambda rank: len(placed[rank]) < low)
    left = stay(left, lambda rank: len(placed[rank]) == low and sum(len(part) > low for part in placed) < more)
    for k in left:
        min(placed, key=len).append(k)
    return [sorted(part) for part in placed]


def _joined(parts: Sequence[dict[str, tuple[str, list[float]]]], order: Tensor) -> Scalars:
    """Every scalar of all ranks, by client id; a rank without clients has none."""
    names = list(next((part for part in parts if part), {}))
    rows = {}
    for name in names:
        said = [part[name] for part in parts if part]
        dtype = getattr(torch, said[0][0].removeprefix("torch."))
        rows[name] = torch.tensor([number for _, numbers in said for number in numbers], dtype=dtype)[order]
    return rows


def _sum_of_bits(w: Vector) -> int:
    """A number that nearly any two different models differ in."""
    return int(w.view({4: torch.int32, 8: torch.int64}[w.element_size()]).sum())
