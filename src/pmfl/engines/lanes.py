"""The engine for wide devices: clients train side by side, each in a lane of ``torch.vmap``.

On a GPU the samples and the memories of clients stay on the device, a group of clients is one replay of one graph, and
the host hears of a round once, when its numbers are asked for. On a CPU the same code runs, as a check of it: there
lanes are slower than clients one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pmfl.core.client import by_transform, train_client
from pmfl.core.method import ClientRule, Measure
from pmfl.core.sums import check_peaks, check_range, from_fixed_point, peaks, sum_of_rows
from pmfl.core.tree import map_tree, stack, unstack
from pmfl.core.types import Downlink, Model, Round, Scalars, Seen, Uplink, Vector, Work
from pmfl.engines.captured import Captured, Program
from pmfl.engines.local import Scores, naming
from pmfl.engines.memory import Memories
from pmfl.errors import EngineError
from pmfl.world.augment import to_input
from pmfl.world.datasets import Dataset, Split
from pmfl.world.population import Population
from pmfl.world.resident import Resident

EVALUATED_AT_ONCE = 4096  # samples in one forward of an evaluation


@dataclass(frozen=True)
class LanesReplies:
    """The uplinks of one round, as rows on the device."""

    seen: Seen
    clients: list[int]
    rows: Tensor  # [n, P], by client id
    changes: Tensor  # [n, P]
    t: int

    @property
    def updates(self) -> list[Vector]:
        """Delta_k of those who took part, by client id."""
        return list(self.changes)

    def measure(self, measure: Measure) -> Tensor:
        """A number for each update, by client id."""

        def total(weights: Sequence[float]) -> Vector:
            check_range(weights, self.changes, self.clients, self.t)
            return from_fixed_point(sum_of_rows(weights, self.changes), torch.float64)

        return measure(self.updates, total)

    def weighted_sum(self, weights: Tensor) -> Vector:
        """sum_k weights[k] * uplink[k], in fixed point."""
        check_peaks(weights[self.clients].tolist(), self.peaks(), self.clients, self.t)
        return from_fixed_point(self.partial_sum(weights), self.rows.dtype)

    def peaks(self) -> Tensor:
        """The largest magnitude in each uplink, by client id."""
        return peaks(self.rows)

    def partial_sum(self, weights: Tensor) -> Tensor:
        """The sum as integers, to which those of other ranks can be added."""
        return sum_of_rows(weights[self.clients].tolist(), self.rows)


class LanesEngine:
    """Trains and evaluates on one device, ``lanes`` clients at a time."""

    evaluated_at_once = EVALUATED_AT_ONCE

    def __init__(
        self,
        rule: ClientRule[Any],
        model: Model,
        population: Population,
        *,
        lanes: int,
        device: str = "cpu",
        memories: Memories | None = None,
    ) -> None:
        if lanes < 1:
            raise EngineError(f"lanes = {lanes}", hint="they count from 1")
        self.rule, self.model, self.lanes, self.device = rule, model, lanes, device_named(device)
        self.memories = Memories() if memories is None else memories
        self._resident = Resident(population, self.device)
        self._side_by_side: Program = self._train if self.device.type == "cpu" else Captured(self._train)
        self._splits: dict[int, tuple[Tensor, Tensor]] = {}  # on the device, by identity of the split

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> LanesReplies:
        """Let the chosen clients take part in round ``now``."""
        clients = chosen.nonzero().flatten().tolist()
        sent = self._here(sent)
        groups = []
        for start in range(0, len(clients), self.lanes):
            group = clients[start : start + self.lanes]
            with naming(group, now):
                groups.append(self._group(sent, group, now))
        if not groups:
            nothing = sent.w.new_zeros((0, sent.w.numel()))
            return LanesReplies(Seen(chosen.clone(), {}), clients, nothing, nothing, now.t)
        vectors, changes, scalars = zip(*groups, strict=True)
        numbers = torch.stack([torch.cat([group[name] for group in scalars]) for name in scalars[0]]).cpu()
        seen = Seen(chosen.clone(), dict(zip(scalars[0], numbers, strict=True)))
        return LanesReplies(seen, clients, torch.cat(vectors), torch.cat(changes), now.t)

    def evaluate(self, w: Vector, split: Split, dataset: Dataset) -> Scores:
        """Loss and correctness of ``w`` on every sample of ``split``, without augmentation."""
        x_all, y_all = self._split(split)
        losses, right = [], []
        with torch.no_grad():
            for start in range(0, len(split), EVALUATED_AT_ONCE):
                these = slice(start, start + EVALUATED_AT_ONCE)
                logits = self.model.logits(w, to_input(x_all[these], dataset.mean, dataset.std, w.dtype))
                losses.append(cross_entropy(logits, y_all[these], reduction="none").double())
                right.append(logits.argmax(-1) == y_all[these])
        return Scores(torch.cat(losses).cpu(), torch.cat(right).cpu())

    def close(self) -> None:
        """Nothing to let go."""

    def _group(self, sent: Downlink, clients: list[int], now: Round) -> tuple[Tensor, Tensor, Scalars]:
        """One width of lanes; a group with fewer clients is filled up, and the surplus thrown away."""
        n, filled = len(clients), clients + clients[-1:] * (self.lanes - len(clients))
        memory = stack([self.memories.get(k, lambda: self.rule.init(sent.w)) for k in filled])
        uplink: Uplink = Uplink(*self._side_by_side(sent, memory, self._resident.works(now.t, filled)))
        for i, k in enumerate(clients):
            self.memories.put(k, unstack(uplink.memory, i))
        scalars = {name: row[:n].clone() for name, row in uplink.scalars.items()}
        return uplink.vector[:n].clone(), uplink.update[:n].clone(), scalars

    def _train(self, sent: Downlink, memory: Any, work: Work) -> tuple[Any, ...]:
        def one(memory: Any, work: Work) -> tuple[Any, ...]:
            return tuple(train_client(self.rule, self.model, sent, memory, work, by_transform))

        return tuple(torch.vmap(one, in_dims=(_axis(memory), _axis(work)))(memory, work))

    def _here(self, sent: Downlink) -> Downlink:
        moved: Downlink = map_tree(
            lambda path, leaf: leaf.to(self.device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, sent
        )
        return moved

    def _split(self, split: Split) -> tuple[Tensor, Tensor]:
        """The samples of a split, moved to the device once. The train split has been there since the start."""
        if split is self._resident.population.dataset.train:
            return self._resident.x, self._resident.y
        if id(split) not in self._splits:
            x, y = torch.from_numpy(np.array(split.x)), torch.from_numpy(np.array(split.y))
            self._splits[id(split)] = x.to(self.device), y.to(self.device)
        return self._splits[id(split)]


def _axis(tree: Any) -> Any:
    """Which leaves have a lane axis: the tensors."""
    return map_tree(lambda path, leaf: 0 if isinstance(leaf, Tensor) else None, tree)


def device_named(name: str) -> torch.device:
    """The device, if it is here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(
            f"engine.device = {name!r}: {reason}", hint="cpu works everywhere; cuda:0 needs a GPU"
        ) from None
    return device
