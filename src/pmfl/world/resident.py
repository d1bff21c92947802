"""A population whose samples lie on a device: mini-batches are cut there, and only numbers travel.

A round's draws are made on the host, from keys, as everywhere; what goes to the device is the number of each sample and
where its window lies, a thousandth of the samples themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pmfl.core.tree import map_tree, stack
from pmfl.core.types import Batch, Work
from pmfl.world.augment import FLIPS, cut, draw_windows, none
from pmfl.world.population import Draws, Population


class Resident:
    """The mini-batches of several clients at once, stacked: the same as each client's own, to the bit."""

    def __init__(self, population: Population, device: torch.device) -> None:
        self.population, self.device = population, device
        train = population.dataset.train
        self.x, self.y = self._move(np.array(train.x)), self._move(np.array(train.y))
        self._fill = torch.tensor(np.resize(population.fill, train.x.shape[-1]), dtype=torch.uint8, device=device)
        # Augmentations that are more than a window are made on the host, and whole mini-batches travel.
        self._travels = population.augment is not none and population.augment not in FLIPS

    def works(self, t: int, clients: Sequence[int]) -> Work:
        """What these clients need to take part in round ``t``, with a leading axis of clients."""
        population = self.population
        if self._travels:
            works = stack([population.work(t, k) for k in clients])
            moved: Work = map_tree(lambda path, leaf: self._move(leaf) if isinstance(leaf, Tensor) else leaf, works)
            return moved
        draws = [population.draws(t, k) for k in clients]
        shape = (len(clients), population.iterations, population.batch_size)
        rows = self._move(np.stack([draw.rows for draw in draws]).reshape(-1))
        x = population.to_input(self._samples(rows, draws).reshape(*shape, *self.x.shape[1:]))
        masks = stack([population.masks(draw.key) for draw in draws])
        batches = Batch(x, self.y[rows].reshape(shape), tuple(map(self._move, masks)))
        samples = self._move(np.array([draw.samples for draw in draws], np.float32))
        return Work(batches, samples, self._check(draws) if population.holds_out else None)

    def _samples(self, rows: Tensor, draws: Sequence[Draws]) -> Tensor:
        """The augmented samples of all clients, in a row."""
        augment = self.population.augment
        if augment is none:
            return self.x[rows]
        windows = [draw_windows(draw.key.fold("augment"), len(draw.rows)) for draw in draws]
        where = self._move(np.concatenate(windows).astype(np.int32))
        return cut(self.x, rows, where, self._fill, flips=FLIPS[augment])

    def _check(self, draws: Sequence[Draws]) -> Batch:
        rows = self._move(np.stack([draw.held_out for draw in draws]))
        return Batch(self.population.to_input(self.x[rows]), self.y[rows])

    def _move(self, numbers: np.ndarray | Tensor) -> Tensor:
        """On the device; without waiting for it, where the device can fetch by itself."""
        host = numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)
        return host if self.device.type == "cpu" else host.pin_memory().to(self.device, non_blocking=True)
