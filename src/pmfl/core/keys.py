"""Named randomness: a draw is addressed by what it is for, never by when it happens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Key:
    """128 bits that name one source of randomness.

    >>> Key.root(0).fold("batch", 3, 7) == Key.root(0).fold("batch", 3, 7)
    True
    """

    bits: int

    @classmethod
    def root(cls, seed: int) -> Key:
        """The key from which all others of a run descend."""
        return cls(0).fold("root", seed)

    def fold(self, *names: str | int) -> Key:
        """The key of a named child, e.g. ``key.fold("batch", t, k)``."""
        text = f"{self.bits:032x}" + "".join(f"/{type(name).__name__}:{name}" for name in names)
        return Key(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big"))

    def numpy(self) -> np.random.Generator:
        """A numpy generator that starts at this key."""
        return np.random.Generator(np.random.Philox(key=self.bits))

    def torch(self) -> torch.Generator:
        """A torch generator; always on the CPU, since CUDA streams differ from CPU streams and draws must not."""
        return torch.Generator().manual_seed(self.bits & (2**63 - 1))
