"""Who the clients are: client k's mini-batches of round t, drawn from keys and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.types import Batch, Masks, Model, Work
from pmfl.world.augment import AUGMENTS, mean_colour, to_input
from pmfl.world.datasets import Array, Dataset, IntArray
from pmfl.world.models import draw_masks

CHECK_SHARE = 0.2  # of a client's training samples, held out where a method needs a validation signal
CHECK_SAMPLES = 64  # how many of them are looked at in one participation


class Draws(NamedTuple):
    """One participation before any sample is touched: which samples, and the key of all that is done to them."""

    key: Key
    rows: IntArray  # [E * B] of the train split
    held_out: IntArray  # [V] of the train split, none of which the client trains on; empty unless asked for
    samples: float  # how many the client trains on


class Population:
    """Clients as functions of their number: the same draws whoever else takes part, and in any order."""

    def __init__(
        self,
        dataset: Dataset,
        owned: Sequence[IntArray],
        model: Model,
        key: Key,
        *,
        iterations: int,
        batch_size: int,
        augment: str = "none",
        holds_out: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.dataset, self.owned, self.model, self.key = dataset, owned, model, key
        self.iterations, self.batch_size = iterations, batch_size
        self.augment, self.holds_out, self.dtype = AUGMENTS[augment], holds_out, dtype
        self.fill = mean_colour(dataset.mean)  # what is cut in from outside an image is zero once normalised
        self._shares = lru_cache(maxsize=4096)(self._split)

    def draws(self, t: int, k: int) -> Draws:
        """What client ``k`` is going to look at in round ``t``."""
        key = self.key.fold("work", t, k)
        training, held_out = self._shares(k)
        rows = training[self._draw(len(training), key.fold("batch"))]
        check = np.resize(held_out, CHECK_SAMPLES) if self.holds_out else held_out[:0]
        return Draws(key, rows, check, float(len(training)))

    def work(self, t: int, k: int) -> Work:
        """All that client ``k`` needs to take part in round ``t``."""
        key, rows, held_out, samples = self.draws(t, k)
        x = self.augment(self.dataset.train.x[rows], key.fold("augment"), self.fill)
        shape = (self.iterations, self.batch_size)
        batches = Batch(
            self.to_input(x.reshape(*shape, *x.shape[1:])),
            torch.from_numpy(self.dataset.train.y[rows].reshape(shape)),
            self.masks(key),
        )
        check = None
        if self.holds_out:
            y = torch.from_numpy(self.dataset.train.y[held_out])
            check = Batch(self.to_input(self.dataset.train.x[held_out]), y)
        return Work(batches, torch.tensor(samples), check)

    def masks(self, key: Key) -> Masks:
        """Dropout masks of a participation, [E, B, ...] each."""
        shape = (self.iterations, self.batch_size)
        return draw_masks(self.model, key.fold("dropout"), shape) if self.model.masks else ()

    def to_input(self, x: Array | Tensor) -> Tensor:
        """Stored samples as inputs of the network."""
        return to_input(x, self.dataset.mean, self.dataset.std, self.dtype)

    def _draw(self, n: int, key: Key) -> IntArray:
        """Row numbers of E mini-batches: shuffled passes, each without its incomplete last mini-batch.

        A client with fewer samples than a mini-batch sees fresh shuffles of all it has, one after the other.
        """
        rng, missing = key.numpy(), self.iterations * self.batch_size
        whole = n - n % self.batch_size or n
        passes = []
        while missing > 0:
            passes.append(rng.choice(n, size=min(whole, missing), replace=False))
            missing -= len(passes[-1])
        return np.concatenate(passes)

    def _split(self, k: int) -> tuple[IntArray, IntArray]:
        """Client k's samples: those it trains on, and those held out (none unless a method asks for them)."""
        mine = self.owned[k]
        if not self.holds_out or len(mine) < 2:
            return mine, mine
        shuffled = self.key.fold("check", k).numpy().permutation(mine)
        cut = max(1, round(CHECK_SHARE * len(mine)))
        return shuffled[cut:], shuffled[:cut]
